"""RMS norm and layer norm, with and without the residual add before them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import fx

from auditor.graph.nodes import CValue
from auditor.patch.adapters.wanted import Wanted
from auditor.patch.region import Unreachable
from auditor.patch.site import SiteView

RMS_CASTS = ("llama", "gemma")


def rms_norm(view: SiteView) -> Iterator[Wanted]:
    """``x / sqrt(mean(x²) + eps) · (offset + weight)``."""
    x = view.tensor("x")
    results = view.results(_sink(view))
    for options in _rms_options(view):
        yield Wanted("rms_norm", (x, view.tensor("weight")), options, results, faithful=True)


def add_rms_norm(view: SiteView) -> Iterator[Wanted]:
    """The sum of a branch and the residual, and its norm."""
    if view.has("c_scale"):
        raise Unreachable("the branch is scaled before it is added")
    args = (view.tensor("branch"), view.tensor("residual"), view.tensor("weight"))
    results = view.results(_sink(view), view.out("x"))
    for options in _rms_options(view):
        yield Wanted("add_rms_norm", args, options, results, faithful=True)


def _rms_options(view: SiteView) -> Iterator[dict[str, Any]]:
    if not view.has("inv"):
        raise Unreachable("eps is added to the root, not under it")
    options: dict[str, Any] = {"eps": view.number("c_eps"), "offset": 1.0 if view.has("c_one") else 0.0}
    for cast in RMS_CASTS if view.low_precision() else RMS_CASTS[:1]:
        yield {**options, "cast": cast}


def layer_norm(view: SiteView) -> Iterator[Wanted]:
    """A layer norm written by hand, or a residual add before a native one."""
    if view.has("s"):
        yield from _add_layer_norm(view)
        return
    if not view.has("c_eps") or view.has("sd"):
        raise Unreachable("eps is added to the deviation, not to the variance")
    x, weight, bias = view.tensor("x"), view.tensor("weight"), view.tensor("bias")
    yield Wanted("layer_norm", (x, weight, bias), {"eps": view.number("c_eps")}, view.results(_sink(view)))


def _add_layer_norm(view: SiteView) -> Iterator[Wanted]:
    if view.has("scale") or view.has("b"):
        raise Unreachable("more than two tensors are added before the norm")
    norm = view.call("y")
    weight, bias, eps = (*norm.args[1:4], None, None, None)[:3]
    args = (view.tensor("c"), view.tensor("a"), _learned(view, weight), _learned(view, bias))
    results = view.results(norm.outs[0], view.out("s"))
    yield Wanted("add_layer_norm", args, {"eps": 1e-5 if eps is None else eps}, results)


def _learned(view: SiteView, argument: Any) -> fx.Node | None:
    return view.operand(argument)


def _sink(view: SiteView) -> CValue:
    match = view.region.site.match
    assert match is not None
    return match.sink.outs[0]
