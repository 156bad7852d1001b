"""Which earlier value an input most plausibly is, where a trace tells its looks but not its identity.

Ranked by: what Python could still reach, then what would be an odd thing to compute, then the fewest consumers (every
value is computed to be read), then the most recent.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from auditor.collect.candidate import Candidate, Read, is_odd, made_alike
from auditor.collect.frames import Frames
from auditor.collect.partial import Key, Partial, keys_of
from auditor.collect.recorded_inputs import TensorSpec

_KEPT = 96
"""Candidates kept per shape. Without Python calls nothing else ever makes a value unreachable."""
_KEPT_PARTIAL = 16
"""Values of unknown looks that are kept per key: what is not read soon is read under other looks, or never."""
_FAR = 32
"""Ops between two values that are not siblings, where no Python calls tell."""
_READ, _OP = attrgetter("read"), attrgetter("op")
_NEVER = float("inf")


@dataclass(slots=True)
class _Step:
    """What the ops of one step made, oldest first, by its looks; ``alike``: looks of one shape and layout."""

    held: dict[TensorSpec, list[Candidate]] = field(default_factory=dict)
    alike: dict[tuple[object, ...], list[TensorSpec]] = field(default_factory=dict)
    views: dict[int, list[Candidate]] = field(default_factory=dict)
    """Views of a value, by the identity of that one, which they keep alive."""
    partial: dict[Key, list[Candidate]] = field(default_factory=dict)
    """Values whose looks are not known yet, oldest first, by what is known."""


class Candidates:
    """Values of one thread by their looks."""

    def __init__(self, frames: Frames | None, next_start: Sequence[float], steps: Sequence[float] = ()) -> None:
        """``next_start[i]``: when the next op after op ``i`` that is no view starts, infinite after the last.

        ``steps``: when each step of the trace starts, ascending; activations do not outlive theirs.
        """
        self._steps = steps
        self._next_step = steps[0] if steps else _NEVER
        self._frames = frames
        self._next_start = next_start
        self._step = _Step()

    def add(self, candidate: Candidate, time: float) -> None:
        """Hold ``candidate``, made by an op that started at ``time``."""
        if time >= self._next_step:
            self._enter(time)
        step = self._step
        if candidate.root is not None:
            step.views.setdefault(id(candidate.root), []).append(candidate)
        if candidate.partial is not None:
            unknown = step.partial.setdefault(candidate.partial.key, [])
            unknown.append(candidate)
            del unknown[: -_KEPT_PARTIAL if candidate.partial.is_known else -1]
        else:
            self._hold(candidate)

    def _hold(self, candidate: Candidate) -> None:
        spec, step = candidate.spec, self._step
        held = step.held.get(spec)
        if held is None:
            held = step.held[spec] = []
            step.alike.setdefault((spec.shape, spec.strides), []).append(spec)
        if held and held[-1].op > candidate.op:
            insort(held, candidate, key=_OP)
        else:
            held.append(candidate)
        if len(held) > _KEPT:
            del held[_least_wanted(held)]

    def _enter(self, time: float) -> None:
        """A new step drops what the last one left, before its first op reads or makes anything."""
        begun = bisect_right(self._steps, time)
        self._next_step = self._steps[begun] if begun < len(self._steps) else _NEVER
        self._step = _Step()

    def settle(self, candidate: Candidate, partial: Partial) -> None:
        """Hold a value of which only ``partial`` was known under the looks that it has now."""
        unknown = self._step.partial.get(partial.key, [])
        if candidate in unknown:
            unknown.remove(candidate)
        self._hold(candidate)

    def looks_with_shape(self, spec: TensorSpec, time: float) -> TensorSpec | None:
        """Looks of the most recent reachable value with the shape and strides of ``spec``, whatever its dtype."""
        if time >= self._next_step:
            self._enter(time)
        alike = self._step.alike.get((spec.shape, spec.strides), ())
        best = max((c for s in alike for c in self.reachable(s, time)), key=lambda c: (-c.read, c.op), default=None)
        return best.spec if best else None

    def retire(self, root: Candidate) -> None:
        """Take ``root`` and its views out: an op overwrote them."""
        root.stale = True
        for view in self._step.views.get(id(root), ()):
            view.stale = True

    def reachable(self, spec: TensorSpec, time: float) -> list[Candidate]:
        """Values that look like ``spec``, oldest first; what can be read no more is dropped for good."""
        if time >= self._next_step:
            self._enter(time)
        step = self._step
        held = step.held.get(spec)
        if not held:
            return sorted(self._fitting(spec, time), key=_OP) if step.partial else []
        reachable = [c for c in held if not c.stale and (time < c.home_until or self._outlives_its_call(c, time))]
        if len(reachable) < len(held):
            step.held[spec] = reachable
        if step.partial and (fitting := self._fitting(spec, time)):
            fitting = [c for c in fitting if not reachable or _made_such(c, spec)]
            return sorted([*reachable, *fitting], key=_OP)
        return reachable

    def _fitting(self, spec: TensorSpec, time: float) -> list[Candidate]:
        partial = self._step.partial
        return [
            c
            for key in keys_of(spec)
            if key in partial
            for c in partial[key]
            if not c.stale
            and c.partial is not None
            and c.partial.fits(spec)
            and _has_room(c, c.partial, spec)
            and (time < c.home_until or self._outlives_its_call(c, time))
        ]

    def choose(
        self, read: Read, reachable: Sequence[Candidate], chosen: Collection[Candidate], *, feeds_gemm: bool
    ) -> Candidate:
        """The most plausible of several ``reachable`` values for ``read``, which also reads those already ``chosen``.

        ``feeds_gemm``: it is the activation of a linear layer.
        """
        if read.prefer is not None and read.prefer in reachable:
            return read.prefer
        if read.avoid is not None:
            reachable = [c for c in reachable if c is not read.avoid]
        readers = [c.read - c.gemms for c in reachable] if feeds_gemm else [c.read for c in reachable]
        fewest = min(readers)
        count: int | None = fewest
        while count is not None:
            plausible = [
                c
                for c, n in zip(reachable, readers, strict=True)
                if n == count and not is_odd(c, read, reachable, chosen, feeds_gemm=feeds_gemm)
            ]
            if plausible:
                found = self._first(_into_the_module(plausible, read) if count else plausible, read)
                return _unread_part(found, plausible) if feeds_gemm else found
            count = min([n for n in readers if n > count], default=None)
        return self._first([c for c, n in zip(reachable, readers, strict=True) if n == fewest], read)

    def _first(self, tied: Sequence[Candidate], read: Read) -> Candidate:
        if len(tied) == 1:
            return tied[0]
        return self._first_sibling(tied) if read.in_order else max(tied, key=_OP)

    def _first_sibling(self, tied: Sequence[Candidate]) -> Candidate:
        """The most recent; but of values made in parallel (q, k and v; cos and sin), code reads the first first."""
        best = max(tied, key=_OP)
        for candidate in tied:
            near = candidate.home == best.home if self._frames is not None else best.op - candidate.op < _FAR
            if near and candidate.read == best.read and made_alike(candidate, best):
                return candidate
        return best

    def _outlives_its_call(self, candidate: Candidate, time: float) -> bool:
        """A call that returned hands out what it did not read itself, and what its last op made.

        The answer stands until the next call around it returns: who reads it from now on is outside of this one.
        """
        if self._frames is None:
            candidate.home_until = _NEVER
            return True
        call, home = self._frames.returned(candidate.frame, time)
        candidate.home = home
        candidate.home_until = self._frames.ends[home] if home >= 0 else _NEVER
        if call < 0:
            return True
        end = self._frames.ends[call]
        if candidate.first_read >= end or self._is_last_of_call(candidate, end):
            return True
        candidate.stale = True  # and stays out of reach
        return False

    def _is_last_of_call(self, candidate: Candidate, end: float) -> bool:
        """Whether no further op ran in the call that made ``candidate``."""
        return self._next_start[candidate.owner.op] >= end


def _made_such(candidate: Candidate, spec: TensorSpec) -> bool:
    """Whether an unknown value stands beside others: where it is one of several, if one like it was read, or none."""
    made = candidate.value.producer
    if candidate.partial is None or not candidate.partial.many or made is None or not made.outputs:
        return True
    return any(value.shape == spec.shape for value in made.outputs)


def _has_room(candidate: Candidate, partial: Partial, spec: TensorSpec) -> bool:
    made = candidate.value.producer
    parts = [v.shape for v in made.outputs] if partial.many and made is not None else []
    return not parts or partial.has_room(parts, spec.shape)


def _unread_part(found: Candidate, plausible: Sequence[Candidate]) -> Candidate:
    """Linear layers often share an input, but the parts of a split were made for one each: the next unread of them."""
    return next((c for c in plausible if c.op == found.op and not c.read), found) if found.read else found


def _into_the_module(tied: Sequence[Candidate], read: Read) -> Sequence[Candidate]:
    """Those that came into the module whose sum reads one of ``tied``, where there are any: its residual."""
    return [c for c in tied if c.op < read.first_in_module] or tied


def _least_wanted(held: Sequence[Candidate]) -> int:
    """Place of one that can be read no more; else of that with the most readers, the oldest of them."""
    dead = next((i for i, c in enumerate(held) if c.stale), -1)
    reads = list(map(_READ, held))
    return dead if dead >= 0 else reads.index(max(reads))
