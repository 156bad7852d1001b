"""The canonical form of an op graph: what all rules match against.

Real models write one function in many ways. Here views become transparent (only a *slice*, which
changes what is read, stays as a node), casts and plain copies can be looked through, and what needs
two ops becomes one node that covers both: ``x * sigmoid(x)`` is ``silu``, ``sum / n`` is ``mean``,
``1 / sqrt`` is ``rsqrt``, noise · scale · mul is ``dropout``; a product of complex numbers, which rotates
pairs, is ``complex_mul``. Every node keeps its recorded ops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

from auditor.graph.layout import slice_of
from auditor.graph.model import Op, OpGraph, Value, owner_of
from auditor.graph.nodes import OPAQUE, CValue, Node
from auditor.graph.normal import IDENTITY_KINDS, normalise_call
from auditor.graph.ops import DATA_DEPENDENT, base_name, kind_of, reads_shape_only
from auditor.graph.rewrites import REWRITES
from auditor.graph.traffic import Traffic, traffic_of


def _rank_of(arg: Any) -> int | None:
    return len(arg.value.shape) if type(arg) is CValue else None


class Canonical:
    """The canonical nodes of a graph in execution order, and who reads what.

    ``inputs`` lists the distinct values that each op reads, ``owners`` the value that owns the content of
    each value, both by index.
    ``readers`` maps the id of a value that owns its content to the kernel ops that read it, through
    any view; ``escaping`` holds the ids of those that something outside the window reads (the results of the
    step, and what it wrote into tensors that were there before);
    ``barriers`` the op indices of host syncs, collectives and data-dependent shapes.
    """

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.by_kind: dict[str, list[Node]] = {}
        self.readers: dict[int, list[Op]] = defaultdict(list)
        self.writers: dict[int, list[Op]] = defaultdict(list)
        self.inputs: list[tuple[Value, ...]] = []
        self.owners: list[Value] = []
        self._traffic: dict[int, Traffic] = {}
        self.escaping = {owner_of(v).id for v in graph.values if v.escapes} | _overwritten_inputs(graph)
        self.barriers: list[int] = []
        self.barrier_ops: frozenset[int] = frozenset()
        self._cvalues: dict[int, CValue] = {}
        self._slices: dict[tuple[int, tuple[Any, ...]], CValue] = {}
        self._read_edges()
        self.barrier_ops = frozenset(self.barriers)
        self._build()

    def _read_edges(self) -> None:
        readers, writers, inputs, barriers = self.readers, self.writers, self.inputs, self.barriers
        self.owners = owners = [value if value.base is None else owner_of(value) for value in self.graph.values]
        for op in self.graph.ops:
            read: list[Value] = [] if reads_shape_only(op.name) else op.inputs()
            if len(read) > 1:
                read = list(dict.fromkeys(read))
            inputs.append(tuple(read))
            if is_view(op):
                continue
            if is_barrier(op):
                barriers.append(op.index)
            if len(read) == 1:
                readers[owners[read[0].id].id].append(op)
            else:
                for owner in {owners[value.id].id: None for value in read}:
                    readers[owner].append(op)
            for value in op.mutates:
                writers[value.storage].append(op)

    def _build(self) -> None:
        for op in self.graph.ops:
            if op.kernels and kind_of(op.name) not in ("allocation", "sync"):
                self._add(op)
        self.nodes = [n for n in self.nodes if not n.dead]
        by_kind = self.by_kind
        for node in self.nodes:
            by_kind.setdefault(node.kind, []).append(node)

    @cached_property
    def dtypes(self) -> frozenset[str]:
        """Every dtype that something in the graph has."""
        return frozenset(value.dtype for value in self.graph.values)

    def traffic(self, op: Op) -> Traffic:
        """Bytes that ``op`` moves, worked out once."""
        known = self._traffic.get(op.index)
        if known is None:
            known = self._traffic[op.index] = traffic_of(op, self.inputs[op.index])
        return known

    def before(self, op: Op) -> Iterator[Op]:
        """Ops that have to run before ``op``: they make what it reads, or read what it overwrites."""
        for value in self.inputs[op.index]:
            made = self.owners[value.id].producer
            if made is not None:
                yield made
        for value in op.mutates:
            for reader in self.readers.get(self.owners[value.id].id, ()):
                if reader.index < op.index:
                    yield reader

    def dismantle(self) -> None:
        """Take it apart, where it is needed no more: nodes and contents refer to each other, as ops and values do."""
        for content in {*self._cvalues.values(), *self._slices.values()}:
            content.producer, content.users, content.deep_users = None, [], []
            del content.root
        for node in self.nodes:
            node.args, node.outs = (), []
        self.nodes, self.by_kind, self._cvalues, self._slices = [], {}, {}, {}

    def cvalue(self, value: Value) -> CValue:
        """The content that ``value`` shows; a slice node is made where it shows only a part."""
        known = self._cvalues.get(value.id)
        if known is not None:
            return known
        base = value.base
        if base is None:
            made = CValue(value, None)
        else:
            parent = self.cvalue(base)
            # In bytes: a complex view of pairs of numbers has half the elements and the same content.
            whole = value.shape == base.shape or value.nbytes >= parent.value.nbytes
            made = parent if whole else self._slice(parent, base, value)
        self._cvalues[value.id] = made
        return made

    def _slice(self, parent: CValue, base: Value, view: Value) -> CValue:
        region = (view.offset, *sorted(p for p in zip(view.strides, view.shape, strict=True) if p[1] != 1))
        key = (id(parent), region)
        known = self._slices.get(key)
        if known is not None:
            return known
        cut = slice_of(base, view)
        where: tuple[Any, ...] = (None, view.offset)
        if cut:
            where = (cut.dim, cut.start, cut.stop) if cut.step == 1 else (cut.dim, cut.start, cut.stop, cut.step)
        index = parent.producer.index if parent.producer else -1
        node = Node("slice", (parent, *where), (), index)
        made = CValue(view, node)
        node.outs.append(made)
        self._link(node)
        self._slices[key] = made
        return made

    def _canonical_args(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        known = self._cvalues
        canonical: list[Any] = []
        for arg in args:
            if type(arg) is Value:
                canonical.append(known.get(arg.id) or self.cvalue(arg))
            elif type(arg) is tuple:
                canonical.append(self._canonical_args(arg))
            else:
                canonical.append(arg)
        return tuple(canonical)

    def _add(self, op: Op) -> None:
        kind, args = _normalised(op.name, self._canonical_args(op.args))
        if kind in IDENTITY_KINDS and self._on_the_side(op, args[0]):
            return
        node = Node(kind, args, (op,), op.index)
        rewrite = REWRITES.get(kind)
        if rewrite is not None:
            rewrite(self, node)
        for i, value in enumerate(op.outputs):
            if value.base is None:
                out = CValue(value, node, i)
                self._cvalues[value.id] = out
                node.outs.append(out)
        self._link(node)

    def _link(self, node: Node) -> None:
        self.nodes.append(node)
        identity = node.kind in IDENTITY_KINDS
        for operand in node.distinct_operands():
            operand.users.append(node)
            if not identity:
                operand.root.deep_users.append(node)
        if identity and node.outs and type(node.args[0]) is CValue:
            node.outs[0].root = node.args[0].root

    def _on_the_side(self, op: Op, source: Any) -> bool:
        """A cast of attention probabilities that nobody reads: math SDPA hands it back beside its result.

        It belongs to the op that makes the probabilities, and goes where that goes.
        """
        made = source.producer if type(source) is CValue else None
        if made is None or made.kind not in ("softmax", "dropout") or op.phase != made.phase:
            return False
        if any(v.escapes or v.consumers or v.base is not None for v in op.outputs):
            return False
        made.ops = (*made.ops, op)
        for value in op.outputs:
            self._cvalues[value.id] = CValue(value, made, len(made.outs))
        return True

    def absorb(self, node: Node, inner: Node) -> None:
        """Make ``inner`` a part of ``node``: its results stay as inner values of the composite."""
        inner.dead = True
        node.ops = tuple(sorted({*inner.ops, *node.ops}, key=lambda op: op.index))
        for operand in inner.operands():
            if inner in operand.users:
                operand.users.remove(inner)
            if inner in operand.root.deep_users:
                operand.root.deep_users.remove(inner)
        for out in inner.outs:
            out.producer, out.index = node, out.index + 1

    def read_only_by(self, cvalue: CValue, op: Op) -> bool:
        """No forward op but ``op`` reads it and it doesn't escape. A backward that saved it does not count."""
        owner = owner_of(cvalue.value)
        if owner.id in self.escaping:
            return False
        return all(r is op or (r.phase != op.phase and op.phase == "forward") for r in self.readers[owner.id])


