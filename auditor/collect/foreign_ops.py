"""Dispatched ops of a trace that has no execution trace: found by nesting and names, composite ops opened."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import msgspec

from auditor.collect.candidate import Manner, manner_of
from auditor.collect.closures import BACKWARD, OPTIMIZER, is_backward_node, scope_of
from auditor.collect.dispatched import (
    bare,
    full_name,
    is_composite,
    is_view,
    namespace,
    overloads,
    schema_for,
)
from auditor.collect.frames import source_in_stack
from auditor.collect.kineto import Event, OpArgs, Trace, decode_op
from auditor.collect.nesting import Nest, Thread, nests
from auditor.collect.parameters import is_parameter
from auditor.collect.propagate import Effect, effect_of
from auditor.collect.recorded_inputs import (
    Path,
    Recorded,
    RecordedInputs,
    TensorSpec,
    decode_inputs,
    raw_inputs,
    tensors_in,
)
from auditor.graph.model import Phase, Source
from auditor.graph.ops import kind_of
from auditor.graph.signatures import with_dtype_names

_ACTIVATION_OF_GEMM = {"mm": 0, "addmm": 1}
_NOT_OPS = frozenset({"", "autograd", "torch", "profiler"})


Tensors = tuple[tuple[Path, TensorSpec], ...]


@dataclass(slots=True, frozen=True, eq=False)
class CallForm:
    """What calls of one op with alike inputs share: a step makes few of them, again and again."""

    name: str
    manner: Manner
    op_name: str
    """``aten.add``, as the op graph writes ``aten::add``."""
    inputs: RecordedInputs
    values: tuple[Recorded, ...]
    """Of :attr:`inputs`, as the op graph writes them: dtypes by name."""
    effect: Effect
    is_view: bool
    dispatched: bool | None
    """``None``: where it calls no other op."""
    tensor_args: tuple[int, ...]
    """Positions of the arguments that are tensors or hold some."""
    reads: tuple[Tensors, Tensors]
    """The tensors that something may have made, which weights are not: of a call outside of a linear layer, and in one.
    """
    activation: int
    """Position of the activation of a linear layer, -1 where the op is none."""
    lists: bool
    """Whether an argument is a list of tensors."""
    lone: bool
    """Whether exactly one of its tensors is more than a number."""


class ForeignOp(msgspec.Struct, eq=False, gc=False):
    """One dispatched op. ``number`` counts those of its thread; ``linear`` is the ``aten::linear`` around it.

    ``sequence`` is the autograd sequence number: in the backward pass that of the node that runs. ``source`` is the
    user's line by the call stack that older profilers wrote into the op.
    """

    number: int
    event: Event
    start: float
    """Of the event, in microseconds."""
    call: CallForm
    phase: Phase
    linear: Event | None
    sequence: int
    scope: str = ""
    source: Source | None = None


def foreign_ops(
    trace: Trace, ops: Mapping[Thread, Nest], launching: Container[int] | None = None
) -> dict[Thread, list[ForeignOp]]:
    """Dispatched ops of each thread, by start time; ``ops`` are the nests of the trace's ops.

    ``launching``: identities of the events that launched kernels themselves, ``None`` where there are no kernels. What
    launches is an op, whatever it is called; an op that nobody knows, and that calls others, is a range around these.
    """
    optimizer = [event for event in trace.annotations if event.name.startswith(OPTIMIZER)]
    backward = sorted(e.start for e in trace.cpu_ops if is_backward_node(e.name)) if optimizer else []
    threads = nests(trace.cpu_ops + optimizer) if optimizer else ops
    found = {thread: list(_of_thread(nest, backward, launching)) for thread, nest in threads.items()}
    return {thread: ops for thread, ops in found.items() if ops}


class _Around(msgspec.Struct, eq=False, gc=False):
    """State of an open event that its children inherit."""

    phase: Phase = "forward"
    linear: Event | None = None
    sequence: int = -1
    taken: bool = False
    scope: str = ""
    closure: float = 0.0
    """Of an optimizer's step: when the last backward node in it starts; what started before ran in its closure."""

    def at(self, start: float) -> _Around:
        """What a child that starts at ``start`` inherits."""
        return _Around() if start < self.closure else self


def _is_op(call: CallForm, launches: bool | None, calls_others: bool) -> bool:
    """Whether a call is an op of its own; ``launches`` is ``None`` where no kernels are known."""
    if launches or not calls_others:
        return call.dispatched is not False or bool(launches)
    return bool(call.dispatched) and (launches is None or _is_known(call.name))


_BACKWARD = _Around("backward")


def _of_thread(nest: Nest, backward: list[float], launching: Container[int] | None) -> Iterator[ForeignOp]:
    """``backward``: when backward nodes start, of all threads, in order."""
    state: list[_Around] = []
    outside = _Around()
    has_children = set(nest.parent)
    number = 0
    for i, (event, parent) in enumerate(zip(nest.events, nest.parent, strict=True)):
        outer = state[parent] if parent >= 0 else outside
        if outer.closure:
            outer = outer.at(event.start)
        if outer.taken:
            state.append(outer)
            continue
        args = decode_op(event)
        if parent < 0:
            outer = outside = _between_nodes(event, args, outside)
        inner = _enter(event, args, outer, backward)
        state.append(inner)
        name = _op_name(event.name, args.kernel_backend)
        launches = launching is not None and id(event) in launching
        call = _call(name or event.name, *raw_inputs(args)) if name or launches else None
        if call and _is_op(call, launches if launching is not None else None, i in has_children):
            inner.taken = bool(name)
            source = source_in_stack(args)
            yield ForeignOp(
                number, event, event.start, call, outer.phase, outer.linear, inner.sequence, outer.scope, source
            )
            number += 1


