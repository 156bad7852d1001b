"""Building an op graph call by call, from calls whose tensors are known by their storages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from auditor.collect.arguments import Decoded, TensorRef
from auditor.collect.contexts import Context
from auditor.collect.storages import Storages
from auditor.graph.model import Arg, Op, OpGraph, Value
from auditor.graph.signatures import with_dtype_names


@dataclass(slots=True, frozen=True)
class Call:
    """One call of a dispatched op. ``writes`` are the positions of the arguments that it overwrites."""

    name: str
    """As the op graph writes it: ``aten.add``."""
    overload: str
    inputs: tuple[Decoded, ...]
    outputs: tuple[Decoded, ...]
    writes: frozenset[int]
    thread: int = 0
    sequence: int = -1


class GraphBuilder:
    """Adds calls in execution order; who made what a call reads follows from storages."""

    def __init__(self) -> None:
        self.graph = OpGraph()
        self._storages = Storages(self.graph)

    def add(self, call: Call, context: Context) -> Op:
        """Append one op, without kernels."""
        args = tuple(self._read(a, context) for a in call.inputs)
        written = [
            pair
            for i, (argument, arg) in enumerate(zip(call.inputs, args, strict=True))
            if i in call.writes
            for pair in _pairs(arg, argument)
        ]
        outputs = self._outputs(call, args, written)
        return self.graph.add(
            Op(
                0, call.name, with_dtype_names(call.name, args), outputs, call.overload,
                mutates=tuple(v for v, _ in written), module=context.module, module_class=context.module_class,
                source=context.source, phase=context.phase, thread=call.thread, sequence=call.sequence,
                scope=context.scope,
            )
        )  # fmt: skip

    def escape(self, inputs: Sequence[Decoded], context: Context) -> None:
        """Something outside of the window reads ``inputs``."""
        for argument in inputs:
            for value in _flat_values([self._read(argument, context)]):
                _mark_escape(value)

    def read(self, reference: TensorRef) -> Value:
        """The value that a tensor shows at this point."""
        return self._storages.read(reference)

    def _read(self, argument: Decoded, context: Context) -> Arg:
        if isinstance(argument, TensorRef):
            return self._storages.read(argument, new_ids=context.phase == "backward")
        if isinstance(argument, tuple):
            return tuple(self._read(a, context) for a in argument)
        return argument

    def _outputs(self, call: Call, args: Sequence[Arg], written: list[tuple[Value, TensorRef]]) -> tuple[Value, ...]:
        read = [pair for arg, argument in zip(args, call.inputs, strict=True) for pair in _pairs(arg, argument)]
        pending = list(written)
        outputs: list[Value] = []
        wholes: list[Value] = []
        for ref in _flat_refs(call.outputs):
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
