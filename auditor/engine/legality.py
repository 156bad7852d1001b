"""What may be fused. A proposal becomes a site, or a refusal with its reason and the op that forbids it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from auditor.graph.canonical import Canonical
from auditor.graph.model import ACCUMULATE, Op, Value
from auditor.graph.ops import kind_of
from auditor.graph.traffic import Traffic, bytes_of


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why ops that look fusible must stay apart. ``op`` forbids it; ``at`` is the first op of the place."""

    reason: str
    at: Op
    op: Op
    ops: tuple[Op, ...] = ()


@dataclass(slots=True, eq=False)
class Region:
    """A legal set of ops, with what the one kernel in its place would read and write.

    ``saved`` are the outputs that only the backward reads; they are written out and cost their bytes.
    """

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    saved: tuple[Value, ...]
    bytes_now: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    kernels: int = 0
    device_us: float = 0.0

    @property
    def bytes_fused(self) -> int:
        return self.bytes_read + self.bytes_written

    def moves(self, moved: Iterable[Traffic]) -> None:
        """What remains of it reads and writes ``moved``, not what one kernel in its place would."""
        each = list(moved)
        self.bytes_read, self.bytes_written = sum(t.read for t in each), sum(t.written for t in each)


def check(
    graph: Canonical,
    ops: Iterable[Op],
    allowed: set[int] | None,
    *,
    gemms: int = 1,
    names: dict[int, str] | None = None,
) -> Region | Refusal:
    """Decide whether ``ops`` may become one kernel.

    ``allowed`` holds the ids of values that may be read outside (``None``: any may, each is then an
    output). ``gemms`` is how many GEMMs the kernel may hold. ``names`` gives values their pattern
    names for messages.
    """
    members = tuple(sorted(set(ops), key=lambda op: op.index))
    inside = {op.index for op in members}
    first, last = members[0], members[-1]
    refusal = (
        _one_place(members)
        or _gemms(members, gemms)
        or _write_between(graph, members, inside, first, last)
        or _two_axes(graph, members, inside)
    )
    if refusal:
        return refusal
    outputs, saved, escape = _outputs(graph, members, inside, allowed, names or {})
    if escape:
        return escape
    bent = _not_convex(graph, members, inside, outputs, last)
    if bent:
        return bent
    return _region(graph, members, inside, outputs, saved)


def _one_place(members: tuple[Op, ...]) -> Refusal | None:
    first = members[0]
    stream = _stream(first)
    for op in members:
        if op.phase != first.phase:
            return Refusal(f"{op.name} runs in the {op.phase}, {first.name} in the {first.phase}", first, op, members)
        if op.thread != first.thread:
            return Refusal(f"{op.name} is launched by another thread", first, op, members)
        if (op.scope == ACCUMULATE) != (first.scope == ACCUMULATE):
            return Refusal(f"{op.name} adds to a parameter's gradient, which autograd does apart", first, op, members)
        if _stream(op) != stream:
            return Refusal(f"{op.name} runs on another stream or device", first, op, members)
    return None


def _stream(op: Op) -> tuple[int, int] | None:
    return (op.kernels[0].device, op.kernels[0].stream) if op.kernels else None


def _gemms(members: tuple[Op, ...], limit: int) -> Refusal | None:
    found = [op for op in members if kind_of(op.name) in ("gemm", "attention")]
    if len(found) > limit:
        return Refusal(f"it would join {len(found)} GEMMs", members[0], found[limit], members)
    return None


def _write_between(graph: Canonical, members: tuple[Op, ...], inside: set[int], first: Op, last: Op) -> Refusal | None:
    writers = graph.writers
    for op in members:
        for value in graph.inputs[op.index]:
            for writer in writers.get(value.storage, ()):
                if first.index < writer.index < last.index and writer.index not in inside and writer.index > op.index:
                    return Refusal(f"{writer.name} writes in place to an input in between", first, writer, members)
    return None


def _two_axes(graph: Canonical, members: tuple[Op, ...], inside: set[int]) -> Refusal | None:
    """One kernel walks a tensor one way. What it makes itself cannot be read transposed as well (other blocks
    would hold those elements), nor may what it reduces along its rows be read along its columns.
    """
    reduces = any(kind_of(op.name) in ("reduction", "norm") for op in members)
    walked: dict[int, int] = {}
    for op in members:
        if kind_of(op.name) in ("gemm", "attention"):
            continue
        for value in graph.inputs[op.index]:
            owner = graph.owners[value.id]
            stride = _innermost_stride(value)
            if stride is None or value.extent < owner.extent:
                continue
            if walked.setdefault(owner.id, stride) != stride:
                made_here = owner.producer is not None and owner.producer.index in inside
                if made_here or reduces:
                    return Refusal(
                        f"{op.name} reads along another axis what the kernel walks by rows", members[0], op, members
                    )
    return None


