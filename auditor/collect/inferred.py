"""The op graph of a trace without tensor ids: shapes are propagated, edges are inferred from looks and order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

from auditor.collect.closures import is_backward_node
from auditor.collect.dispatched import launches_nothing
from auditor.collect.foreign_ops import ForeignOp, foreign_ops, kinds_without_outputs
from auditor.collect.frames import Frames
from auditor.collect.kernel_links import attach_kernels, link_kernels, origin_of
from auditor.collect.kineto import Event, Trace, by_thread
from auditor.collect.linker import ThreadLinker
from auditor.collect.nesting import Thread, nests
from auditor.collect.step_structure import Steps, find_steps
from auditor.graph.model import Op, OpGraph


def inferred_graph(trace: Trace, steps: Steps | None = None) -> OpGraph:
    """Op graph of ``trace``; every edge is a guess from dtype, shape, strides, order and Python calls.

    No activation outlives its step: ``steps`` are those of the trace, where they were found already.
    """
    steps = steps or find_steps(trace)
    graph = OpGraph(provenance="inferred", device_kind=trace.device_kind)
    ops = nests(trace.cpu_ops)
    links = link_kernels(trace, ops, origin_of(trace)) if graph.device_kind != "cpu" else None
    launching = {id(ops[thread].events[i]) for thread, i in links.by_op} if links else None
    threads = foreign_ops(trace, ops, launching)
    frames = _frames(trace, threads)
    linkers = {
        thread: ThreadLinker(graph, i, held, frames.get(thread), steps.cuts)
        for i, (thread, held) in enumerate(threads.items())
    }
    in_order = [(op.start, linkers[thread], op) for thread, held in threads.items() for op in held]
    in_order.sort(key=itemgetter(0))
    pairs: list[tuple[Op, Event]] = []
    silent: set[int] = set()
    for _, linker, foreign in in_order:
        op = linker.add(foreign)
        pairs.append((op, foreign.event))
        if foreign.call.is_view or launches_nothing(op.name):
            silent.add(op.index)
    attach_kernels(graph, trace, ops, pairs, silent, links)
    _note_unknown(graph, [op for held in threads.values() for op in held])
    _name_backward_modules(graph)
    return graph


def _frames(trace: Trace, threads: dict[Thread, list[ForeignOp]]) -> dict[Thread, Frames]:
    """Calls of each thread: Python's, and autograd's nodes, which hand gradients on as a call does its result."""
    looks = any(op.call.inputs.known for held in threads.values() for op in held)
    nodes = [event for event in trace.cpu_ops if is_backward_node(event.name)] if looks else []
    calls = by_thread(trace.python + nodes)
    return {thread: Frames(events) for thread, events in calls.items() if thread in threads}


def _note_unknown(graph: OpGraph, ops: Sequence[ForeignOp]) -> None:
    unknown = sum(not op.call.effect.known for op in ops)
    if unknown and unknown == len(ops):
        graph.coverage.notes.append(
            "The trace holds no shapes: no edge could be inferred; record_shapes=True has them."
        )
    elif unknown:
        kinds = ", ".join(kinds_without_outputs(ops)[:5])
        graph.coverage.notes.append(f"{unknown} ops have outputs of unknown shape, so no edge leaves them ({kinds}).")


def _name_backward_modules(graph: OpGraph) -> None:
    """A backward op stands where the forward op with its autograd sequence number stood."""
    for op, following in pairwise(graph.ops):
        if op.name == "aten.ones_like" and following.phase == "backward":
            op.phase = "backward"  # the gradient of the loss
    forward: dict[int, Op] = {}
    for op in graph.ops:
        if op.phase == "forward" and op.sequence >= 0:
            forward[op.sequence] = op
    for op in graph.ops:
        origin = forward.get(op.sequence) if op.phase == "backward" else None
        if origin is not None:
            op.module, op.module_class, op.source = origin.module, origin.module_class, origin.source
