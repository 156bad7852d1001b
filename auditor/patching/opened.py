"""Calls that PyTorch computes by parts, as those parts: dropout on a CPU, and attention with dropout there."""

from __future__ import annotations

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
    if not isinstance(given.get("scale"), (float, int, type(None))):
        return False
    return isinstance(given.get("is_causal", False), bool) and (mask is None or example_of(mask) is not None)


def _open_attention(graph: fx.Graph, node: fx.Node, given: dict[str, Any]) -> None:
    q, k, v = (given[name] for name in _ATTENTION[:3])
    mask: Any = given.get("attn_mask")
    example, calls = q.meta["example_value"], _Calls(graph, node)
    call = calls.call
    if example.dtype is not torch.float32:
        q, k, v = (call("float", tensor) for tensor in (q, k, v))
    scale = given.get("scale")
    scale = example.shape[-1] ** -0.5 if scale is None else scale
    batch = call("size", given["query"], 0) if _of_one_batch([given[name] for name in _ATTENTION[:3]]) else None
    scores = call(torch.mul, calls.product(q, call("transpose", k, -2, -1), batch), scale)
    causal = given.get("is_causal", False)
    if causal:
        sizes = call("size", q, -2), call("size", k, -2)
        mask = call(torch.tril, call(torch.ones, sizes, dtype=torch.bool, device=example.device))
    if mask is not None and (causal or mask.meta["example_value"].dtype is torch.bool):
        scores = call("masked_fill", scores, call(torch.logical_not, mask), -torch.inf)
    elif mask is not None:
        scores = call(torch.add, scores, mask)
    weights = call(torch.ops.aten._safe_softmax.default, scores, -1)
    result = calls.product(calls.dropped(weights, given["dropout_p"]), v, batch)
    calls.take_place(result if example.dtype is torch.float32 else call("to", result, example.dtype))


def _of_one_batch(tensors: list[Any]) -> bool:
    """Whether all have four dimensions and the same first two, by name where sizes are symbols."""
    examples = [example_of(tensor) for tensor in tensors]
    batches = {tuple(map(str, e.shape[:2])) if e is not None and e.ndim == 4 else None for e in examples}
    return len(batches) == 1 and None not in batches


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
                calls = _Calls(graph, node)
                calls.take_place(calls.dropped(given["input"], given.get("p", 0.5)))


def _opens(given: dict[str, Any]) -> bool:
    x, p = given.get("input"), given.get("p", 0.5)
    example = example_of(x)
    if example is None or example.device.type != "cpu":
        return False
    return given.get("training", True) is True and not given.get("inplace") and isinstance(p, float) and 0 < p < 1


class _Calls:
    """Calls put before ``node``, in whose place they come."""

    def __init__(self, graph: fx.Graph, node: fx.Node) -> None:
        self._graph, self._node = graph, node

    def call(self, function: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A call of a function, or of the method of that name."""
        with self._graph.inserting_before(self._node):
            create = self._graph.call_method if isinstance(function, str) else self._graph.call_function
            made = create(function, args, kwargs)
        made.meta = {name: self._node.meta[name] for name in _KEPT if name in self._node.meta}
        return made

    def product(self, a: fx.Node, b: fx.Node, batch: fx.Node | None) -> fx.Node:
        """``matmul``; of tensors (``batch``, heads, …) of one batch as the copies and the product that it is.

        A copy that makes a matrix of each head contiguous can be part of the kernel that computes it.
        """
        if batch is None:
            return self.call(torch.matmul, a, b)
        flat = self.call(torch.bmm, self.call("flatten", a, 0, 1), self.call("flatten", b, 0, 1))
        return self.call("unflatten", flat, 0, (batch, -1))

    def dropped(self, x: fx.Node, p: float) -> fx.Node:
        """Dropout of ``x`` by the kernels that it is on a CPU."""
        drawn = self.call("bernoulli_", self.call(torch.empty_like, x), 1 - p)
        return self.call(torch.mul, x, self.call(torch.div, drawn, 1 - p))

    def take_place(self, result: fx.Node) -> None:
        """Everybody reads ``result`` instead of the node."""
        result.meta["example_value"] = self._node.meta.get("example_value")
        self._node.replace_all_uses_with(result)
        self._graph.erase_node(self._node)
