"""What is worth computing once before a loop over more elements: exp and its like of values that are broadcast.

Inductor puts every elementwise op into the loop that reads it. A power of one number a row is then taken again for each
element of the row, which made a norm with a learned power three times as slow as one that takes it once.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, fx
from torch._ops import OpOverload

DEAR: Final = frozenset(
    {"cos", "erf", "erfc", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2", "pow", "sigmoid", "sin", "tan",
     "tanh"}
)  # fmt: skip
"""Ops that are library calls within a vectorised loop; the compiler of the C++ cannot move those out of it."""

TIMES: Final = 8
"""How many times larger the loop has to be: the small values are written and read once more."""


def hoist(graph: fx.GraphModule) -> None:
    """Have dear values of ``graph`` stored where a far larger loop reads them. It computes what it did before."""
    import torch._inductor.test_operators

    dear: set[fx.Node] = set()
    for node in list(graph.graph.nodes):
        size = _elements(node)
        if not size or not (_is_dear(node) or any(n in dear and _elements(n) <= size for n in node.all_input_nodes)):
            continue
        if all(_elements(user) < TIMES * size for user in node.users):
            dear.add(node)
            continue
        with graph.graph.inserting_after(node):
            stored = graph.graph.call_function(torch.ops._inductor_test.realize.default, (node,))
        stored.meta = dict(node.meta)
        node.replace_all_uses_with(stored, delete_user_cb=lambda user, own=stored: user is not own)
    graph.recompile()


def _is_dear(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.name.partition("::")[2] in DEAR


def _elements(node: fx.Node) -> int:
    """How many it has at the sizes at hand; 0 for what is no tensor."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return 0
    count: Any = value.numel()
    return count if isinstance(count, int) else int(count.node.hint or 0)
