"""A region of an FX graph exchanged for the call that was chosen for it."""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from auditor.collect.capture import Captured
from auditor.patching.calls import Nested, Proposal, SiteCall, nodes_of
from auditor.patching.order import insertion_point
from auditor.patching.region import FxRegion, Unreachable

_numbers = itertools.count(1)


CASTS = ("to", "float", "double", "half", "bfloat16", "type", "type_as")


def drop_idle_casts(graph: fx.Graph, captured: Captured) -> None:
    """Casts to the dtype that a tensor has return the tensor itself. Dtypes are guarded, so that stays so."""
    for node in list(graph.nodes):
        if node.op == "call_method" and node.target in CASTS and isinstance(node.args[0], fx.Node):
            source = node.args[0]
            if captured.results[node] is captured.results[source]:
                node.replace_all_uses_with(source)
                graph.erase_node(node)


def exchange(
    graph: fx.Graph, captured: Captured, region: FxRegion, proposal: Proposal, inputs: Sequence[fx.Node],
    separate: Callable[..., Any],
) -> SiteCall:  # fmt: skip
    """Put a call of ``proposal`` where ``region`` is, which is ``separate`` of ``inputs``.

    Raises:
        Unreachable: there is no place for it in the graph.
    """
    current = captured.current
    given = tuple(map(current, inputs))
    reads = {*given, *(current(node) for node in nodes_of((proposal.args, proposal.kwargs)))}
    if any(node._erased for node in reads):
        raise Unreachable("another site has taken what it reads")
    before = insertion_point(graph, captured, region, reads)
    name = f"site_{next(_numbers)}_{proposal.replacement}"
    call = SiteCall(name, proposal.function, separate, proposal.results if proposal.several else None)
    with graph.inserting_before(before):
        args, kwargs = _materialised(graph, proposal, current)
        made = graph.call_function(call, (given, *args), kwargs)
        leaves = _leaves(graph, made, proposal, len(region.outputs))
    for node, leaf in zip(region.outputs, leaves, strict=True):
        leaf.meta["example_value"] = captured.results[node]
        captured.exchange(node, leaf)
        node.replace_all_uses_with(leaf)
    for node in reversed(region.members):
        graph.erase_node(node)
    return call


def _materialised(
    graph: fx.Graph, proposal: Proposal, current: Callable[[fx.Node], fx.Node]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def made(argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return current(argument)
        if isinstance(argument, Nested):
            return graph.call_function(argument.function, tuple(map(made, argument.args)))
        if isinstance(argument, (tuple, list)):
            return type(argument)(map(made, argument))
        return argument

    return tuple(map(made, proposal.args)), {name: made(value) for name, value in proposal.kwargs.items()}


def _leaves(graph: fx.Graph, made: fx.Node, proposal: Proposal, count: int) -> list[fx.Node]:
    if not proposal.several:
        return [made] * count
    return [graph.call_function(operator.getitem, (made, i)) for i in proposal.results]


def code_of(module: fx.GraphModule) -> Callable[..., Any]:
    """The code that ``module`` has now. (Dynamo's graph modules write theirs when they are first called.)"""
    module.recompile()
    made = getattr(module, "real_recompile", None)
    if made is not None:
        made()
    return types.MethodType(type(module).forward, module)
