"""The nodes of an FX graph that a site stands for: what goes in, what comes out, and the function that they are."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from auditor.collect.capture import Captured
from auditor.collect.dispatched import bare
from auditor.engine.legality import Refusal, check
from auditor.engine.propose import Candidate
from auditor.graph.canonical import Canonical
from auditor.graph.ops import kind_of


class Unreachable(Exception):  # noqa: N818 - nothing went wrong: the site is refused, with this reason
    """A site can't be exchanged in the FX graph. Its text is a clause that says why."""


@dataclass(slots=True, eq=False)
class FxRegion:
    """A legal site in the FX graph. ``members`` in execution order."""

    site: Candidate
    members: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """Nodes outside that members read: tensors, and symbolic sizes."""
    outputs: tuple[fx.Node, ...]
    """Members that nodes outside read."""
    kernels: int


def fx_regions(captured: Captured, canonical: Canonical, site: Candidate) -> list[FxRegion]:
    """The FX nodes of ``site``, whole: one region, or for a chain one or more.

    A pattern is all or nothing. A chain is as good without the nodes that can't be part of it: what is left falls into
    connected pieces. Each has to be legal by itself: a write that was left out may lie between two of its nodes.

    Raises:
        Unreachable: a node does more than its part of the site, writes in place, draws random numbers, or a path
            leaves the nodes and comes back.
    """
    # A copy to another layout that follows a pattern stays: replacements return the layout that the pattern makes.
    ops = [op for op in site.region.ops if op is not site.copied]
    nodes = list(dict.fromkeys(captured.node_of[op.index] for op in ops))
    reasons = {node: _unfit(captured, node, site) for node in nodes}
    fit = [node for node in nodes if reasons[node] is None]
    if site.rule.chain is None and len(fit) < len(nodes):
        raise Unreachable(next(reason for reason in reasons.values() if reason))
    if len(fit) == len(nodes):
        return [_region(captured, site, nodes)]
    pieces = [piece for piece in _connected(captured, fit) if _kernels(captured, piece) > 1]
    pieces = [piece for piece in pieces if _legal(captured, canonical, site, piece)]
    if not pieces:
        raise Unreachable(next(reason for reason in reasons.values() if reason))
    return [_region(captured, site, piece) for piece in pieces]


def _unfit(captured: Captured, node: fx.Node, site: Candidate) -> str | None:
    """Why ``node`` can't be part of a fused call, or None."""
    inside = {op.index for op in site.region.ops}
    if node.op not in ("call_function", "call_method"):
        return f"{node.op} {node.target} is no call of a function"
    for op in captured.ops_of(node):
        if op.kernels and op.index not in inside and kind_of(op.name) not in ("copy", "generator"):
            # (what a node makes for itself goes along: a layout that matmul can read, a tensor of a number for where)
            return f"only a part of {_called(node)} belongs to it ({op.name} does not)"
        if op.mutates:
            return f"{_called(node)} writes in place"
        if kind_of(op.name) == "random" and bare(op.name) != "native_dropout":
            return f"{_called(node)} draws random numbers"
    return None


def _connected(captured: Captured, nodes: list[fx.Node]) -> list[list[fx.Node]]:
    """The parts of ``nodes`` that hang together, by an edge or through views."""
    computing = {captured.node_of[op.index] for op in captured.graph.ops if op.kernels}
    part_of = {node: [node] for node in nodes}
    for node in nodes:
        pending = list(node.all_input_nodes)
        while pending:
            source = pending.pop()
            theirs, ours = part_of.get(source), part_of[node]
            if theirs is not None and theirs is not ours:
                theirs.extend(ours)
                part_of.update((member, theirs) for member in ours)
            elif source not in computing and source.op in ("call_function", "call_method"):
                pending += source.all_input_nodes
    order = {node: i for i, node in enumerate(nodes)}
    return [sorted(part, key=order.__getitem__) for part in {id(p): p for p in part_of.values()}.values()]


def _legal(captured: Captured, canonical: Canonical, site: Candidate, nodes: list[fx.Node]) -> bool:
    among = set(nodes)
    ops = [op for op in site.region.ops if captured.node_of[op.index] in among]
    return not isinstance(check(canonical, ops, None), Refusal)


def _kernels(captured: Captured, nodes: list[fx.Node]) -> int:
    return sum(op.launches for node in nodes for op in captured.ops_of(node))


def _region(captured: Captured, site: Candidate, nodes: list[fx.Node]) -> FxRegion:
    members = _with_views(captured, dict.fromkeys(nodes))
    among = set(members)
    inputs = dict.fromkeys(i for node in members for i in node.all_input_nodes if i not in among)
    outputs = tuple(node for node in members if any(user not in among for user in node.users))
    for node in outputs:
        if not isinstance(captured.results[node], Tensor):
            raise Unreachable(f"{_called(node)} returns several tensors, and something else reads them")
    if not outputs:
        raise Unreachable("nothing reads its result")
    return FxRegion(site, members, tuple(inputs), outputs, _kernels(captured, nodes))


def _with_views(captured: Captured, chosen: dict[fx.Node, None]) -> tuple[fx.Node, ...]:
    """``chosen`` and the views on paths between them, and what is made there in the shape of another (``full_like``).

    Raises:
        Unreachable: something that computes lies on such a path.
    """
    order = {node: i for i, node in enumerate(captured.fx_graph.nodes)}
    last = max(order[node] for node in chosen)
    below = _reached(chosen, lambda node: [u for u in node.users if order[u] <= last])
    above = _reached(chosen, lambda node: node.all_input_nodes)
    found = dict(chosen)
    for node in below & above:
        if node in chosen:
            continue
        if any(op.kernels and kind_of(op.name) != "generator" for op in captured.ops_of(node)):
            raise Unreachable(f"a path leaves it and comes back through {_called(node)}")
        found[node] = None
    return tuple(sorted(found, key=order.__getitem__))


