"""Which op launched which kernel: correlation id → runtime call → innermost op around that call.

Kernels are never matched by ``External id``: in the 1.12-2.2 era it equals the correlation id and names wrong ops.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from auditor.collect.kineto import Event, LaunchArgs, Trace, decode_launch
from auditor.collect.launches import Launches, Sought
from auditor.collect.nesting import Nest, Thread
from auditor.graph.model import Coverage, HostCall, Kernel, Op, OpGraph

Unlinked = Literal["before_window", "graph_replayed", "outside_ops", "unattributed"]


@dataclass(slots=True)
class Links:
    """``by_op`` maps a thread and the index of one of its events to what that op launched, in launch order."""

    by_op: dict[tuple[Thread, int], list[Kernel]] = field(default_factory=dict)
    unlinked: list[Kernel] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


def link_kernels(trace: Trace, ops: Mapping[Thread, Nest], origin_us: float) -> Links:
    """Give every kernel of ``trace`` to one event of ``ops``, or to ``unlinked`` with its reason counted.

    Copies between memories join the op that launched them (a device-to-host one means that the host waited) and are
    not counted as kernels. Times become relative to ``origin_us``.
    """
    links = Links(coverage=Coverage(kernels=len(trace.kernels)))
    device_events = [(event, decode_launch(event)) for event in (*trace.kernels, *trace.memory)]
    launches = Launches(trace, device_events)
    sought = [launches.of(event, args) for event, args in device_events]
    owner = _owners((found.launch for found in sought if found.launch is not None), ops)
    order = sorted(range(len(sought)), key=lambda i: device_events[i][0].start)
    for (event, args), found in ((device_events[i], sought[i]) for i in order):
        kernel = _kernel(event, args, origin_us)
        replayed = launches.is_replay(found, args)
        home = None if replayed else owner.get(id(found.launch))
        if event.cat is not None and event.cat.lower() != "kernel":
            if home is not None and event.name.startswith("Memcpy"):
                links.by_op.setdefault(home, []).append(kernel)
        elif home is not None:
            links.by_op.setdefault(home, []).append(kernel)
            links.coverage.linked += 1
        else:
            kernel.launched_us = None if found.launch is None else found.launch.start - origin_us
            links.unlinked.append(kernel)
            _count(links.coverage, _why_unlinked(replayed, found))
    return links


def attach_kernels(
    graph: OpGraph,
    trace: Trace,
    ops: Mapping[Thread, Nest],
    pairs: Sequence[tuple[Op, Event]],
    silent: Container[int],
    links: Links | None = None,
) -> None:
    """Give the kernels of ``trace`` to the ops of ``graph``; ``pairs`` holds each op with its own event.

    ``ops`` are the nests of the trace's ops; ``links``, where they are known already, which of them launched what.
    Without a device each op counts as one kernel, but for those whose index is in ``silent``.
    """
    graph.device_kind, graph.device_name = trace.device_kind, trace.device_name
    graph.device_properties = trace.device.properties
    origin = origin_of(trace)
    if graph.device_kind != "cpu":
        _attach_launched(graph, links or link_kernels(trace, ops, origin), ops, pairs, origin)
        return
    for op, event in pairs:
        if op.index not in silent:
            op.kernels = (Kernel(op.name, event.start - origin, event.dur or 0.0),)
    graph.coverage.kernels = graph.coverage.linked = graph.kernels


def origin_of(trace: Trace) -> float:
    """When a graph's clock begins, on the trace's: its first op or kernel. Microseconds."""
    return min((event.start for event in (*trace.cpu_ops, *trace.kernels)), default=0.0)


def _attach_launched(
    graph: OpGraph, links: Links, ops: Mapping[Thread, Nest], pairs: Sequence[tuple[Op, Event]], origin_us: float
) -> None:
    op_of = {id(event): op for op, event in pairs}
    for (thread, index), kernels in links.by_op.items():
        op = _op_around(ops[thread], index, op_of)
        if op is not None:
            op.kernels += tuple(kernels)
            continue
        launched = [kernel for kernel in kernels if not kernel.is_transfer]
        for kernel in launched:
            kernel.launched_us = ops[thread].starts[index] - origin_us
        links.unlinked += launched
        links.coverage.linked -= len(launched)
        links.coverage.outside_ops += len(launched)
    graph.unlinked, graph.coverage = links.unlinked, links.coverage
    for op, event in pairs:
        op.host = HostCall(event.start - origin_us, event.dur or 0.0)
        if len(op.kernels) > 1:
            op.kernels = tuple(sorted(op.kernels, key=lambda k: k.start_us))


def _op_around(nest: Nest, index: int, op_of: Mapping[int, Op]) -> Op | None:
    while index >= 0:
        op = op_of.get(id(nest.events[index]))
        if op is not None:
            return op
        index = nest.parent[index]
    return None


def _owners(launches: Iterable[Event], ops: Mapping[Thread, Nest]) -> dict[int, tuple[Thread, int]]:
    """The innermost op event around each launch, by the launch's ``id()``."""
    threads: dict[Thread, list[tuple[float, int]]] = {}
    for event in launches:
        if event.thread in ops:
            threads.setdefault(event.thread, []).append((event.start, id(event)))
    owner: dict[int, tuple[Thread, int]] = {}
    for thread, held in threads.items():
        held.sort()
        for (_, launch), i in zip(held, ops[thread].enclosing([t for t, _ in held]), strict=True):
            if i >= 0:
                owner[launch] = (thread, i)
    return owner


def _why_unlinked(replayed: bool, found: Sought) -> Unlinked:
    if replayed:
        return "graph_replayed"
    if found.launch is not None:
        return "outside_ops"
    return "unattributed" if found.why == "unclear" else "before_window"


def _count(coverage: Coverage, why: Unlinked) -> None:
    setattr(coverage, why, getattr(coverage, why) + 1)


def _kernel(event: Event, args: LaunchArgs, origin_us: float) -> Kernel:
    stream = args.stream if isinstance(args.stream, int) else 0
    return Kernel(event.name, event.start - origin_us, event.dur or 0.0, stream, args.device)