def _between_nodes(event: Event, args: OpArgs, outside: _Around) -> _Around:
    """Around ``event``, which nothing is around: where nodes have no ranges, gradients are added up between them.

    Forward ops have numbers, and a range ends the pass.
    """
    if is_backward_node(event.name):
        return outside if event.name.startswith(BACKWARD) else _BACKWARD
    ends = outside is _BACKWARD and (args.sequence_number >= 0 or "::" not in event.name)
    return _Around() if ends else outside


def _enter(event: Event, args: OpArgs, outer: _Around, starts: list[float]) -> _Around:
    if event.name.startswith(OPTIMIZER):
        before = bisect_left(starts, event.end)
        last = starts[before - 1] if before else 0.0
        return _Around("optimizer", scope=scope_of(event.name), closure=last if last > event.start else 0.0)
    if is_backward_node(event.name):
        known = args.sequence_number if args.sequence_number >= 0 else outer.sequence
        return _Around("backward", sequence=known, scope=scope_of(event.name) or outer.scope)
    linear = event if event.name == "aten::linear" else outer.linear
    backward = outer.phase == "backward"
    scope = scope_of(event.name) or outer.scope
    return _Around(outer.phase, linear, outer.sequence if backward else args.sequence_number, scope=scope)


@lru_cache(maxsize=65536)
def _op_name(name: str, backend: str) -> str:
    if backend == "triton" and "::" not in name:
        return f"triton::{name}"
    return "" if namespace(name) in _NOT_OPS or "::" not in name else name


@lru_cache(maxsize=65536)
def _call(name: str, types: bytes, dims: bytes, strides: bytes, concrete: bytes) -> CallForm:
    inputs = decode_inputs(types, dims, strides, concrete)
    list_dtype = next((v.dtype for v in inputs.values if isinstance(v, TensorSpec)), "f32")
    schema = schema_for(name, inputs.types) if inputs.known else None
    dispatched = _is_dispatched(name) if schema is None else not is_composite(full_name(schema))
    effect = Effect() if dispatched is False else effect_of(name, inputs, list_dtype)
    view = is_view(name) or (schema is not None and _aliases_only(effect))
    given = _written_only(schema)
    tensors = tuple((path, spec) for path, spec in tensors_in(inputs.values) if path[0] not in given)
    outside, in_linear = (
        tuple((path, spec) for path, spec in tensors if not is_parameter(name, path[0], in_linear=linear))
        for linear in (False, True)
    )
    op_name = name.replace("::", ".", 1)
    return CallForm(
        name, manner_of(name), op_name, inputs, with_dtype_names(op_name, inputs.values), effect, view, dispatched,
        tuple(dict.fromkeys((*(path[0] for path, _ in tensors), *given))), (outside, in_linear),
        _ACTIVATION_OF_GEMM.get(bare(name), -1), any(len(path) > 1 for path, _ in tensors),
        sum(bool(spec.shape) for _, spec in tensors) == 1,
    )  # fmt: skip


def _written_only(schema: Any) -> frozenset[int]:
    """Positions of the tensors that a call was given for its results (``out=``): what they held is not read."""
    if schema is None:
        return frozenset()
    return frozenset(
        i for i, a in enumerate(schema.arguments) if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write
    )


@cache
def _is_known(name: str) -> bool:
    """Whether this PyTorch has an op of that name, or it is a collective, which nobody takes for a range."""
    return bool(overloads(name)) or kind_of(name.replace("::", ".", 1)) == "collective"


@cache
def _is_dispatched(name: str) -> bool | None:
    """By every overload that reads only: no, where all are composite; ``None`` where some are."""
    known = {is_composite(full_name(s)) for s in overloads(name) if not _is_out(s.overload_name)}
    return True if not known or known == {False} else None if len(known) == 2 else False


def _is_out(overload: str) -> bool:
    return overload == "out" or overload.endswith("_out")


def _aliases_only(effect: Effect) -> bool:
    return bool(effect.aliases) and not effect.writes and all(a >= 0 for a in effect.aliases)


def next_compute_start(ops: Sequence[ForeignOp]) -> list[float]:
    """For each op, when the next one that is no view starts; infinite after the last."""
    starts: list[float] = []
    following = float("inf")
    for op in reversed(ops):
        starts.append(following)
        if not op.call.is_view:
            following = op.start
    return starts[::-1]


def kinds_without_outputs(ops: Iterable[ForeignOp]) -> list[str]:
    """Names of ops whose outputs could not be told, most frequent first."""
    counts = Counter(bare(op.call.name) for op in ops if not op.call.effect.known)
    return [name for name, _ in counts.most_common()]
