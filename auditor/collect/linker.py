"""Adds the ops of one thread to a graph, linking every input to the value that it most plausibly is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import replace

from auditor.collect.candidates import NORMS, Candidate, Candidates, Read
from auditor.collect.dispatched import bare
from auditor.collect.foreign_ops import ForeignOp, next_compute_start
from auditor.collect.frames import Frames
from auditor.collect.idioms import find_idioms
from auditor.collect.parameters import is_parameter
from auditor.collect.propagate import effect_of
from auditor.collect.recorded_inputs import Recorded, TensorSpec
from auditor.graph.model import Arg, Op, OpGraph, Value

_ACTIVATION_OF_GEMM = {"mm": 0, "addmm": 1}
_KEEPS_LINEAR = frozenset({"_to_copy", "mul", "div", "clone"})
_POWERS = frozenset({"pow", "square", "abs"})
_PAIRS = frozenset(["add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_", "maximum", "minimum"])

Path = tuple[int, ...]
"""Position of an argument; of an element of a list argument: two numbers."""


class ThreadLinker:
    """Adds ops in order of their start."""

    def __init__(
        self, graph: OpGraph, thread: int, ops: Sequence[ForeignOp], frames: Frames | None, steps: Sequence[float] = ()
    ) -> None:
        self._graph = graph
        self._thread = thread
        self._device = graph.device_kind
        self._frames = frames
        self._frame_of = frames.at([op.event.start for op in ops]) if frames else [-1] * len(ops)
        self._starts = [op.event.start for op in ops]
        self._names = [op.name for op in ops]
        self._next_start = next_compute_start(ops)
        self._candidates = Candidates(frames, self._next_start, steps)
        self._idioms = find_idioms(ops)
        self._waiting: dict[int, tuple[Candidate | None, Candidate | None]] = {}

    def add(self, foreign: ForeignOp) -> Op:
        """Link ``foreign`` and append it to the graph."""
        links = self._link(foreign)
        foreign = _with_list_dtype(foreign, links)
        args = tuple(self._arg(value, (i,), links) for i, value in enumerate(foreign.inputs.values))
        for path, candidate in links.items():
            candidate.readers.append(foreign.event.start)
            candidate.gemms += self._feeds_gemm(foreign, path)
        outputs, made = self._outputs(foreign, args, links)
        frame = self._frame_of[foreign.number]
        module, class_ = self._frames.module(frame) if self._frames else ("", "")
        op = self._graph.add(
            Op(
                0, foreign.op_name, args, outputs, foreign.effect.overload,
                mutates=tuple(v for i in foreign.effect.writes if isinstance(v := args[i], Value)),
                module=module, module_class=class_, source=self._frames.source(frame) if self._frames else None,
                phase=foreign.phase, thread=self._thread, sequence=foreign.sequence, inferred=bool(links),
            )
        )  # fmt: skip
        for candidate in made:
            self._candidates.add(candidate, foreign.event.start)
        self._waiting[foreign.number] = (_like_first_output(foreign, links), made[0] if made else None)
        return op

    def _link(self, foreign: ForeignOp) -> dict[Path, Candidate]:
        """Candidate of every tensor input that has one. Optimizers read parameters and gradients, made elsewhere."""
        links: dict[Path, Candidate] = {}
        if foreign.phase == "optimizer":
            return links
        for path, spec in _tensors(foreign.inputs.values):
            if is_parameter(foreign.name, path[0], in_linear=foreign.linear is not None):
                continue
            looks = spec if spec.dtype else self._candidates.looks_with_shape(spec, foreign.event.start)
            candidate = self._candidates.choose(self._read(foreign, path, looks), [*links.values()]) if looks else None
            if candidate is not None:
                links[path] = candidate
        return _older_first(foreign, links)

    def _read(self, foreign: ForeignOp, path: Path, spec: TensorSpec) -> Read:
        prefer, avoid = self._waiting.get(self._idioms.product_of.get(foreign.number, -1), (None, None))
        rotated = self._idioms.sums if foreign.number in self._idioms.products else frozenset[int]()
        return Read(
            spec, foreign.name, foreign.event.start, feeds_gemm=self._feeds_gemm(foreign, path),
            binary=bare(foreign.name) in _PAIRS, listed=len(path) > 1,
            pre_norm_from=self._norm_that_begins(foreign) if bare(foreign.name) in ("add", "add_") else None,
            first_in_model=self._first_in_model(foreign), prefer=prefer, avoid=avoid, made_by_odd=rotated,
        )  # fmt: skip

    def _first_in_model(self, foreign: ForeignOp) -> int:
        begin = self._frames.model_start(self._frame_of[foreign.number]) if self._frames else None
        return bisect_left(self._starts, begin) if begin is not None else 0

    def _norm_that_begins(self, foreign: ForeignOp) -> int | None:
        """Number of the first op of the module call around ``foreign``, where that is a norm."""
        begin = self._frames.module_start(self._frame_of[foreign.number]) if self._frames else None
        first = bisect_left(self._starts, begin) if begin is not None else None
        return first if first is not None and self._names[first] in NORMS else None

    def _feeds_gemm(self, foreign: ForeignOp, path: Path) -> bool:
        """Whether the input is the activation of a linear layer, or a view that the layer takes of it first."""
        if _ACTIVATION_OF_GEMM.get(bare(foreign.name)) == path[0]:
            return True
        linear = foreign.linear
        return linear is not None and foreign.is_view and self._next_start[foreign.number] < linear.end

    def _arg(self, value: Recorded, path: Path, links: dict[Path, Candidate]) -> Arg:
        if isinstance(value, tuple):
            return tuple(self._arg(item, (*path, i), links) for i, item in enumerate(value))
        if not isinstance(value, TensorSpec):
            return value
        if path in links:
            return links[path].value
        number = not value.shape and value.dtype in ("f64", "i64", "bool")  # a Python number lives on the host
        return self._graph.value(value.dtype, value.shape, value.strides, device="cpu" if number else self._device)

    def _outputs(
        self, foreign: ForeignOp, args: Sequence[Arg], links: dict[Path, Candidate]
    ) -> tuple[tuple[Value, ...], list[Candidate]]:
        outputs: list[Value] = []
        made: list[Candidate] = []
        for spec, alias in zip(foreign.effect.outputs, foreign.effect.aliases, strict=True):
            source = args[alias] if alias >= 0 else None
            origin = links.get((alias,))
            if not isinstance(source, Value):
                value, root = self._value(spec), None
            elif alias in foreign.effect.writes:
                value, root = self._new_version(spec, source, origin, foreign, made), None
            else:
                value, root = self._value(spec, base=source), origin.owner if origin else None
            outputs.append(value)
            made.append(self._candidate(foreign, value, spec, root, links))
        wholes = [c.value for c in made if c.value not in outputs]
        return (*outputs, *wholes), made

    def _new_version(
        self, spec: TensorSpec, old: Value, origin: Candidate | None, foreign: ForeignOp, made: list[Candidate]
    ) -> Value:
        """After an in-place write; where ``old`` is a part of a larger value, a view of that one's new version."""
        if origin is None:
            return self._value(spec, storage=old.storage)
        self._candidates.retire(origin.owner)
        root = origin.owner
        if root is origin or root.value.numel <= old.numel:
            return self._value(spec, storage=old.storage)
        whole = self._value(root.spec, storage=old.storage)
        made.append(self._candidate(foreign, whole, root.spec, None, {}))
        return self._value(spec, base=whole)

    def _candidate(
        self, foreign: ForeignOp, value: Value, spec: TensorSpec, root: Candidate | None, links: dict[Path, Candidate]
    ) -> Candidate:
        maker = (foreign.name, root.maker[0] if root else foreign.name)
        frame = self._frame_of[foreign.number]
        power_of = links.get((0,)) if bare(foreign.name) in _POWERS else None
        return Candidate(
            value, spec, foreign.number, maker, frame, root, _linear_of(foreign, links), power_of,
            _like_first_output(foreign, links),
        )  # fmt: skip

    def _value(self, spec: TensorSpec, *, storage: int = -1, base: Value | None = None) -> Value:
        return self._graph.value(
            spec.dtype, spec.shape, spec.strides, storage=storage, device=self._device, base=base
        )  # fmt: skip


