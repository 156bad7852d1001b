"""Adds the ops of one thread to a graph, linking every input to the value that it most plausibly is."""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Sequence, Set
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from auditor.collect.candidate import NORMS, Candidate, Read, is_convolved, never_of_itself
from auditor.collect.candidates import Candidates
from auditor.collect.dispatched import is_view
from auditor.collect.foreign_ops import CallForm, ForeignOp, next_compute_start
from auditor.collect.frames import NOWHERE, Frames, Place
from auditor.collect.gradients import Gradients
from auditor.collect.idioms import find_idioms
from auditor.collect.partial import Partial
from auditor.collect.propagate import Effect, effect_of
from auditor.collect.recorded_inputs import Path, Recorded, TensorSpec
from auditor.graph.model import ACCUMULATE, Arg, Op, OpGraph, Value

_PRODUCT = "aten::bmm"
_PREPARED = 8
"""Ops by which ``matmul`` makes batches of its operands: each is expanded, and copied or viewed."""

_COMPILED = "triton_"
_UNKNOWN = TensorSpec("", (), ())

Links = dict[Path, Candidate]
"""What each tensor input was linked to."""


class ThreadLinker:
    """Adds ops in order of their start."""

    def __init__(
        self, graph: OpGraph, thread: int, ops: Sequence[ForeignOp], frames: Frames | None, steps: Sequence[float] = ()
    ) -> None:
        self._graph = graph
        self._thread = thread
        self._device = graph.device_kind
        self._frames = frames
        self._starts = [op.start for op in ops]
        self._frame_of = frames.at(self._starts) if frames else [-1] * len(ops)
        self._names = [op.call.name for op in ops]
        self._next_start = next_compute_start(ops)
        self._candidates = Candidates(frames, self._next_start, steps)
        self._idioms = find_idioms(ops)
        self._awaited = frozenset(self._idioms.product_of.values())
        self._gradients = Gradients(frames)
        self._waiting: dict[int, tuple[Candidate | None, Candidate | None]] = {}
        self._first: dict[float | None, int] = {None: 0}
        self._cut_until: dict[tuple[int, int], int] = {}

    def add(self, foreign: ForeignOp) -> Op:
        """Link ``foreign`` and append it to the graph."""
        call = foreign.call
        number = foreign.number
        frame = self._frame_of[number]
        place = self._frames.place(frame) if self._frames else NOWHERE
        if foreign.phase == "backward" and self._frames:
            self._gradients.enter(foreign, self._frames.node(frame))
        links = self._link(foreign, place)
        effect = _effect(call, links) if call.lists else call.effect
        if call.is_view and not call.inputs.strided:
            effect = _as_it_lies(call, effect, links)
        args: list[Any] = list(call.values)
        for i in call.tensor_args:
            args[i] = self._arg(args[i], (i,), links)
        outputs, made = self._outputs(foreign, effect, args, links)
        op = self._graph.add(
            Op(
                0, call.op_name, tuple(args), outputs, effect.overload, (),
                tuple([v for i in effect.writes if isinstance(v := args[i], Value)]),
                place.module, place.module_class, place.source or foreign.source, foreign.phase, self._thread,
                foreign.sequence, bool(links), scope=foreign.scope,
            )
        )  # fmt: skip
        if effect.partial is not None:
            made.append(self._partly_known(foreign, op, effect.partial, links))
        if foreign.scope != ACCUMULATE:  # a gradient that is complete is read by no node of the backward
            for candidate in made:
                self._candidates.add(candidate, foreign.start)
        if number in self._awaited:
            self._waiting[number] = (_like_first_output(effect, links), made[0] if made else None)
        return op

    def _link(self, foreign: ForeignOp, place: Place) -> Links:
        """Candidate of every tensor input that has one. Optimizers read parameters and gradients, made elsewhere."""
        links: Links = {}
        if foreign.phase == "optimizer":
            return links
        read: Read | None = None
        backward = foreign.phase == "backward" and self._frames is not None
        linked: set[Candidate] = set()
        for path, spec in foreign.call.reads[foreign.linear is not None]:
            reachable = self._reachable(spec, foreign, path, linked, backward=backward)
            if not reachable:
                continue
            feeds_gemm = self._feeds_gemm(foreign, path)
            found = reachable[0]
            if len(reachable) > 1:
                read = read or self._read(foreign, place)
                found = self._candidates.choose(read, reachable, linked, feeds_gemm=feeds_gemm)
            if found.partial is not None:
                if found.partial.name.startswith(_COMPILED):
                    continue  # a compiler's kernel writes where it was told to: which buffer is read is not known
                found = self._settled(found, spec)
            if backward:
                self._gradients.note(foreign, found, self._starts[found.op])
            links[path] = found
            linked.add(found)
        for path, candidate in links.items():
            _note_read(candidate, foreign, feeds_gemm=self._feeds_gemm(foreign, path))
        return self._older_first(foreign, links) if len(links) > 1 else links

    def _older_first(self, foreign: ForeignOp, links: Links) -> Links:
        """Expressions are evaluated from left to right: of two alike operands the left one was made first.

        But what is updated in place was made for that: ``out += identity``; and of a product only what ``matmul``
        expanded and reshaped for it tells, as the weights of an attention are made after its values.
        """
        manner, product = foreign.call.manner, foreign.call.name == _PRODUCT
        if not (manner.pairs or product):
            return links
        first, second = links.get((0,)), links.get((1,))
        if not first or not second or first.spec != second.spec:
            return links
        if product and not all(self._made_for(c, foreign) for c in (first, second)):
            return links
        swapped = (first.op > second.op) != manner.in_place
        return {**links, (0,): second, (1,): first} if swapped else links

    def _made_for(self, candidate: Candidate, foreign: ForeignOp) -> bool:
        """Whether a view was taken just before ``foreign``, with nothing computed since."""
        if foreign.number - candidate.op > _PREPARED:
            return False
        between = self._names[candidate.op : foreign.number]
        return all(is_view(name) or name == "aten::clone" for name in between)

    def _reachable(
        self, spec: TensorSpec, foreign: ForeignOp, path: Path, linked: Set[Candidate], *, backward: bool
    ) -> list[Candidate]:
        """Values that look like ``spec`` and are not linked to the op already; in a list one value may stand twice."""
        time = foreign.start
        looks = spec if spec.dtype else self._candidates.looks_with_shape(spec, time)
        reachable = self._candidates.reachable(looks, time) if looks else []
        if not reachable:
            return reachable
        if reachable[-1].partial is not None and len(reachable) > 1:
            reachable = [c for c in reachable if not _is_idle_slice(c, spec, foreign)] or reachable
        if never_of_itself(foreign.call.manner, spec):
            name = foreign.call.name
            reachable = [c for c in reachable if c.maker[0] != name]
        if backward and reachable:
            reachable = self._gradients.may_read(foreign, path, spec, reachable)
        if not linked:
            return reachable
        others = [c for c in reachable if c not in linked]
        return others if others or len(path) == 1 else reachable

    def _read(self, foreign: ForeignOp, place: Place) -> Read:
        manner = foreign.call.manner
        prefer, avoid = self._waiting.get(self._idioms.product_of.get(foreign.number, -1), (None, None))
        prefer = None if foreign.number in self._idioms.others else prefer
        return Read(
            foreign.call.name, manner.pairs, prefer, avoid,
            self._norm_that_begins(place.module_start) if manner.adds else None,
            self._first_since(place.model_start),
            self._first_since(place.module_start) if manner.adds else 0,
            foreign.phase != "backward" or self._gradients.gathers,
            self._idioms.sums if foreign.number in self._idioms.products else (),
        )  # fmt: skip

    def _first_since(self, begin: float | None) -> int:
        """Number of the first op that starts at ``begin`` or later: ops of one module call ask for the same."""
        known = self._first.get(begin)
        if known is None and begin is not None:
            known = self._first[begin] = bisect_left(self._starts, begin)
        return known or 0

    def _norm_that_begins(self, begin: float | None) -> int | None:
        """Number of the first op of the module call that began then, where that is a norm."""
        first = self._first_since(begin)
        return first if begin is not None and self._names[first] in NORMS else None

    def _feeds_gemm(self, foreign: ForeignOp, path: Path) -> bool:
        """Whether the input is the activation of a linear layer, or a view that the layer takes of it first."""
        if foreign.call.activation == path[0]:
            return True
        linear = foreign.linear
        return linear is not None and foreign.call.is_view and self._next_start[foreign.number] < linear.end

    def _arg(self, value: Recorded, path: Path, links: Links) -> Arg:
        if isinstance(value, TensorSpec):
            linked = links.get(path)
            if linked is not None:
                return linked.value
            number = not value.shape and value.dtype in ("f64", "i64", "bool")  # a Python number lives on the host
            return self._graph.value(value.dtype, value.shape, value.strides, device="cpu" if number else self._device)
        if isinstance(value, tuple):
            return tuple([self._arg(item, (*path, i), links) for i, item in enumerate(value)])
        return value

    def _outputs(
        self, foreign: ForeignOp, effect: Effect, args: Sequence[Arg], links: Links
    ) -> tuple[tuple[Value, ...], list[Candidate]]:
        outputs: list[Value] = []
        made: list[Candidate] = []
        wholes: list[Value] = []
        for i, (spec, alias) in enumerate(zip(effect.outputs, effect.aliases, strict=True)):
            source = args[alias] if alias >= 0 else None
            root: Candidate | None = None
            if not isinstance(source, Value):
                value = self._value(spec)
            elif alias in effect.writes:
                value, whole = self._new_version(spec, source, links.get((alias,)))
                if whole is not None:
                    wholes.append(whole[0])
                    made.append(self._candidate(foreign, effect, *whole, None, {}))
            else:
                origin = links.get((alias,))
                begins = source.offset + effect.offsets[i] if effect.offsets else source.offset
                value, root = self._value(spec, base=source, offset=begins), origin.owner if origin else None
            outputs.append(value)
            looks = foreign.call.inputs.looks(spec) if root is not None else spec  # (a weight's view is nobody else's)
            made.append(self._candidate(foreign, effect, value, looks, root, links))
        return (*outputs, *wholes), made

    def _new_version(
        self, spec: TensorSpec, old: Value, origin: Candidate | None
    ) -> tuple[Value, tuple[Value, TensorSpec] | None]:
        """After an in-place write; where ``old`` is a part of a larger value, a view of that one's new version."""
        if origin is None:
            return self._value(spec, storage=old.storage), None
        self._candidates.retire(origin.owner)
        root = origin.owner
        if root is origin or root.value.numel <= old.numel:
            return self._value(spec, storage=old.storage), None
        whole = self._value(root.spec, storage=old.storage)
        return self._value(spec, base=whole, offset=old.offset), (whole, root.spec)

    def _candidate(
        self, foreign: ForeignOp, effect: Effect, value: Value, spec: TensorSpec, root: Candidate | None, links: Links
    ) -> Candidate:
        name, manner = foreign.call.name, foreign.call.manner
        maker = (name, root.maker[0] if root else name)
        power_of = links.get((0,)) if manner.power else None
        gated = manner.gates and any(c.maker[0] == "aten::sigmoid" for c in links.values())
        return Candidate(
            value, spec, foreign.number, maker, self._frame_of[foreign.number], root,
            _linear_of(foreign.call, links) if foreign.phase != "backward" else None, power_of,
            _like_first_output(effect, links), gated=gated,
        )  # fmt: skip

    def _partly_known(self, foreign: ForeignOp, op: Op, partial: Partial, links: Links) -> Candidate:
        """The output of ``op`` as far as it can be told; it becomes a value when something reads it."""
        source = op.args[partial.alias] if partial.alias >= 0 else None
        origin = links.get((partial.alias,)) if partial.alias >= 0 else None
        nobody = Value(-1, partial.dtype, (), (), producer=op)
        made = self._candidate(foreign, Effect(), nobody, _UNKNOWN, origin.owner if origin else None, links)
        made.partial, made.origin = partial, source if isinstance(source, Value) else None
        return made

    def _settled(self, found: Candidate, spec: TensorSpec) -> Candidate:
        """``found``, of which only a part was known, as the value of ``spec`` that is read."""
        partial, op = found.partial, found.value.producer
        assert partial is not None
        assert op is not None
        settled = replace(found) if partial.many else found
        settled.partial, settled.spec = None, TensorSpec(spec.dtype or partial.dtype, spec.shape, spec.strides)
        settled.value = self._value(settled.spec, base=found.origin, offset=self._begins(found.origin, partial, spec))
        settled.value.producer, settled.value.output_index = op, len(op.outputs)
        op.outputs = (*op.outputs, settled.value)
        self._candidates.settle(settled, partial)
        return settled

    def _begins(self, origin: Value | None, partial: Partial, spec: TensorSpec) -> int:
        """Where in ``origin`` a part begins of which no trace tells: after the one before, as code takes them."""
        cut = partial.cut(spec.shape)
        if origin is None or cut is None:
            return origin.offset if origin is not None else 0
        dim, size = cut
        start = self._cut_until.get((origin.id, dim), 0)
        start = start if start + size <= origin.shape[dim] else 0
        self._cut_until[origin.id, dim] = start + size
        return origin.offset + start * origin.strides[dim]

    def _value(self, spec: TensorSpec, *, storage: int = -1, base: Value | None = None, offset: int = 0) -> Value:
        return self._graph.value(
            spec.dtype, spec.shape, spec.strides, offset=offset, storage=storage, device=self._device, base=base
        )  # fmt: skip