def _normalised(name: str, args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Canonical kind and arguments; of a call that no schema allows, as cut traces hold, the name as it is.

    A trace without shapes has no arguments at all: nothing is known of such an op but its kernels.
    """
    if not args:
        return OPAQUE, ()
    try:
        return normalise_call(name, args, _rank_of)
    except (IndexError, TypeError):
        return name, args


def _overwritten_inputs(graph: OpGraph) -> set[int]:
    """Ids of the newest versions of tensors that existed before the step: their owner sees what was written."""
    given = {v.storage for v in graph.values if v.producer is None and v.base is None}
    written = [v for op in graph.ops if op.mutates for v in op.outputs if v.base is None and v.storage in given]
    newest = {(v.storage, v.offset, v.shape, v.strides): v.id for v in written}
    return set(newest.values())


def is_view(op: Op) -> bool:
    """Launches nothing and only shows an input in another shape."""
    return not op.kernels and bool(op.outputs) and all(v.base is not None for v in op.outputs)


def is_barrier(op: Op) -> bool:
    """A host sync, a collective, a data-dependent shape or a device-to-host copy: nothing is fused across."""
    return is_barrier_name(op.name) or any(k.is_transfer and k.name.startswith("Memcpy DtoH") for k in op.kernels)


@cache
def is_barrier_name(name: str) -> bool:
    """The part of :func:`is_barrier` that the name alone decides."""
    return kind_of(name) in ("sync", "collective") or base_name(name) in DATA_DEPENDENT
