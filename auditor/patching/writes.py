"""Writes in place as calls that return new tensors, so that they can be part of a fused call."""

from __future__ import annotations

import inspect
import operator
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from auditor.collect.capture import hint

_OPERATORS: dict[Any, Any] = {
    operator.iadd: operator.add, operator.isub: operator.sub, operator.imul: operator.mul,
    operator.itruediv: operator.truediv,
}  # fmt: skip
_METHODS = frozenset({
    "abs", "add", "addcdiv", "addcmul", "ceil", "clamp", "clamp_max", "clamp_min", "clip", "cos", "div", "divide",
    "elu", "erf", "exp", "expm1", "floor", "hardtanh", "lerp", "log", "log1p", "masked_fill", "mul", "multiply",
    "neg", "negative", "pow", "reciprocal", "relu", "relu6", "round", "rsqrt", "selu", "sigmoid", "sign", "sin",
    "sqrt", "square", "sub", "subtract", "tanh", "trunc",
})  # fmt: skip
"""What a kernel can do elementwise; with an underscore at its end it writes in place."""


@dataclass(frozen=True)
class _Written:
    """A node that wrote ``into`` another, and what it called."""

    node: fx.Node
    into: fx.Node
    target: Any
    flagged: bool
    """The same function writes and does not write, as its ``inplace`` says."""


class OpenedWrites:
    """Calls that write into a tensor of the graph's own, which nothing else shows, made to return a new one instead.

    As part of a fused call they need no write at all. :meth:`close` has those that none took over write in place again.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._graph = graph
        self._written: list[_Written] = []
        self._storages = _by_storage(graph)
        for node in list(graph.nodes):
            form = _without_write(node)
            if form is not None and self._unseen(node) and _same_result(node, *form):
                self._open(node, *form)

    def close(self) -> None:
        """Call once every site is exchanged."""
        order = {node: i for i, node in enumerate(self._graph.nodes)}
        for written in self._written:
            node, into = written.node, written.into
            if node not in order or node.args[0] is not into or any(order[user] > order[node] for user in into.users):
                continue  # it is part of a site, or what it wrote into is now another's result
            node.target = written.target
            if written.flagged:
                node.kwargs = {**node.kwargs, "inplace": True}

    def _unseen(self, node: fx.Node) -> bool:
        """Whether nothing but ``node`` shows afterwards that a tensor was written."""
        into = node.args[0] if node.args else None
        if not isinstance(into, fx.Node) or into.op not in ("call_function", "call_method"):
            return False
        storage = _storage_of(into)
        if storage is None:
            return False
        here = self._order[node]
        for other in self._storages[storage]:
            if self._order[other] >= here or other is into:
                continue
            if other.op in ("placeholder", "get_attr") or any(self._order[u] > here for u in other.users):
                return False
        return True

    def _open(self, node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        into = node.args[0]
        assert isinstance(into, fx.Node)
        self._written.append(_Written(node, into, node.target, target is node.target))
        here = self._order[node]
        into.replace_all_uses_with(node, delete_user_cb=lambda user: self._order[user] > here)
        node.target, node.args, node.kwargs = target, args, kwargs


def example_of(node: Any) -> Tensor | None:
    """The fake tensor that Dynamo traced ``node`` with; None where it is no node, or one of no tensor."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, Tensor) else None


def _by_storage(graph: fx.Graph) -> dict[int, list[fx.Node]]:
    found = defaultdict[int, list[fx.Node]](list)
    for node in graph.nodes:
        storage = _storage_of(node)
        if storage is not None:
            found[storage].append(node)
    return found


def _storage_of(node: fx.Node) -> int | None:
    value = example_of(node)
    if value is None or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _without_write(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """Target, arguments and keyword arguments of the call that returns what ``node`` writes; None for no such call."""
    kwargs, target = dict(node.kwargs), node.target
    if node.op == "call_method" and isinstance(target, str):
        name = target.removesuffix("_")
        return (name, node.args, kwargs) if name != target and name in _METHODS and "out" not in kwargs else None
    if node.op != "call_function":
        return None
    if target in _OPERATORS:
        return _OPERATORS[target], node.args, kwargs
    name = getattr(target, "__name__", "")
    if name.endswith("_") and name[:-1] in _METHODS and target is getattr(torch, name, None):
        return getattr(torch, name[:-1]), node.args, kwargs
    if getattr(F, name, None) is target and "inplace" in _parameters(target):
        given = dict(zip(_parameters(target), node.args, strict=False)) | kwargs
        if given.get("inplace") is True:
            rest = {key: value for key, value in given.items() if key not in ("input", "inplace")}
            return target, (given["input"],), rest
    return None


@cache
def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def _same_result(node: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call returns a tensor of the dtype, shape and strides of the one that was written into."""
    into = args[0].meta["example_value"]
    try:
        with torch.no_grad():
            given, named = fx.node.map_arg((args, kwargs), lambda n: _meta(n.meta["example_value"]))
            made = (
                getattr(given[0], target)(*given[1:], **named) if node.op == "call_method" else target(*given, **named)
            )
    except Exception:  # whatever is missing or does not fit: the write stays
        return False
    wanted = _meta(into)
    return bool((made.dtype, made.shape, made.stride()) == (wanted.dtype, wanted.shape, wanted.stride()))


def _meta(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return hint(value)
    shape, strides = [hint(n) for n in value.shape], [hint(n) for n in value.stride()]
    return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
