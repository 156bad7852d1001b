"""Where in a graph a fused call can stand: after all that it reads, before all that reads it."""

from __future__ import annotations

from torch import fx

from auditor.collect.capture import Captured
from auditor.graph.ops import kind_of
from auditor.patching.region import FxRegion, Unreachable


def insertion_point(graph: fx.Graph, captured: Captured, region: FxRegion, reads: set[fx.Node]) -> fx.Node:
    """The node before which the call goes. Nodes in its way are moved behind it, in their order.

    A region may be spread out: what reads its first results can stand before the last of its inputs. Such readers are
    moved, unless they write in place or draw random numbers: then their place matters.

    Raises:
        Unreachable: a reader cannot be moved.
    """
    order = {node: i for i, node in enumerate(graph.nodes)}
    last_input = max((order[node] for node in reads), default=-1)
    members = set(region.members)
    early = _early(region, order, last_input, members)
    for node in early:
        if any(op.mutates or kind_of(op.name) == "random" for op in captured.ops_of(node)):
            raise Unreachable(f"{node.name}, which reads it, has to run before {_name(graph, last_input)}")
    nodes = list(graph.nodes)
    anchor = next(node for node in nodes[last_input + 1 :] if node not in early and node.op != "placeholder")
    for node in early:
        anchor.prepend(node)
    return early[0] if early else _first(nodes, anchor, region)


def _first(nodes: list[fx.Node], anchor: fx.Node, region: FxRegion) -> fx.Node:
    """As late as may be, so that order changes little: where the last member stands, or before the first reader."""
    members = set(region.members)
    order = {node: i for i, node in enumerate(nodes)}
    readers = [order[user] for node in region.outputs for user in node.users if user not in members]
    place = max(order[anchor], min(min(readers), order[region.members[-1]]))
    return nodes[place]


def _early(region: FxRegion, order: dict[fx.Node, int], last_input: int, members: set[fx.Node]) -> list[fx.Node]:
    """What reads the region, at any distance, and stands before its last input."""
    pending, seen = list(region.outputs), set[fx.Node]()
    while pending:
        for user in pending.pop().users:
            if user not in members and user not in seen and order[user] <= last_input:
                seen.add(user)
                pending.append(user)
    return sorted(seen, key=order.__getitem__)


def _name(graph: fx.Graph, place: int) -> str:
    return str(list(graph.nodes)[place].name)
