"""The op graph of a step recorded with an execution trace: every edge is known from tensor and storage ids."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.collect.arguments import Decoded, TensorRef, decode_side
from auditor.collect.contexts import Context, dispatched_nodes
from auditor.collect.dispatched import METADATA_IN_PLACE, bare, is_view, launches_nothing, parse_schema
from auditor.collect.execution_trace import ExecutionTrace, Node
from auditor.collect.join import join
from auditor.collect.kernel_links import attach_kernels
from auditor.collect.kineto import Trace
from auditor.collect.storages import Storages
from auditor.errors import AuditError
from auditor.graph.model import Arg, Op, OpGraph, Value


def observed_graph(trace: Trace, execution: ExecutionTrace, recorded: str = "") -> OpGraph:
    """Op graph of one step from its Kineto trace and its execution trace.

    ``recorded`` is what a message should name instead of the execution trace's file: the script that made it.

    Raises:
        AuditError: the step holds no op, or the two are not of the same step.
    """
    dispatched = dispatched_nodes(execution)
    if not dispatched:
        raise AuditError(
            f"{recorded or execution.path}: the recorded step ran no PyTorch op; record one in which a model computes."
        )
    events = join(execution, trace, dispatched)
    builder = _Builder()
    for node, context in dispatched:
        builder.add(node, context)
    pairs = [(op, events[id_]) for id_, op in builder.op_of.items() if id_ in events]
    attach_kernels(builder.graph, trace, pairs, builder.silent)
    return builder.graph


class _Builder:
    """Adds nodes in execution order; ``op_of`` maps a node's id to its op, ``silent`` are ops without a kernel."""

    def __init__(self) -> None:
        self.graph = OpGraph()
        self.op_of: dict[int, Op] = {}
        self.silent: set[int] = set()
        self._storages = Storages(self.graph)

    def add(self, node: Node, context: Context) -> None:
        inputs = decode_side(node.inputs)
        args = tuple(self._read(a, context) for a in inputs)
        if context.outside:
            for value in _flat_values(args):
                _mark_escape(value)
            return
        written = self._written(node, inputs, args)
        outputs = self._outputs(node, inputs, args, written)
        op = self.op_of[node.id] = self.graph.add(
            Op(
                0, op_name(node), args, outputs, _overload(node), mutates=tuple(v for v, _ in written),
                module=context.module, module_class=context.module_class, source=context.source,
                phase=context.phase, thread=node.thread, sequence=node.sequence,
            )
        )  # fmt: skip
        if launches_nothing(op.name) or is_view(op.name, node.schema):
            self.silent.add(op.index)

    def _read(self, argument: Decoded, context: Context) -> Arg:
        if isinstance(argument, TensorRef):
            return self._storages.read(argument, new_ids=context.phase == "backward")
        if isinstance(argument, tuple):
            return tuple(self._read(a, context) for a in argument)
        return argument

    def _written(self, node: Node, inputs: Sequence[Decoded], args: Sequence[Arg]) -> list[tuple[Value, TensorRef]]:
        """Inputs that the op writes in place."""
        if bare(node.name) in METADATA_IN_PLACE:
            return []
        return [
            pair
            for i, (argument, arg) in enumerate(zip(inputs, args, strict=True))
            if i in _mutable(node, len(inputs))
            for pair in _pairs(arg, argument)
        ]

    def _outputs(
        self, node: Node, inputs: Sequence[Decoded], args: Sequence[Arg], written: list[tuple[Value, TensorRef]]
    ) -> tuple[Value, ...]:
        read = [pair for arg, argument in zip(args, inputs, strict=True) for pair in _pairs(arg, argument)]
        pending = list(written)
        outputs: list[Value] = []
        wholes: list[Value] = []
        for ref in _flat_refs(decode_side(node.outputs)):
            mutated = next((p for p in pending if ref.tensor == p[1].tensor or ref.storage == p[1].storage), None)
            base = next((value for value, r in read if (r.storage, r.device) == (ref.storage, ref.device)), None)
            if mutated is not None:
                pending.remove(mutated)
                version, *whole = self._overwrite(mutated, ref)
                outputs.append(version)
                wholes += whole
            elif base is not None:
                outputs.append(self._storages.view(ref, base))
            else:
                outputs.append(self._storages.fresh(ref))
        for mutated in pending:  # written, but not returned: ``_foreach_add_`` and the like
            version, *whole = self._overwrite(mutated, mutated[1])
            outputs.append(version)
            wholes += whole
        return (*outputs, *wholes)

    def _overwrite(self, mutated: tuple[Value, TensorRef], ref: TensorRef) -> tuple[Value, ...]:
        old, old_ref = mutated
        moved = (ref.storage, ref.device) != (old_ref.storage, old_ref.device)  # resized into new memory
        return (self._storages.fresh(ref),) if moved else self._storages.overwrite(old, ref)


def op_name(node: Node) -> str:
    """``aten.add`` of ``aten::add``; a compiled kernel is ``triton.<its name>``."""
    if node.kernel_backend == "triton" and "::" not in node.name:
        return f"triton.{node.name}"
    return node.name.replace("::", ".", 1)


def _overload(node: Node) -> str:
    return node.schema.partition("(")[0].partition("::")[2].partition(".")[2]


def _mutable(node: Node, count: int) -> frozenset[int]:
    """Positions of the arguments that the op writes."""
    schema = parse_schema(node.schema) if node.schema else None
    if schema is None:
        name = bare(node.name)
        return frozenset({0}) if name.endswith("_") and not name.endswith("__") and count else frozenset()
    return frozenset(i for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write)


def _pairs(arg: Arg, argument: Decoded) -> list[tuple[Value, TensorRef]]:
    """Values with the references they came from, lists opened."""
    if isinstance(arg, Value) and isinstance(argument, TensorRef):
        return [(arg, argument)]
    if isinstance(arg, tuple) and isinstance(argument, tuple):
        return [pair for a, r in zip(arg, argument, strict=True) for pair in _pairs(a, r)]
    return []


def _flat_refs(decoded: Sequence[Decoded]) -> list[TensorRef]:
    flat: list[TensorRef] = []
    for item in decoded:
        if isinstance(item, TensorRef):
            flat.append(item)
        elif isinstance(item, tuple):
            flat += _flat_refs(item)
    return flat


def _flat_values(args: Sequence[Arg]) -> list[Value]:
    flat: list[Value] = []
    for item in args:
        if isinstance(item, Value):
            flat.append(item)
        elif isinstance(item, tuple):
            flat += _flat_values(item)
    return flat


def _mark_escape(value: Value | None) -> None:
    """Who reads a view reads its base's content."""
    while value is not None:
        value.escapes = True
        value = value.base
