"""What leads to a region's inputs, where a replacement reads further up than the region does.

Attention reads k and v before their heads were repeated for it, a rotary embedding the whole head of which the region
reads the halves. To try such a call on made-up numbers, the numbers have to be made where it reads, and what the region
reads follows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, fx

from auditor.collect.capture import Captured
from auditor.patching.region import FxRegion, as_module, viewed


@dataclass(frozen=True, eq=False)
class Lead:
    """``function`` computes ``derived``, inputs of a region, from those ``sources`` that it takes."""

    function: fx.GraphModule
    takes: tuple[fx.Node, ...]
    derived: tuple[fx.Node, ...]
    sources: tuple[fx.Node, ...]
    """All that has to be made up: what ``function`` takes, and the other inputs of the region."""
    fakes: tuple[Tensor, ...]
    """The fake tensors of ``sources``."""


def lead_to(region: FxRegion, inputs: Sequence[fx.Node], named: Sequence[fx.Node], captured: Captured) -> Lead | None:
    """The way from ``named`` nodes to ``inputs``, and from inputs to those that are views of them; None for no way.

    Raises:
        Unreachable: a size on the way is none of the sizes of its tensors.
    """
    further = [node for node in dict.fromkeys(named) if node not in inputs]
    order = {node: i for i, node in enumerate(captured.fx_graph.nodes)}
    way = _between(further, inputs, order) if further else set()
    for node in inputs:
        above = viewed(node, captured)
        end = next((i for i, source in enumerate(above) if i and (source in inputs or source in named)), 0)
        way.update(above[:end])
    if not way:
        return None
    derived = tuple(node for node in inputs if node in way)
    members = tuple(sorted(way, key=order.__getitem__))
    among = set(members)
    outside = dict.fromkeys(i for node in members for i in node.all_input_nodes if i not in among)
    path = FxRegion(region.site, members, tuple(outside), derived, 0)
    takes = tuple(node for node in outside if isinstance(captured.results[node], Tensor))
    sources = tuple(dict.fromkeys((*takes, *further, *(node for node in inputs if node not in among))))
    fakes = tuple(captured.results[node] for node in sources)
    return Lead(as_module(path, captured), takes, derived, sources, fakes)


def _between(starts: Sequence[fx.Node], ends: Sequence[fx.Node], order: dict[fx.Node, int]) -> set[fx.Node]:
    """Nodes that depend on a start and that an end depends on; the ends themselves among them, the starts not."""
    first = min(order[node] for node in starts)
    below: set[fx.Node] = set()
    pending = list(starts)
    last = max(order[node] for node in ends)
    while pending:
        for user in pending.pop().users:
            if user not in below and order[user] <= last:
                below.add(user)
                pending.append(user)
    above, pending = set(ends), list(ends)
    while pending:
        for source in pending.pop().all_input_nodes:
            if source not in above and order[source] > first:
                above.add(source)
                pending.append(source)
    return (below & above) - set(starts)
