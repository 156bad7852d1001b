"""Times from steps recorded with the plain profiler, put on the graph that a slower pass recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from auditor.collect.dispatched import full_name, is_composite, overloads
from auditor.collect.kernel_links import link_kernels
from auditor.collect.kineto import Trace
from auditor.collect.nesting import Nest, nests
from auditor.graph.model import HostCall, Kernel, Op, OpGraph


class StepDisagreesError(Exception):
    """A timing step ran other ops than the graph step."""


def apply_timing(graph: OpGraph, traces: Iterable[Trace]) -> None:
    """Set each kernel's ``start_us`` and ``dur_us`` to the median over the steps that ran the same ops.

    A step that did not is left out, with a note; if none did, the graph pass's own times stay, with a note.
    """
    agreeing: list[_Step] = []
    count = 0
    for trace in traces:
        count += 1
        try:
            agreeing.append(_times_of_step(graph, trace))
        except StepDisagreesError as reason:
            graph.coverage.notes.append(f"{trace.path.name}: left out of the timing, {reason}")
    if count and not agreeing:
        graph.coverage.notes.append(
            "No timing step ran the ops of the graph step: kernel times are those of the graph pass, and too long."
        )
    for op in graph.ops:
        _set_medians(op, [step.kernels[op.index] for step in agreeing if op.index in step.kernels])
        calls = [step.calls[op.index] for step in agreeing if op.index in step.calls]
        if op.host is not None and calls:
            op.host = HostCall(median(call.start_us for call in calls), median(call.dur_us for call in calls))


@dataclass(slots=True, frozen=True)
class _Step:
    """By the index of an op of the graph: what it launched, and (with a device) when the host called it."""

    kernels: dict[int, tuple[Kernel, ...]]
    calls: dict[int, HostCall]


def _set_medians(op: Op, steps: Sequence[tuple[Kernel, ...]]) -> None:
    same = [kernels for kernels in steps if len(kernels) == len(op.kernels)]
    for i, kernel in enumerate(op.kernels if same else ()):
        kernel.start_us = median(kernels[i].start_us for kernels in same)
        kernel.dur_us = median(kernels[i].dur_us for kernels in same)


def _times_of_step(graph: OpGraph, trace: Trace) -> _Step:
    """What each op of ``graph`` (by index) launched in this step, times relative to its first op."""
    expected: dict[int, list[Op]] = {}
    for op in graph.ops:
        expected.setdefault(op.thread, []).append(op)
    recorded = nests(e for e in trace.cpu_ops if "::" in e.name)
    found: list[_Found] = []
    for ops in expected.values():
        if any(op.kernels for op in ops):  # a worker of an op's own loop that only allocates comes and goes
            found += _match_thread(ops, recorded.values())
    origin = min((f.nest.events[f.index].start for f in found), default=0.0)
    if graph.device_kind != "cpu":
        return _Step(_launched(trace, found, origin), {f.op.index: _as_call(f, origin) for f in found})
    return _Step({f.op.index: (_as_kernel(f, origin),) for f in found if f.op.kernels}, {})


@dataclass(slots=True)
class _Found:
    """An op of the graph and the event that it is in this step."""

    op: Op
    nest: Nest
    index: int


def _match_thread(ops: Sequence[Op], recorded: Iterable[Nest]) -> list[_Found]:
    reasons: list[StepDisagreesError] = []
    for nest in recorded:
        try:
            return _match(ops, nest)
        except StepDisagreesError as reason:
            reasons.append(reason)
    raise reasons[0] if reasons else StepDisagreesError("it holds no ops.")


def _match(ops: Sequence[Op], nest: Nest) -> list[_Found]:
    """Walk the events; take each that is the next expected op and skip what it encloses."""
    found: list[_Found] = []
    inside_until = -1  # depth of the op taken last: deeper events belong to it
    for i, event in enumerate(nest.events):
        if inside_until >= 0 and nest.depth[i] > inside_until:
            continue
        inside_until = -1
        name = event.name.replace("::", ".", 1)
        wanted = ops[len(found)].name if len(found) < len(ops) else "the end of the step"
        if name == wanted:
            found.append(_Found(ops[len(found)], nest, i))
            inside_until = nest.depth[i]
        elif not _may_be_opened(event.name):
            raise StepDisagreesError(
                f"it ran {name} where the graph step ran {wanted} (op {len(found)} of {len(ops)})."
            )
    if len(found) < len(ops):
        raise StepDisagreesError(f"it ended after {len(found)} of {len(ops)} ops.")
    return found


def _may_be_opened(name: str) -> bool:
    """Whether some overload of ``aten::max`` is composite; names that PyTorch does not know are mere annotations."""
    schemas = overloads(name)
    return not schemas or any(is_composite(full_name(schema)) for schema in schemas)


def _as_kernel(found: _Found, origin_us: float) -> Kernel:
    event = found.nest.events[found.index]
    return Kernel(found.op.name, event.start - origin_us, event.dur or 0.0)


def _as_call(found: _Found, origin_us: float) -> HostCall:
    event = found.nest.events[found.index]
    return HostCall(event.start - origin_us, event.dur or 0.0)


def _launched(trace: Trace, found: Sequence[_Found], origin_us: float) -> dict[int, tuple[Kernel, ...]]:
    ops = nests(e for e in trace.cpu_ops if "::" in e.name)
    links = link_kernels(trace, ops, origin_us)
    owner = {id(f.nest.events[f.index]): f.op.index for f in found}
    launched: dict[int, list[Kernel]] = {}
    for (thread, index), kernels in links.by_op.items():
        nest = ops[thread]
        while index >= 0 and id(nest.events[index]) not in owner:
            index = nest.parent[index]
        if index >= 0:
            launched.setdefault(owner[id(nest.events[index])], []).extend(kernels)
    return {op: tuple(sorted(held, key=lambda k: k.start_us)) for op, held in launched.items()}
