"""Which earlier value an input most plausibly is, where a trace tells its looks but not its identity.

Ranked by: what Python could still reach, then what would be an odd thing to compute, then the fewest consumers (every
value is computed to be read), then the most recent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from auditor.collect.frames import Frames
from auditor.collect.recorded_inputs import TensorSpec
from auditor.graph.model import Value

NORMS = frozenset({"aten::native_layer_norm", "aten::_fused_rms_norm", "aten::native_group_norm"})
_KEPT = 96
"""Candidates kept per shape. Without Python calls nothing else ever makes a value unreachable."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A value made earlier. ``op`` numbers the ops of the thread; ``readers`` are the start times of its readers."""

    value: Value
    spec: TensorSpec
    op: int
    maker: tuple[str, str]
    """Names of the op that made it and of the one that made what it is a view of."""
    frame: int = -1
    root: Candidate | None = None
    linear_of: Candidate | None = None
    """The activation that this is a linear image of: a weight's GEMM, then only views, casts and scaling."""
    power_of: Candidate | None = None
    """The value that this is a power of."""
    source: Candidate | None = None
    """The input of its shape that it was made from."""
    readers: list[float] = field(default_factory=list)
    gemms: int = 0
    """How many of the readers are linear layers, which often share one input."""
    stale: bool = False
    """Overwritten in place: a newer version is among the candidates."""

    @property
    def owner(self) -> Candidate:
        return self.root or self


@dataclass(slots=True)
class Read:
    """One tensor input to be linked. ``feeds_gemm``: the activation of a linear layer."""

    spec: TensorSpec
    op_name: str
    time: float
    feeds_gemm: bool = False
    binary: bool = False
    """One of two alike inputs of an elementwise op."""
    prefer: Candidate | None = None
    avoid: Candidate | None = None
    listed: bool = False
    """An element of a list, where one value may stand twice."""
    pre_norm_from: int | None = None
    """First op of the module call, for a sum where that is a norm: the residual is what such a norm read."""
    first_in_model: int = 0
    """First op of the model's call: it seldom reads what the script made before, where it made an alike value."""
    made_by_odd: Collection[int] = ()
    """Ops whose outputs it would be odd to read here."""