def _innermost_stride(value: Value) -> int | None:
    """Stride of the last dimension that has more than one element; ``None`` for a number."""
    for size, stride in zip(reversed(value.shape), reversed(value.strides), strict=True):
        if size > 1:
            return stride
    return None


def _outputs(
    graph: Canonical, members: tuple[Op, ...], inside: set[int], allowed: set[int] | None, names: dict[int, str]
) -> tuple[list[Value], list[Value], Refusal | None]:
    outputs: list[Value] = []
    saved: list[Value] = []
    last_outputs = members[-1].outputs
    for op in members:
        for value in op.outputs:
            if value.base is not None:
                continue
            outside = [r for r in graph.readers.get(value.id, ()) if r.index not in inside]
            foreign = [r for r in outside if op.phase != "forward" or r.phase == "forward"]
            if foreign or value.id in graph.escaping:
                if allowed is not None and value.id not in allowed:
                    name = names.get(value.id) or f"the result of {op.name}"
                    reader = foreign[0] if foreign else op
                    where = f"to {reader.name}" if foreign else "as a result of the step"
                    return [], [], Refusal(f"{name} escapes {where}", members[0], reader, members)
                outputs.append(value)
            elif outside:
                saved.append(value)
            elif value in last_outputs and value.output_index == 0 and not graph.readers.get(value.id):
                outputs.append(value)
    if not outputs and not saved:
        outputs.extend(v for v in last_outputs[:1] if v.base is None)
    return outputs, saved, None


def _not_convex(
    graph: Canonical, members: tuple[Op, ...], inside: set[int], outputs: list[Value], last: Op
) -> Refusal | None:
    """A path that leaves the region and comes back would have to run both before and after the kernel.

    What reads a tensor has to run before what overwrites it, so paths lead there too. A host sync or a
    collective in between that waits for the region's results closes such a path: what the host launches
    later depends on it. One that waits for something else does not: the kernel runs after it.
    """
    barriers = graph.barrier_ops
    pending = [
        r for v in outputs for r in graph.readers.get(v.id, ()) if r.index not in inside and r.index < last.index
    ]
    seen: set[int] = set()
    while pending:
        op = pending.pop()
        if op.index in seen:
            continue
        seen.add(op.index)
        if op.index in barriers:
            return Refusal(f"{barrier_name(op)} in between waits for it: {op.name}", members[0], op, members)
        for later in (*_overwriters(graph, op), *_consumers(graph, op)):
            if later.index in inside:
                return Refusal(f"a path leaves and comes back through {op.name}", members[0], op, members)
            if later.index < last.index:
                pending.append(later)
    return None


def _consumers(graph: Canonical, op: Op) -> Iterator[Op]:
    for value in op.outputs:
        yield from graph.readers.get(graph.owners[value.id].id, ())


def _overwriters(graph: Canonical, op: Op) -> Iterator[Op]:
    """Ops that later write in place to what ``op`` reads."""
    for value in graph.inputs[op.index]:
        for writer in graph.writers.get(value.storage, ()):
            if writer.index > op.index:
                yield writer


def barrier_name(op: Op) -> str:
    """What kind of barrier an op is, in words."""
    return "a collective" if kind_of(op.name) == "collective" else "a host sync"


def _region(
    graph: Canonical, members: tuple[Op, ...], inside: set[int], outputs: list[Value], saved: list[Value]
) -> Region:
    inputs: dict[int, Value] = {}
    for op in members:
        pure_write = set(op.mutates) if kind_of(op.name) in ("random", "copy") else set()
        for value in graph.inputs[op.index]:
            producer = graph.owners[value.id].producer
            if value not in pure_write and (producer is None or producer.index not in inside):
                inputs.setdefault(value.id, value)
    return Region(
        ops=members,
        inputs=tuple(inputs.values()),
        outputs=tuple(outputs),
        saved=tuple(saved),
        bytes_now=sum(graph.traffic(op).total for op in members),
        bytes_read=bytes_of(inputs.values()),
        bytes_written=sum(v.nbytes for v in (*outputs, *saved)),
        kernels=sum(op.launches for op in members),
        device_us=sum(op.dur_us for op in members),
    )
