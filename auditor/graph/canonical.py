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
from functools import cache
from typing import Any

from auditor.graph.layout import slice_of
from auditor.graph.model import Op, OpGraph, Value, owner_of
from auditor.graph.normal import IDENTITY_KINDS, normalise_call
from auditor.graph.ops import DATA_DEPENDENT, base_name, kind_of, reads_shape_only
from auditor.graph.traffic import Traffic, traffic_of

COMPLEX = frozenset({"c32", "c64", "c128"})


OPAQUE = "opaque"
"""Kind of an op whose arguments the trace does not hold; no rule names it."""


class CValue:
    """One content: a value, all its reshapes and expansions. ``root`` is it before casts and copies."""

    __slots__ = ("deep_users", "index", "producer", "root", "users", "value")

    def __init__(self, value: Value, producer: Node | None, index: int = 0) -> None:
        self.value = value
        self.producer = producer
        self.index = index
        self.users: list[Node] = []
        self.root: CValue = self
        self.deep_users: list[Node] = []

    def __repr__(self) -> str:
        return f"<C {self.value!r}>"


class Node:
    """A canonical op over the recorded ``ops`` (in order; empty for a slice)."""

    __slots__ = ("args", "dead", "index", "kind", "main", "ops", "outs", "phase")

    def __init__(self, kind: str, args: tuple[Any, ...], ops: tuple[Op, ...], index: int) -> None:
        self.kind = kind
        self.args = args
        self.ops = ops
        self.main = ops[-1] if ops else None
        self.index = index
        self.outs: list[CValue] = []
        self.dead = False
        self.phase = ops[-1].phase if ops else None

    @property
    def op(self) -> Op:
        """The recorded op that makes the node's first result. A slice has none."""
        assert self.main is not None
        return self.main

    def operands(self) -> list[CValue]:
        """Every tensor operand, lists opened."""
        found: list[CValue] = []
        _collect(self.args, found)
        return found

    def distinct_operands(self) -> list[CValue]:
        """Every tensor operand once."""
        found = self.operands()
        return found if len(found) < 2 else list(dict.fromkeys(found))

    def __repr__(self) -> str:
        return f"<{self.index}: {self.kind}>"


def _collect(args: tuple[Any, ...], found: list[CValue]) -> None:
    for arg in args:
        if type(arg) is CValue:
            found.append(arg)
        elif type(arg) is tuple:
            _collect(arg, found)


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
        self.node_of: dict[int, Node] = {}
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
            for op in node.ops:
                self.node_of[op.index] = node

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
        rewrite = _REWRITES.get(kind)
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


def _made_by(arg: Any, kind: str) -> Node | None:
    if type(arg) is CValue and arg.producer is not None and arg.producer.kind == kind:
        return arg.producer
    return None


def _rewrite_mul(graph: Canonical, node: Node) -> None:
    a, b = node.args
    if type(a) is CValue and type(b) is CValue:
        if _same_elements(a, b, node.op):
            node.kind, node.args = "square", (a,)
            return
        for x, other in ((a, b), (b, a)):
            for rewrite in (_as_silu, _as_dropout, _as_division):
                if rewrite(graph, node, x, other):
                    return
        if node.op.outputs and node.op.outputs[0].dtype in COMPLEX:
            node.kind = "complex_mul"
    else:
        _as_mean(graph, node)


def _same_elements(a: CValue, b: CValue, op: Op) -> bool:
    """Both factors show one content, and the same element of it at each index: not ``x * x.t()``."""
    if a.root is not b.root or a.value.dtype != b.value.dtype:
        return False
    left, right = op.args[:2]
    if not isinstance(left, Value) or not isinstance(right, Value):
        return False
    return left is right or (left.shape == right.shape and _steps(left) == _steps(right))


def _steps(value: Value) -> list[int]:
    return [step for step, size in zip(value.strides, value.shape, strict=True) if size != 1]


def _as_silu(graph: Canonical, node: Node, x: CValue, gate: CValue) -> bool:
    """``x * sigmoid(x)`` is ``silu``, ``x * sigmoid(c * x)`` is ``quick_gelu``: neither gates another tensor."""
    sigmoid = _made_by(gate, "sigmoid")
    if sigmoid is None or not graph.read_only_by(gate, node.op):
        return False
    source = sigmoid.args[0]
    scale = _made_by(source, "mul")
    if source.root is x.root:
        node.kind = "silu"
    elif scale is not None and _scales(scale, x) and graph.read_only_by(source, sigmoid.op):
        graph.absorb(node, scale)
        node.kind = "quick_gelu"
    else:
        return False
    graph.absorb(node, sigmoid)
    node.args = (x,)
    return True


