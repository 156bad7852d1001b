"""RMS norm and layer norm, with and without the residual add before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from auditor.graph.nodes import CValue, Node
from auditor.patching.adapters.operands import Operand, argument, sizes
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.calls import Nested
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView

RMS_CASTS = ("llama", "gemma")
LAYER_CASTS = ("torch", "deberta")
LEAST_NORM = 1e-6
"""A floor under the norm of a row that no row of a model comes near: then it may as well be added under the root."""


def rms_norm(view: SiteView) -> Iterator[Wanted]:
    """``x / sqrt(mean(x²) + eps) · (offset + weight)``."""
    x = view.tensor("x")
    results = view.results(view.sink())
    for options in _rms_options(view):
        yield Wanted("rms_norm", (x, view.tensor("weight")), options, results, faithful=_in_fp32(view))


def add_rms_norm(view: SiteView) -> Iterator[Wanted]:
    """The sum of a branch, which may be scaled, and the residual, and its norm."""
    args = (_branch(view), view.tensor("residual"), view.tensor("weight"))
    results = view.results(view.sink(), view.out("x"))
    for options in _rms_options(view):
        yield Wanted("add_rms_norm", args, options, results, faithful=_in_fp32(view))


def _branch(view: SiteView) -> Operand | None:
    branch, scale = view.tensor("branch"), view.number("c_scale")
    return branch if scale is None else Nested(torch.mul, (branch, scale))


def _rms_options(view: SiteView) -> Iterator[dict[str, Any]]:
    options: dict[str, Any] = {"eps": _rms_eps(view), "offset": 1.0 if view.has("c_one") else 0.0}
    for cast in RMS_CASTS if view.low_precision() else RMS_CASTS[:1]:
        yield {**options, "cast": cast}


def _rms_eps(view: SiteView) -> float | None:
    """What is added under the root. A floor under the root becomes such, its square."""
    eps = view.number("c_eps")
    if view.has("inv"):
        return eps
    floor = view.call("n")
    if eps is None or floor.kind != "clamp_min" or not 0 < eps <= LEAST_NORM:
        raise Unreachable("eps is added to the root, not under it")
    return eps**2 if view.has("rms") else eps**2 / _width(view)


def _width(view: SiteView) -> int:
    """How many elements a row has whose norm, not whose mean, is taken."""
    x = view.tensor("x")
    assert x is not None
    return sizes(view.fake(x))[-1]


def layer_norm(view: SiteView) -> Iterator[Wanted]:
    """A layer norm written by hand, or a residual add before a native one."""
    if view.has("s"):
        yield from _add_layer_norm(view)
        return
    _check_variance(view)
    args = (view.tensor("x"), view.tensor("weight"), view.tensor("bias"))
    results = view.results(view.sink())
    for cast in LAYER_CASTS if view.low_precision() else LAYER_CASTS[:1]:
        yield Wanted("layer_norm", args, {"eps": view.number("c_eps"), "cast": cast}, results, _in_fp32(view))


def _check_variance(view: SiteView) -> None:
    if not view.has("c_eps") or view.has("sd"):
        raise Unreachable("eps is added to the deviation, not to the variance")
    for node in view.inside():
        if node.kind in ("var", "var_mean") and node.args[2] != 0:
            raise Unreachable("the variance is the unbiased one")


def _add_layer_norm(view: SiteView) -> Iterator[Wanted]:
    norm, total = view.call("y"), view.call("s")
    weight, bias, eps = (*norm.args[1:4], None, None, None)[:3]
    learned = view.operand(weight), view.operand(bias)
    results = view.results(norm.outs[0], total.outs[0])
    args = (*_summands(view, total), *learned)
    yield Wanted("add_layer_norm", args, {"eps": 1e-5 if eps is None else eps}, results)


def _summands(view: SiteView, total: Node) -> tuple[Operand, Operand]:
    """Two tensors that are added. Of three, two are added before, the one that is broadcast among them."""
    first, second = (_parts(view, total, content) for content in total.args)
    if len(first) + len(second) == 3:
        wide = sizes(view.fake(view.node_of(total.op)))
        alone, *pair = sorted((*first, *second), key=lambda part: _sizes(view, part) != wide)
        if _sizes(view, (*first, *second)[-1]) != wide or _sizes(view, first[0]) != wide:
            return alone, Nested(torch.add, tuple(pair))
    a, b = (part[0] if len(part) == 1 else Nested(torch.add, tuple(part)) for part in (first, second))
    return b, a


def _sizes(view: SiteView, operand: Operand) -> tuple[int, ...] | None:
    return sizes(view.fake(operand)) if isinstance(operand, fx.Node) else None


def _parts(view: SiteView, node: Node, content: CValue) -> list[Operand]:
    """An addend of ``node``, or both addends of the sum that it is."""
    made = content.root.producer
    if made is None or made not in view.inside():
        return [argument(view, node, content)]
    if made.kind == "add":
        return [argument(view, made, operand) for operand in made.args]
    return [Nested(torch.mul, tuple(_factor(view, made, factor) for factor in made.args))]


def _factor(view: SiteView, node: Node, factor: Any) -> Operand | float:
    return argument(view, node, factor) if type(factor) is CValue else float(factor)


def _in_fp32(view: SiteView) -> bool:
    """Whether the norm is computed in fp32 between casts: then it can be had bit by bit."""
    return any(node.kind in ("mean", "var") and node.op.outputs[0].dtype == "f32" for node in view.inside())