def _tensors(values: Sequence[Recorded], outer: Path = ()) -> Iterator[tuple[Path, TensorSpec]]:
    for i, value in enumerate(values):
        if isinstance(value, TensorSpec):
            yield (*outer, i), value
        elif isinstance(value, tuple):
            yield from _tensors(value, (*outer, i))


def _with_list_dtype(foreign: ForeignOp, links: dict[Path, Candidate]) -> ForeignOp:
    """Kineto does not write the dtype of tensors in a list; it is that of the values they were linked to."""
    listed = next((c.spec.dtype for path, c in links.items() if len(path) > 1), "")
    if not listed:
        return foreign
    return replace(foreign, effect=effect_of(foreign.name, foreign.inputs, listed))


def _older_first(foreign: ForeignOp, links: dict[Path, Candidate]) -> dict[Path, Candidate]:
    """Expressions are evaluated from left to right: of two alike operands the left one was made first."""
    first, second = links.get((0,)), links.get((1,))
    if bare(foreign.name) in _PAIRS and first and second and first.spec == second.spec and first.op > second.op:
        return {**links, (0,): second, (1,): first}
    return links


def _linear_of(foreign: ForeignOp, links: dict[Path, Candidate]) -> Candidate | None:
    """The activation whose linear image the op makes: a GEMM with a weight, or a view, cast or scaling of one."""
    position = _ACTIVATION_OF_GEMM.get(bare(foreign.name))
    if position is not None:
        weight = links.get((position + 1,))
        is_weight = weight is None or (weight.value.base is not None and weight.root is None)
        return links.get((position,)) if is_weight else None
    tensors = [spec for _, spec in _tensors(foreign.inputs.values) if spec.shape]
    if len(tensors) == 1 and (foreign.is_view or bare(foreign.name) in _KEEPS_LINEAR):
        origin = links.get((0,))
        return origin.linear_of if origin else None
    return None


def _like_first_output(foreign: ForeignOp, links: dict[Path, Candidate]) -> Candidate | None:
    """The input that has the shape of the output: ``x`` of ``x·cos``."""
    shape = foreign.effect.outputs[0].shape if foreign.effect.outputs else None
    return next((c for c in links.values() if c.spec.shape == shape), None)
