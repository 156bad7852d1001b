"""Dispatched ops of a trace that has no execution trace: found by nesting and names, composite ops opened."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from auditor.collect.closures import BACKWARD, OPTIMIZER
from auditor.collect.dispatched import (
    bare,
    full_name,
    is_composite,
    is_view,
    namespace,
    overloads,
    schema_for,
)
from auditor.collect.kineto import Event, OpArgs, Trace, decode_op
from auditor.collect.nesting import Nest, Thread, nests
from auditor.collect.propagate import Effect, effect_of
from auditor.collect.recorded_inputs import RecordedInputs, TensorSpec, decode_inputs
from auditor.graph.model import Phase

_NOT_OPS = frozenset({"", "autograd", "torch", "profiler"})


@dataclass(slots=True)
class ForeignOp:
    """One dispatched op. ``number`` counts those of its thread; ``linear`` is the ``aten::linear`` around it.

    ``sequence`` is the autograd sequence number: in the backward pass that of the node that runs.
    """

    number: int
    event: Event
    name: str
    inputs: RecordedInputs
    effect: Effect
    phase: Phase
    linear: Event | None
    sequence: int
    is_view: bool

    @property
    def op_name(self) -> str:
        return self.name.replace("::", ".", 1)


def foreign_ops(trace: Trace) -> dict[Thread, list[ForeignOp]]:
    """Dispatched ops of each thread, by start time."""
    optimizer = [event for event in trace.annotations if event.name.startswith(OPTIMIZER)]
    backward = sorted(e.start for e in trace.cpu_ops if e.name.startswith(BACKWARD))
    found = {thread: list(_of_thread(nest, backward)) for thread, nest in nests(trace.cpu_ops + optimizer).items()}
    return {thread: ops for thread, ops in found.items() if ops}


@dataclass(slots=True)
class _Around:
    """State of an open event that its children inherit."""

    phase: Phase = "forward"
    linear: Event | None = None
    sequence: int = -1
    taken: bool = False
    closure: float = 0.0
    """Of an optimizer's step: when the last backward node in it starts; what started before ran in its closure."""

    def at(self, start: float) -> _Around:
        """What a child that starts at ``start`` inherits."""
        return _Around() if start < self.closure else self


def _of_thread(nest: Nest, backward: list[float]) -> Iterator[ForeignOp]:
    """``backward``: when backward nodes start, of all threads, in order."""
    state: list[_Around] = []
    has_children = set(nest.parent)
    number = 0
    for i, event in enumerate(nest.events):
        outer = state[nest.parent[i]].at(event.start) if nest.parent[i] >= 0 else _Around()
        if outer.taken:
            state.append(outer)
            continue
        args = decode_op(event)
        inner = _enter(event, args, outer, backward)
        name = _op_name(event, args)
        if name and _is_dispatched(name, decode_inputs(args), i in has_children):
            inner.taken = True
            yield _make(number, event, name, args, outer, inner)
            number += 1
        state.append(inner)


def _enter(event: Event, args: OpArgs, outer: _Around, starts: list[float]) -> _Around:
    if event.name.startswith(OPTIMIZER):
        before = bisect_left(starts, event.end)
        last = starts[before - 1] if before else 0.0
        return _Around("optimizer", closure=last if last > event.start else 0.0)
    if event.name.startswith(BACKWARD):
        return _Around("backward", sequence=args.sequence_number)
    linear = event if event.name == "aten::linear" else outer.linear
    backward = outer.phase == "backward"
    return _Around(outer.phase, linear, outer.sequence if backward else args.sequence_number)


def _op_name(event: Event, args: OpArgs) -> str:
    if args.kernel_backend == "triton" and "::" not in event.name:
        return f"triton::{event.name}"
    return "" if namespace(event.name) in _NOT_OPS or "::" not in event.name else event.name


def _is_dispatched(name: str, inputs: RecordedInputs, has_children: bool) -> bool:
    """Composite by the overload that fits the inputs; where none can be told, by every overload that reads only."""
    schema = schema_for(name, inputs.types) if inputs.known else None
    if schema is not None:
        return not is_composite(full_name(schema))
    known = {is_composite(full_name(s)) for s in overloads(name) if not _is_out(s.overload_name)}
    return not known or known == {False} or (len(known) == 2 and not has_children)


def _is_out(overload: str) -> bool:
    return overload == "out" or overload.endswith("_out")


def _make(number: int, event: Event, name: str, args: OpArgs, outer: _Around, inner: _Around) -> ForeignOp:
    inputs = decode_inputs(args)
    list_dtype = next((v.dtype for v in inputs.values if isinstance(v, TensorSpec)), "f32")
    effect = effect_of(name, inputs, list_dtype)
    schema = schema_for(name, inputs.types) if inputs.known else None
    view = is_view(name) or (schema is not None and _aliases_only(effect))
    return ForeignOp(number, event, name, inputs, effect, outer.phase, outer.linear, inner.sequence, view)


def _aliases_only(effect: Effect) -> bool:
    return bool(effect.aliases) and not effect.writes and all(a >= 0 for a in effect.aliases)


def next_compute_start(ops: Sequence[ForeignOp]) -> list[float]:
    """For each op, when the next one that is no view starts; infinite after the last."""
    starts: list[float] = []
    following = float("inf")
    for op in reversed(ops):
        starts.append(following)
        if not op.is_view:
            following = op.event.start
    return starts[::-1]


def kinds_without_outputs(ops: Iterable[ForeignOp]) -> list[str]:
    """Names of ops whose outputs could not be told, most frequent first."""
    counts: dict[str, int] = {}
    for op in ops:
        if not op.effect.known:
            counts[bare(op.name)] = counts.get(bare(op.name), 0) + 1
    return sorted(counts, key=lambda name: -counts[name])