def _scales(mul: Node, x: CValue) -> bool:
    """``mul`` multiplies ``x`` by a number."""
    return type(mul.args[0]) is CValue and mul.args[0].root is x.root and is_scalar(mul.args[1])


def is_scalar(arg: Any) -> bool:
    """A Python number. Traces write ``x / 8.0`` with a 0-d tensor that no op of the step has made."""
    if type(arg) is CValue:
        return arg.producer is None and arg.value.shape == ()
    return isinstance(arg, int | float)


def _as_division(graph: Canonical, node: Node, x: CValue, inverse: CValue) -> bool:
    reciprocal = _made_by(inverse, "reciprocal")
    if reciprocal is None or not graph.read_only_by(inverse, node.op):
        return False
    graph.absorb(node, reciprocal)
    node.kind, node.args = "div", (x, reciprocal.args[0])
    return True


def _as_dropout(graph: Canonical, node: Node, x: CValue, noise: CValue) -> bool:
    scale = _made_by(noise, "mul")
    if scale is None or type(scale.args[1]) is CValue or not graph.read_only_by(noise, node.op):
        return False
    draw = _made_by(scale.args[0], "bernoulli")
    if draw is None:
        return False
    graph.absorb(node, scale)
    graph.absorb(node, draw)
    node.kind, node.args = "dropout", (x,)
    return True


def _as_mean(graph: Canonical, node: Node) -> None:
    total, factor = node.args
    reduce = _made_by(total, "sum")
    if reduce is None or not isinstance(factor, float) or not graph.read_only_by(total, node.op):
        return
    source = reduce.args[0].value
    if total.value.numel and abs(factor * source.numel / total.value.numel - 1) < 1e-6:
        graph.absorb(node, reduce)
        node.kind, node.args = "mean", reduce.args


def _rewrite_reciprocal(graph: Canonical, node: Node) -> None:
    root = _made_by(node.args[0], "sqrt")
    if root is not None and graph.read_only_by(node.args[0], node.op):
        graph.absorb(node, root)
        node.kind, node.args = "rsqrt", root.args


def _rewrite_div(graph: Canonical, node: Node) -> None:
    """``x / sqrt(v)`` is ``x * rsqrt(v)`` when nobody else reads the root; a division by a number is a scale."""
    if is_scalar(node.args[1]):
        node.kind = "mul"
        return
    root = _made_by(node.args[1], "sqrt")
    if root is not None and graph.read_only_by(node.args[1], node.op):
        root.kind = "rsqrt"
        node.kind = "mul"


def _rewrite_relu(_: Canonical, node: Node) -> None:
    """``clamp(norm, 1e-12)`` of one number a row is a floor: traces write constants with six decimals, as 0."""
    source = node.args[0]
    if base_name(node.op.name) != "aten.relu" and type(source) is CValue and source.value.shape[-1:] == (1,):
        node.kind, node.args = "clamp_min", (source, 0.0)


def _rewrite_softmax(graph: Canonical, node: Node) -> None:
    """``softmax(x - amax(x))`` is ``softmax(x)``: the kernel subtracts the maximum anyway."""
    shifted = _made_by(node.args[0], "sub")
    if shifted is None or not graph.read_only_by(node.args[0], node.op):
        return
    x, shift = shifted.args
    top = _made_by(shift, "amax")
    dims = top.args[1] if top is not None and len(top.args) > 1 else None
    if top is None or dims != (node.args[1],) or top.args[0].root is not x.root:
        return
    if graph.read_only_by(shift, shifted.op):
        graph.absorb(node, shifted)
        graph.absorb(node, top)
        node.args = (x, node.args[1])


def _rewrite_cast(_: Canonical, node: Node) -> None:
    op = node.op
    if op.outputs and type(node.args[0]) is CValue and op.outputs[0].dtype == node.args[0].value.dtype:
        node.kind = "copy"


def _rewrite_copy_into(_: Canonical, node: Node) -> None:
    """``copy_`` over all of a fresh buffer is a copy of its source; into a part or a live buffer it is a write."""
    if len(node.args) < 2:
        return
    source, written = node.args[1], node.op.args[0]
    if type(source) is not CValue or not isinstance(written, Value):
        return
    owner = owner_of(written)
    fresh = owner.producer is not None and kind_of(owner.producer.name) == "allocation"
    if fresh and written.extent == owner.extent and written.numel == source.value.numel:
        node.kind = "cast" if written.dtype != source.value.dtype else "copy"
        node.args = (source,)


_REWRITES = {
    "mul": _rewrite_mul,
    "reciprocal": _rewrite_reciprocal,
    "div": _rewrite_div,
    "softmax": _rewrite_softmax,
    "relu": _rewrite_relu,
    "cast": _rewrite_cast,
    "copy_into": _rewrite_copy_into,
}
