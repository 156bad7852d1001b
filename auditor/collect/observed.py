"""The op graph of a step recorded with an execution trace: every edge is known from tensor and storage ids."""

from __future__ import annotations

from auditor.collect.arguments import Decoded, decode_side
from auditor.collect.builder import Call, GraphBuilder
from auditor.collect.contexts import dispatched_nodes
from auditor.collect.dispatched import METADATA_IN_PLACE, bare, is_view, launches_nothing, parse_schema
from auditor.collect.execution_trace import ExecutionTrace, Node
from auditor.collect.join import by_record_function, join
from auditor.collect.kernel_links import attach_kernels
from auditor.collect.kineto import Event, Trace
from auditor.collect.nesting import nests
from auditor.collect.renest import nest_by_time
from auditor.errors import AuditError
from auditor.graph.model import Op, OpGraph


def observed_graph(trace: Trace, execution: ExecutionTrace, recorded: str = "") -> OpGraph:
    """Op graph of one step from its Kineto trace and its execution trace.

    ``recorded`` is what a message should name instead of the execution trace's file: the script that made it.

    Raises:
        AuditError: the step holds no op, or the two are not of the same step.
    """
    by_id = by_record_function(execution, trace)
    nest_by_time(execution, by_id)
    dispatched = dispatched_nodes(execution)
    if not dispatched:
        raise AuditError(
            f"{recorded or execution.path}: the recorded step ran no PyTorch op; record one in which a model computes."
        )
    events = join(execution, trace, dispatched, by_id)
    builder = GraphBuilder()
    pairs: list[tuple[Op, Event]] = []
    silent: set[int] = set()
    for node, context in dispatched:
        inputs = decode_side(node.inputs)
        if context.outside:
            builder.escape(inputs, context)
            continue
        op = builder.add(_call(node, inputs), context)
        if node.id in events:
            pairs.append((op, events[node.id]))
        if launches_nothing(op.name) or is_view(op.name, node.schema):
            silent.add(op.index)
    attach_kernels(builder.graph, trace, nests(trace.cpu_ops), pairs, silent)
    return builder.graph


def _call(node: Node, inputs: tuple[Decoded, ...]) -> Call:
    return Call(
        op_name(node), _overload(node), inputs, decode_side(node.outputs), _writes(node, len(inputs)),
        node.thread, node.sequence,
    )  # fmt: skip


def op_name(node: Node) -> str:
    """``aten.add`` of ``aten::add``; a compiled kernel is ``triton.<its name>``."""
    if node.kernel_backend == "triton" and "::" not in node.name:
        return f"triton.{node.name}"
    return node.name.replace("::", ".", 1)


def _overload(node: Node) -> str:
    return node.schema.partition("(")[0].partition("::")[2].partition(".")[2]


def _writes(node: Node, count: int) -> frozenset[int]:
    """Positions of the arguments that the op writes."""
    if bare(node.name) in METADATA_IN_PLACE:
        return frozenset()
    schema = parse_schema(node.schema) if node.schema else None
    if schema is None:
        name = bare(node.name)
        return frozenset({0}) if name.endswith("_") and not name.endswith("__") and count else frozenset()
    return frozenset(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)
