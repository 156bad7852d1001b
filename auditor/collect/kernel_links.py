"""Which op launched which kernel: correlation id → runtime call → innermost op around that call.

Kernels are never matched by ``External id``: in the 1.12-2.2 era it equals the correlation id and names wrong ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from auditor.collect.kineto import Event, LaunchArgs, Trace, decode_launch
from auditor.collect.nesting import Nest, Thread
from auditor.graph.model import Coverage, HostCall, Kernel, Op, OpGraph

Unlinked = Literal["before_window", "graph_replayed", "outside_ops"]

GRAPH_LAUNCHES = frozenset({"cudaGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch", "hipGraphLaunch"})


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
    launch_of = _launches(trace)
    owner = _owners(launch_of, ops)
    kernels = [(event, decode_launch(event)) for event in trace.kernels]
    replayed = _replayed((args.correlation for _, args in kernels), launch_of)
    kernels += [(event, decode_launch(event)) for event in trace.memory]
    for event, args in sorted(kernels, key=lambda held: held[0].start):
        kernel = _kernel(event, args, origin_us)
        home = owner.get(args.correlation)
        if event.cat is not None and event.cat.lower() != "kernel":
            if home is not None and event.name.startswith("Memcpy") and args.correlation not in replayed:
                links.by_op.setdefault(home, []).append(kernel)
        elif home is not None and args.correlation not in replayed:
            links.by_op.setdefault(home, []).append(kernel)
            links.coverage.linked += 1
        else:
            links.unlinked.append(kernel)
            _count(links.coverage, _why_unlinked(args.correlation, launch_of, replayed))
    return links


def origin_of(trace: Trace) -> float:
    """When the first op or kernel starts: what times in a graph are relative to."""
    return min((event.start for event in (*trace.cpu_ops, *trace.kernels)), default=0.0)


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


def _launches(trace: Trace) -> dict[int, Event]:
    found: dict[int, Event] = {}
    for event in trace.launches:
        correlation = decode_launch(event).correlation
        if correlation >= 0:
            found.setdefault(correlation, event)
    return found


def _owners(launch_of: Mapping[int, Event], ops: Mapping[Thread, Nest]) -> dict[int, tuple[Thread, int]]:
    """The innermost op event around the launch of each correlation id."""
    threads: dict[Thread, list[tuple[float, int]]] = {}
    for correlation, event in launch_of.items():
        if event.thread in ops:
            threads.setdefault(event.thread, []).append((event.start, correlation))
    owner: dict[int, tuple[Thread, int]] = {}
    for thread, held in threads.items():
        held.sort()
        for (_, correlation), i in zip(held, ops[thread].enclosing([t for t, _ in held]), strict=True):
            if i >= 0:
                owner[correlation] = (thread, i)
    return owner


def _replayed(correlations: Iterable[int], launch_of: Mapping[int, Event]) -> set[int]:
    """Correlation ids of graph launches; without the launch in the file, those that many kernels share."""
    shared = Counter(correlations)
    by_name = {c for c, event in launch_of.items() if event.name in GRAPH_LAUNCHES}
    return by_name | {c for c, n in shared.items() if n > 1 and c not in launch_of}


def _why_unlinked(correlation: int, launch_of: Mapping[int, Event], replayed: set[int]) -> Unlinked:
    if correlation in replayed:
        return "graph_replayed"
    return "outside_ops" if correlation in launch_of else "before_window"


def _count(coverage: Coverage, why: Unlinked) -> None:
    setattr(coverage, why, getattr(coverage, why) + 1)


def _kernel(event: Event, args: LaunchArgs, origin_us: float) -> Kernel:
    stream = args.stream if isinstance(args.stream, int) else 0
    return Kernel(event.name, event.start - origin_us, event.dur or 0.0, stream, args.device)
