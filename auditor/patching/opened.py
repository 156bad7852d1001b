"""Calls that stand for several kernels, of which some can be fused and some can't, as the calls of these kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

_DROPOUT = ("input", "p", "training", "inplace")
_KEPT = ("nn_module_stack", "source_fn_stack", "stack_trace")
"""What Dynamo writes down of a call: where it comes from."""


def open_dropouts(graph: fx.Graph) -> None:
    """Dropout on a CPU as PyTorch computes it there: it draws numbers, divides them by 1 − p, and multiplies by them.

    The numbers are drawn as ever, in the same order; the rest can be part of a fused kernel. On a GPU it is one kernel.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in (F.dropout, torch.dropout):
            given = dict(zip(_DROPOUT, node.args, strict=False)) | dict(node.kwargs)
            if "train" in given:
                given["training"] = given.pop("train")
            if _opens(given):
                _open(graph, node, given["input"], given.get("p", 0.5))


def _opens(given: dict[str, Any]) -> bool:
    x, p = given.get("input"), given.get("p", 0.5)
    example = x.meta.get("example_value") if isinstance(x, fx.Node) else None
    if not isinstance(example, Tensor) or example.device.type != "cpu":
        return False
    return given.get("training", True) is True and not given.get("inplace") and isinstance(p, float) and 0 < p < 1


def _open(graph: fx.Graph, node: fx.Node, x: fx.Node, p: float) -> None:
    with graph.inserting_before(node):
        noise = graph.call_function(torch.empty_like, (x,))
        drawn = graph.call_method("bernoulli_", (noise, 1 - p))
        scaled = graph.call_function(torch.div, (drawn, 1 - p))
        result = graph.call_function(torch.mul, (x, scaled))
    for made in (noise, drawn, scaled, result):
        made.meta = {name: node.meta[name] for name in _KEPT if name in node.meta}
    result.meta["example_value"] = node.meta.get("example_value")
    node.replace_all_uses_with(result)
    graph.erase_node(node)
