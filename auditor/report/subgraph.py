"""The ops of one site as a picture's nodes and edges, as they are and as they would be once fused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from auditor.document import Site
from auditor.graph.canonical import is_view
from auditor.graph.model import Arg, Op, OpGraph, Value, owner_of
from auditor.report.format import clip, duration, plural, safe, shape, size

MOST_OPS = 150
"""Ops drawn of one site; longer chains are cut, and the caption says so."""
MOST_ENDS = 4
"""Inputs, and outputs, drawn one by one around a fused kernel."""


@dataclass(frozen=True, slots=True)
class Node:
    """A box: its ``title``, further ``lines``, and what it stands for."""

    key: str
    kind: Literal["op", "input", "output", "fused"]
    title: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A value on its way. ``outside``: it leaves the site; ``via``: the views that it passes through."""

    tail: str
    head: str
    label: str
    outside: bool = False
    via: str = ""


@dataclass(slots=True)
class Picture:
    """Nodes in execution order (every edge leads to a later one) and the edges between them."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    left_out: int = 0
    whole: dict[str, str] = field(default_factory=dict)
    """The label of every input as a whole, for readers that take parts of it."""

    def connect(self, edge: Edge) -> None:
        """Add ``edge``, once."""
        if edge not in self.edges:
            self.edges.append(edge)


def before(graph: OpGraph | None, site: Site) -> Picture | None:
    """The recorded ops of ``site``, what they read and what is read of them; ``None`` where the graph lacks them."""
    if graph is None or not site.ops or not all(0 <= i < len(graph.ops) for i in site.ops):
        return None
    members = [op for op in (graph.ops[i] for i in sorted(set(site.ops))) if not is_view(op)]
    if not members:
        return None
    picture = Picture(left_out=max(len(members) - MOST_OPS, 0))
    members = members[:MOST_OPS]
    _inputs(picture, members)
    for op in members:
        picture.nodes[_key(op)] = _op_node(op)
    _inner(picture, members)
    _outputs(picture, members, set(site.saved))
    return picture


def after(picture: Picture, site: Site, title: str) -> Picture:
    """``picture`` with its ops replaced by the fused kernel: the same inputs, the same outputs."""
    traffic = f"{size(site.bytes_fused)} moved" if site.bytes_fused else ""
    lines = tuple(line for line in (plural(site.kernels_after, "kernel"), traffic) if line)
    reads, writes = _ends(picture, "input"), _ends(picture, "output")
    fused = Picture({k: picture.nodes[k] for k in [*reads][:MOST_ENDS]} | _rest("input", len(reads)))
    fused.nodes["fused"] = Node("fused", "fused", clip(safe(title), 40), lines)
    fused.nodes |= {k: picture.nodes[k] for k in [*writes][:MOST_ENDS]} | _rest("output", len(writes))
    for key, edge in [*reads.items()][:MOST_ENDS]:
        fused.connect(Edge(key, "fused", edge.label, via=edge.via))
    for key, edge in [*writes.items()][:MOST_ENDS]:
        fused.connect(Edge("fused", key, edge.label, outside=True))
    fused.edges += [Edge(k, "fused", "") for k in _rest("input", len(reads))]
    fused.edges += [Edge("fused", k, "", outside=True) for k in _rest("output", len(writes))]
    return fused


def _ends(picture: Picture, kind: Literal["input", "output"]) -> dict[str, Edge]:
    """The inputs or outputs of a picture, each with an edge that it hangs on."""
    found: dict[str, Edge] = {}
    for edge in picture.edges:
        key = edge.tail if kind == "input" else edge.head
        if picture.nodes[key].kind != kind:
            continue
        first = found.setdefault(key, edge)
        if (first.label, first.via) != (edge.label, edge.via) or (first.via and first.head != edge.head):
            found[key] = Edge(edge.tail, edge.head, picture.whole.get(key, edge.label), edge.outside)
    return found


def _rest(kind: Literal["input", "output"], number: int) -> dict[str, Node]:
    """One node for all inputs or outputs that are too many to be drawn."""
    left = number - MOST_ENDS
    return {f"more-{kind}": Node(f"more-{kind}", kind, f"{left} more {kind}{'s' * (left > 1)}")} if left > 0 else {}


def _key(op: Op) -> str:
    return f"op{op.index}"


def _op_node(op: Op) -> Node:
    made = [_tensor(v) for v in op.outputs[:1]]
    time = [duration(op.dur_us)] if op.dur_us else []
    return Node(_key(op), "op", clip(_call(op), 34), (*made, *time))


def _call(op: Op) -> str:
    """``pow(·, 2)``: the op with its constants, tensors as dots, defaults at the end left out."""
    args = list(op.args)
    while args and (args[-1] is None or args[-1] is False):
        args.pop()
    return f"{safe(op.name).removeprefix('aten.')}({', '.join(map(_argument, args))})"


def _argument(arg: Arg) -> str:
    if isinstance(arg, Value):
        return "·"
    if isinstance(arg, tuple):
        return f"[{', '.join(map(_argument, arg))}]"
    return safe(f"{arg:.6g}" if isinstance(arg, float) else str(arg))


def _tensor(value: Value) -> str:
    return clip(f"{safe(value.dtype)}{shape(value.shape)}", 44)


def _made(value: Value) -> str:
    return f"{_tensor(value)} · {size(value.nbytes)}"


def _label(value: Value) -> str:
    return f"{shape(value.shape)} · {size(value.nbytes)}"


def _reads(op: Op) -> Iterator[tuple[Value, Value, str]]:
    """Every tensor that ``op`` reads: as it reads it, as it was made, and the views between the two."""
    for value in dict.fromkeys(op.inputs()):
        root, views = value, []
        while (step := _viewed(root)) is not None:
            views.append(safe(root.producer.name).removeprefix("aten.") if root.producer else "view")
            root = step
        yield value, root, ", ".join(reversed(views))


def _viewed(value: Value) -> Value | None:
    """What ``value`` is a view of, one step back."""
    if value.base is None or (value.producer is not None and not is_view(value.producer)):
        return None
    parents = value.producer.inputs() if value.producer is not None else iter(())
    return next((v for v in parents if owner_of(v) is owner_of(value)), value.base)


def _inputs(picture: Picture, members: list[Op]) -> None:
    inside = {op.index for op in members}
    for op in members:
        for value, root, via in _reads(op):
            if root.producer is not None and root.producer.index in inside:
                continue
            key = f"in{root.id}"
            picture.nodes.setdefault(key, Node(key, "input", _origin(root), (_tensor(root),)))
            picture.whole[key] = _label(root)
            picture.connect(Edge(key, _key(op), _label(value), via=via))


def _origin(value: Value) -> str:
    name = safe(value.name)
    if value.producer is None:
        return clip(name or "input", 30)
    made = f"from {safe(value.producer.name).removeprefix('aten.')}"
    return clip(f"{name} {made}" if name else made, 30)


def _inner(picture: Picture, members: list[Op]) -> None:
    inside = {op.index for op in members}
    for op in members:
        for value, root, via in _reads(op):
            maker = root.producer
            if maker is not None and maker.index in inside and maker.index < op.index:
                picture.connect(Edge(_key(maker), _key(op), _label(value), via=via))


def _outputs(picture: Picture, members: list[Op], saved: set[int]) -> None:
    inside = {op.index for op in members}
    for op in members:
        for value in op.outputs:
            why = _outside(value, inside, saved)
            if why:
                key = f"out{value.id}"
                picture.nodes[key] = Node(
                    key, "output", clip(safe(value.name) or "output", 30), (_made(value), clip(why, 44))
                )
                picture.connect(Edge(_key(op), key, _label(value), outside=True))


def _outside(value: Value, inside: set[int], saved: set[int]) -> str:
    """Who reads ``value`` outside the site, as words; empty where nobody does."""
    readers, escapes = _readers(value)
    foreign = dict.fromkeys(safe(r.name).removeprefix("aten.") for r in readers if r.index not in inside)
    parts = ["saved for backward" if value.id in saved else "", "result of the step" if escapes else ""]
    if foreign and value.id not in saved:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        parts.append(f"read by {', '.join(list(foreign)[:3])}{more}")
    if not readers and not escapes:
        parts.append("not read again")
    return ", ".join(p for p in parts if p)


def _readers(value: Value) -> tuple[list[Op], bool]:
    """Ops that read ``value`` or a view of it, and whether any of them leaves the window."""
    found, escapes, queue = [], value.escapes, list(value.consumers)
    while queue:
        op = queue.pop(0)
        if not is_view(op):
            found.append(op)
            continue
        escapes = escapes or any(v.escapes for v in op.outputs)
        queue += [reader for v in op.outputs for reader in v.consumers]
    return found, escapes