def _note_read(candidate: Candidate, foreign: ForeignOp, *, feeds_gemm: bool) -> None:
    if foreign.start < candidate.first_read:
        candidate.first_read = foreign.start
    candidate.read += 1
    if feeds_gemm:
        candidate.gemms += 1
    if foreign.call.manner.normalises and is_convolved(candidate):
        candidate.normed = True


def _effect(call: CallForm, links: Links) -> Effect:
    """Kineto does not write the dtype of tensors in a list; it is that of the values they were linked to."""
    listed = next((c.spec.dtype for path, c in links.items() if len(path) > 1), "")
    return _effect_on_list(call, listed) if listed else call.effect


@lru_cache(maxsize=65536)
def _effect_on_list(call: CallForm, dtype: str) -> Effect:
    return effect_of(call.name, call.inputs, dtype)


def _as_it_lies(call: CallForm, effect: Effect, links: Links) -> Effect:
    """The view of what the input was linked to, in its layout, which was not recorded."""
    source = links.get((0,))
    written = call.inputs.values[0] if call.inputs.values else None
    if source is None or not isinstance(written, TensorSpec) or not effect.known:
        return effect
    strides = source.value.strides
    if strides == written.strides or len(strides) != len(written.shape):
        return effect
    made = _effect_as_it_lies(call, strides)
    return made if made.known and len(made.outputs) == len(effect.outputs) else effect