class Candidates:
    """Values of one thread by their looks."""

    def __init__(self, frames: Frames | None, next_start: Sequence[float], steps: Sequence[float] = ()) -> None:
        """``next_start[i]``: when the next op after op ``i`` that is no view starts, infinite after the last.

        ``steps``: when each step of the trace starts, ascending; activations do not outlive theirs.
        """
        self._steps = list(steps)
        self._frames = frames
        self._next_start = next_start
        self._held: dict[TensorSpec, list[Candidate]] = defaultdict(list)

    def add(self, candidate: Candidate, time: float) -> None:
        """Hold ``candidate``, made by an op that started at ``time``; a new step drops what the last one left."""
        if self._steps and time >= self._steps[0]:
            self._held.clear()
            del self._steps[: bisect_right(self._steps, time)]
        held = self._held[candidate.spec]
        held.append(candidate)
        if len(held) > _KEPT:
            held.remove(max(held, key=lambda c: (c.stale, len(c.readers), -c.op)))

    def looks_with_shape(self, spec: TensorSpec, time: float) -> TensorSpec | None:
        """Looks of the most recent reachable value with the shape and strides of ``spec``, whatever its dtype."""
        alike = [s for s in self._held if s.shape == spec.shape and s.strides == spec.strides]
        best = max(
            (c for s in alike for c in self._reachable(s, time)), key=lambda c: (-len(c.readers), c.op), default=None
        )
        return best.spec if best else None

    def retire(self, root: Candidate) -> None:
        """Take ``root`` and its views out: an op overwrote them."""
        for held in self._held.values():
            for candidate in held:
                candidate.stale = candidate.stale or candidate.owner is root

    def choose(self, read: Read, chosen: Sequence[Candidate]) -> Candidate | None:
        """The most plausible value for ``read``, none of those already ``chosen`` for the same op."""
        all_reachable = self._reachable(read.spec, read.time)
        reachable = [c for c in all_reachable if c not in chosen] or (all_reachable if read.listed else [])
        if read.prefer is not None and read.prefer in reachable:
            return read.prefer
        reachable = [c for c in reachable if c is not read.avoid] or reachable
        if not reachable:
            return None
        ranks = {id(c): self._rank(c, read, reachable, chosen) for c in reachable}
        best = min(reachable, key=lambda c: (*ranks[id(c)], -c.op))
        tied = [c for c in reachable if ranks[id(c)] == ranks[id(best)]]
        return self._first_sibling(best, tied, read.time)

    def _reachable(self, spec: TensorSpec, time: float) -> list[Candidate]:
        held = self._held.get(spec, [])
        return [c for c in held if not c.stale and self._outlives_its_call(c, time)]

    def _outlives_its_call(self, candidate: Candidate, time: float) -> bool:
        """A call that returned hands out what it did not read itself, and what its last op made."""
        if self._frames is None or candidate.frame < 0:
            return True
        call = self._frames.outermost_returned(candidate.frame, time)
        if call < 0:
            return True
        end = self._frames.end(call)
        if not any(reader < end for reader in candidate.readers):
            return True
        if self._is_last_of_call(candidate, end):
            return True
        candidate.stale = True  # and stays out of reach
        return False

    def _is_last_of_call(self, candidate: Candidate, end: float) -> bool:
        """Whether no further op ran in the call that made ``candidate``."""
        return self._next_start[candidate.owner.op] >= end

    def _rank(
        self, candidate: Candidate, read: Read, reachable: Sequence[Candidate], chosen: Sequence[Candidate]
    ) -> tuple[bool, int]:
        others = len(candidate.readers) - (candidate.gemms if read.feeds_gemm else 0)
        return (_is_odd(candidate, read, reachable, chosen), others)

    def _first_sibling(self, best: Candidate, tied: Sequence[Candidate], time: float) -> Candidate:
        """Of values made in parallel (q, k and v; cos and sin), code reads the first first."""
        home = self._home(best, time)
        alike = [c for c in tied if _made_alike(c, best) and len(c.readers) == len(best.readers)]
        siblings = [c for c in alike if self._home(c, time) == home]
        if self._frames is None:
            siblings = [c for c in siblings if best.op - c.op < 32]
        return min(siblings, key=lambda c: c.op)

    def _home(self, candidate: Candidate, time: float) -> int:
        return self._frames.home(candidate.frame, time) if self._frames is not None else -1


def _made_alike(one: Candidate, other: Candidate) -> bool:
    """By the same ops, a sine counted as a cosine."""
    return [m.replace("sin", "cos") for m in one.maker] == [m.replace("sin", "cos") for m in other.maker]


def _is_odd(candidate: Candidate, read: Read, reachable: Sequence[Candidate], chosen: Sequence[Candidate]) -> bool:
    """Whether linking ``candidate`` would compute something that nobody writes, while there is an alternative.

    A GEMM of a GEMM of x where x can still be read (two linear layers in a row are one); x + W x; x² · s(x²) where
    x can be read (norms scale x); the cosine of a sine; a rotation of what the same angles rotated; f(f(x)) while y,
    made like x, waits for its f.
    """
    if read.feeds_gemm and candidate.linear_of is not None:
        return any(c.owner is candidate.linear_of.owner for c in reachable)
    if candidate.op < read.first_in_model and any(c.op >= read.first_in_model for c in reachable):
        return True
    if candidate.op in read.made_by_odd or {read.op_name, candidate.maker[0]} == {"aten::cos", "aten::sin"}:
        return True
    if candidate.maker[0] == read.op_name and candidate.source is not None:
        waiting = (c for c in reachable if not c.readers and c is not candidate)
        return any(_made_alike(c, candidate.source) for c in waiting)
    if read.pre_norm_from is not None and candidate.readers and candidate.maker[0] in NORMS:
        return candidate.op >= read.pre_norm_from and candidate.source in reachable
    if read.binary and candidate.power_of is not None and candidate.readers:
        return candidate.power_of in reachable
    return read.binary and any(c.linear_of is not None and c.linear_of.owner is candidate.owner for c in chosen)
