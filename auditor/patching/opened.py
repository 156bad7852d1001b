"""Calls that PyTorch computes by parts, as those parts: dropout on a CPU, and attention with dropout there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

from auditor.patching.writes import example_of

_DROPOUT = ("input", "p", "training", "inplace")
_KEPT = ("nn_module_stack", "source_fn_stack", "stack_trace")
"""What Dynamo writes down of a call: where it comes from."""


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


def open_attentions(graph: fx.Graph) -> None:
    """PyTorch's attention with dropout on a CPU, which it computes by parts there, as those parts.

    They are the same but for the scale, which is applied to the scores: there a fused softmax takes it along.
    """
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target is F.scaled_dot_product_attention:
            given = dict(zip(_ATTENTION, node.args, strict=False)) | dict(node.kwargs)
            if _falls_apart(given):
                _open_attention(graph, node, given)


def _falls_apart(given: dict[str, Any]) -> bool:
    q, p = given.get("query"), given.get("dropout_p")
    mask: Any = given.get("attn_mask")
    example = example_of(q)
    if example is None or example.device.type != "cpu" or example.dtype is torch.float64:
        return False
    if given.get("enable_gqa") or not isinstance(p, float) or not 0 < p < 1 or not isinstance(example.shape[-1], int):
        return False
    if example.dtype is not torch.float32 and torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed():
        return False
    numbers = isinstance(given.get("scale"), (float, int, type(None))) and isinstance(
        given.get("is_causal", False), bool
    )
    return numbers and (mask is None or example_of(mask) is not None)


def _open_attention(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> None:
    q, k, v = (given[name] for name in _ATTENTION[:3])
    mask: Any = given.get("attn_mask")
    example, made = q.meta["example_value"], list[fx.Node]()

    def call(function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        method = isinstance(function, str)
        made.append(
            graph.call_method(function, args, kwargs) if method else graph.call_function(function, args, kwargs)
        )
        return made[-1]

    with graph.inserting_before(node):
        if example.dtype is not torch.float32:
            q, k, v = (call("float", tensor) for tensor in (q, k, v))
        scale = given.get("scale")
        scale = example.shape[-1] ** -0.5 if scale is None else scale
        scores = call(torch.mul, call(torch.matmul, q, call("transpose", k, -2, -1)), scale)
        if given.get("is_causal"):
            sizes = call("size", q, -2), call("size", k, -2)
            mask = call(torch.tril, call(torch.ones, sizes, dtype=torch.bool, device=example.device))
        if mask is not None and (given.get("is_causal") or mask.meta["example_value"].dtype is torch.bool):
            scores = call("masked_fill", scores, call(torch.logical_not, mask), -torch.inf)
        elif mask is not None:
            scores = call(torch.add, scores, mask)
        weights = call(torch.ops.aten._safe_softmax.default, scores, -1)
        empty = call(torch.empty_like, weights)
        noise = call(torch.div, call("bernoulli_", empty, 1 - given["dropout_p"]), 1 - given["dropout_p"])
        result = call(torch.matmul, call(torch.mul, weights, noise), v)
        if example.dtype is not torch.float32:
            result = call("to", result, example.dtype)
    _take_place(graph, node, result, made)


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
    example = example_of(x)
    if example is None or example.device.type != "cpu":
        return False
    return given.get("training", True) is True and not given.get("inplace") and isinstance(p, float) and 0 < p < 1


def _open(graph: fx.Graph, node: fx.Node, x: fx.Node, p: float) -> None:
    with graph.inserting_before(node):
        noise = graph.call_function(torch.empty_like, (x,))
        drawn = graph.call_method("bernoulli_", (noise, 1 - p))
        scaled = graph.call_function(torch.div, (drawn, 1 - p))
        result = graph.call_function(torch.mul, (x, scaled))
    _take_place(graph, node, result, (noise, drawn, scaled, result))


def _take_place(graph: fx.Graph, node: fx.Node, result: fx.Node, made: Iterable[fx.Node]) -> None:
    for new in made:
        new.meta = {name: node.meta[name] for name in _KEPT if name in node.meta}
    result.meta["example_value"] = node.meta.get("example_value")
    node.replace_all_uses_with(result)
    graph.erase_node(node)