@lru_cache(maxsize=65536)
def _effect_as_it_lies(call: CallForm, strides: tuple[int, ...]) -> Effect:
    first, *rest = call.inputs.values
    assert isinstance(first, TensorSpec)
    values = (TensorSpec(first.dtype, first.shape, strides), *rest)
    return effect_of(call.name, dataclasses.replace(call.inputs, values=values))


def _is_idle_slice(candidate: Candidate, spec: TensorSpec, foreign: ForeignOp) -> bool:
    """Whether it would be a slice that changes nothing, where ``foreign`` is not the next one of the same brackets.

    ``x[:, a:b]`` slices its first dimension from end to end before the second; a backward pass never does.
    """
    if candidate.partial is None or not candidate.partial.keeps(spec.shape):
        return False
    in_brackets = foreign.call.is_view and foreign.phase != "backward" and candidate.op == foreign.number - 1
    return not in_brackets


def _linear_of(call: CallForm, links: Links) -> Candidate | None:
    """The activation whose linear image the op makes: a GEMM with a weight, or a view, cast or scaling of one."""
    if not links:
        return None
    if call.activation >= 0:
        weight = links.get((call.activation + 1,))
        is_weight = weight is None or (weight.value.base is not None and weight.root is None)
        return links.get((call.activation,)) if is_weight else None
    origin = links.get((0,))
    if origin is not None and origin.linear_of is not None and (call.is_view or call.manner.keeps_linear):
        return origin.linear_of if call.lone else None
    return None


def _like_first_output(effect: Effect, links: Links) -> Candidate | None:
    """The input that has the shape of the output: ``x`` of ``x·cos``."""
    if not links or not effect.outputs:
        return None
    shape = effect.outputs[0].shape
    for candidate in links.values():
        if candidate.spec.shape == shape:
            return candidate
    return None