def _reached(start: Iterable[fx.Node], step: Any) -> set[fx.Node]:
    pending, seen = list(start), set[fx.Node]()
    first = set(pending)
    while pending:
        for node in step(pending.pop()):
            if node not in seen:
                seen.add(node)
                pending.append(node)
    return seen | first


def _called(node: fx.Node) -> str:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return f"{name} ({node.name})"


def with_shared_views(region: FxRegion, captured: Captured) -> FxRegion:
    """``region``, reading what several of its inputs are views of, and with those views in it.

    The halves of a head that a rotary embedding turns come back as one gradient then, not as two to be put together.
    The views stay in the graph for whoever else reads them.
    """
    tensors = [node for node in region.inputs if isinstance(captured.results[node], Tensor)]
    ways = {node: viewed(node, captured) for node in tensors}
    shared = Counter(source for way in ways.values() for source in way)
    views: dict[fx.Node, None] = {}
    for way in ways.values():
        wholes = (i for i, n in enumerate(way) if shared[n] > 1 and isinstance(captured.results[n], Tensor))
        end = next(wholes, None)
        views.update(dict.fromkeys(way[:end] if end is not None else ()))
    if not views:
        return region
    order = {node: i for i, node in enumerate(captured.fx_graph.nodes)}
    members = tuple(sorted((*views, *region.members), key=order.__getitem__))
    among = set(members)
    inputs = dict.fromkeys(i for node in members for i in node.all_input_nodes if i not in among)
    return replace(region, members=members, inputs=tuple(inputs))


def viewed(node: fx.Node, captured: Captured) -> list[fx.Node]:
    """``node``, what it is a view of, what this is a view of, and so on."""
    way = [node]
    while way[-1].op in ("call_function", "call_method") and not any(o.kernels for o in captured.ops_of(way[-1])):
        sources = [n for n in way[-1].all_input_nodes if any(v is not None for v in captured.values[n])]
        if len(sources) != 1:
            break
        way.append(sources[0])
    return way


def as_module(region: FxRegion, captured: Captured) -> fx.GraphModule:
    """The region as a function of its tensor inputs, which returns its outputs: one tensor, or a tuple of them.

    Symbolic sizes among the inputs are read from the tensors, so that the function serves every size.

    Raises:
        Unreachable: a size is none of the sizes of the tensors.
    """
    graph = fx.Graph()
    made: dict[fx.Node, Any] = {}
    tensors = [node for node in region.inputs if isinstance(captured.results[node], Tensor)]
    for node in tensors:
        made[node] = graph.placeholder(node.name)
        made[node].meta["val"] = captured.results[node]
    for node in region.inputs:
        if node not in made:
            made[node] = _number(node, tensors, made, captured, graph)
    for node in region.members:
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].meta = {}
    outputs = [made[node] for node in region.outputs]
    graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
    graph.lint()
    return fx.GraphModule(torch.nn.Module(), graph)


def _number(
    node: fx.Node, tensors: list[fx.Node], made: dict[fx.Node, Any], captured: Captured, graph: fx.Graph
) -> Any:
    value = captured.results[node]
    if not isinstance(value, torch.SymInt):
        if isinstance(value, (int, float, bool, str, type(None), torch.dtype, torch.device)):
            return value
        raise Unreachable(f"{node.name} is a {type(value).__name__}, neither a tensor nor a number")
    return _size(value.node.expr, tensors, made, captured, graph)


def _size(
    expression: Any, tensors: list[fx.Node], made: dict[fx.Node, Any], captured: Captured, graph: fx.Graph
) -> Any:
    """A symbolic size from the sizes of the tensors: one of them, or a product or sum of such."""
    if expression.is_Integer:
        return int(expression)
    for source in tensors:
        for dim, size in enumerate(captured.results[source].shape):
            if isinstance(size, torch.SymInt) and size.node.expr == expression:
                return graph.call_method("size", (made[source], dim))
    if not (expression.is_Mul or expression.is_Add):
        raise Unreachable(f"the size {expression} is none of the sizes of its tensors")
    parts = [_size(part, tensors, made, captured, graph) for part in expression.args]
    joined = operator.mul if expression.is_Mul else operator.add
    return functools.reduce(lambda a, b: graph.call_function(joined, (a, b)), parts)


def tensor_inputs(region: FxRegion, captured: Captured) -> tuple[fx.Node, ...]:
    """The inputs of a region that are tensors, in the order of its function's placeholders."""
    return tuple(node for node in region.inputs if isinstance(captured.results[node], Tensor))


_SHORT = ("bf16", "f16")
_LONG = ("f32", "f64")


def check_roundings(region: FxRegion, captured: Captured) -> None:
    """Raises Unreachable where numbers are rounded to 16 bits on purpose and then used in more.

    No replacement rounds there. What comes in with 16 bits goes back to them by a model's own convention (the norms of
    Llama before their weight), and the replacements know those.
    """
    among = set(region.members)
    ops = [op for op in region.site.region.ops if captured.node_of[op.index] in among]
    inside = {op.index for op in ops}
    given = {
        value.dtype
        for op in ops
        for value in op.inputs()
        if value.producer is None or value.producer.index not in inside
    }
    for op in ops:
        short = op.outputs[0].dtype if op.outputs else ""
        if op.name != "aten._to_copy" or short not in _SHORT or short in given or op.inputs()[0].dtype not in _LONG:
            continue
        readers = [reader for reader in op.outputs[0].consumers if reader.index in inside]
        if any(value.dtype in _LONG for reader in readers for value in reader.outputs):
            raise Unreachable(f"it rounds to {short} and goes on with more digits")
