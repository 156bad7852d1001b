"""Attention by parts: two products with a softmax between them."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from auditor.collect.capture import hint
from auditor.graph.nodes import Node
from auditor.patching.adapters.operands import Operand, outside, sizes, viewed_by
from auditor.patching.adapters.scores import LOW, Mask, Scores, fits, kept, scores_before
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.calls import Nested
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView

PRODUCTS: Final = (torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm", "__matmul__")


def attention(view: SiteView) -> Iterator[Wanted]:
    """``softmax(scale · q @ kᵀ + mask) @ v``."""
    first, second = _product(view, view.call("s")), _product(view, view.call("o"))
    scores = scores_before(view, view.call("p"))
    _check_layout(view, first, second)
    kwargs: dict[str, Any] = {"scale": scores.scale, **_dropout(view)}
    args: list[Operand] = [outside(view, _operand(first, 0)), *_keys_and_values(view, first, second)]
    if scores.masks:
        mask, more = _mask(view, scores, first)
        args.append(mask)
        kwargs |= more
    yield Wanted("attention", tuple(args), kwargs, view.results(view.sink()))


def _product(view: SiteView, node: Node) -> fx.Node:
    made = view.node_of(node.op)
    if made.target not in PRODUCTS:
        raise Unreachable(f"{made.name} is no plain product of two tensors")
    return made


def _operand(product: fx.Node, place: int) -> fx.Node:
    given = product.args[place] if place < len(product.args) else None
    if not isinstance(given, fx.Node):
        raise Unreachable(f"{product.name} is called by keywords")
    return given


def _check_layout(view: SiteView, first: fx.Node, second: fx.Node) -> None:
    """Content hides transposes: rows of the scores have to be what the softmax normalises and what weighs the values.

    Raises:
        Unreachable: they are viewed in another way in between.
    """
    scores, weights = view.fake(first), view.fake(_operand(second, 0))
    softmax = view.fake(view.node_of(view.call("p").ops[-1]))
    if not sizes(scores) == sizes(softmax) == sizes(weights) or weights.stride(-1) != 1:
        raise Unreachable("the scores are viewed in another shape between the products")


def _keys_and_values(view: SiteView, first: fx.Node, second: fx.Node) -> tuple[Operand, Operand]:
    """k as (…, keys, head_dim), and v. Where heads of both were repeated for the query heads: as they were before."""
    turned, values = _operand(first, 1), _operand(second, 1)
    keys = _transposed_from(view, turned)
    fewer = None if keys is None else _before_repeat(view, keys), _before_repeat(view, values)
    if fewer[0] is not None and fewer[1] is not None and sizes(view.fake(fewer[0]))[1] == sizes(view.fake(fewer[1]))[1]:
        return fewer[0], fewer[1]
    return Nested(torch.transpose, (outside(view, turned), -2, -1)), outside(view, values)


def _transposed_from(view: SiteView, node: fx.Node) -> fx.Node | None:
    """The tensor whose last two dimensions ``node`` shows in the other order."""
    turned = view.fake(node).transpose(-2, -1)
    for source in viewed_by(view, node):
        if source is not node and _same_view(view.fake(source), turned):
            return source
    return None


def _same_view(a: Tensor, b: Tensor) -> bool:
    return sizes(a) == sizes(b) and tuple(map(hint, a.stride())) == tuple(map(hint, b.stride()))


def _before_repeat(view: SiteView, node: fx.Node) -> fx.Node | None:
    """(batch, heads / groups, length, size) where ``node`` holds each of its heads ``groups`` times, side by side."""
    if node in view.region.members or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.target not in ("reshape", torch.reshape) or view.fake(node).dim() != 4:
        return None
    wide = view.fake(node.args[0])
    batch, heads, length, size = sizes(view.fake(node))
    if wide.dim() != 5 or hint(wide.stride(2)) != 0:
        return None
    groups = sizes(wide)[2]
    shape = (batch, heads // groups, length, size)
    return next((n for n in viewed_by(view, node.args[0]) if sizes(view.fake(n)) == shape), None)


def _mask(view: SiteView, scores: Scores, first: fx.Node) -> tuple[Operand, dict[str, Any]]:
    """The one mask, and in which form it is."""
    last = {"scale_after_mask": True} if scores.scale_last else {}
    if {mask.kind for mask in scores.masks} == {"added"}:
        _check_masks(view, scores.masks, first)
        return _joined(torch.add, [mask.operand for mask in scores.masks]), last
    if len({mask.kind == "added" for mask in scores.masks}) > 1:
        raise Unreachable("one mask is added, and another fills")
    filled = scores.fill * scores.scale if scores.scale_last else scores.fill
    if not filled <= LOW:
        raise Unreachable(f"masked scores are filled with {filled}, which is a score like any other")
    fill = {} if math.isinf(scores.fill) else {"fill": scores.fill}
    if len(scores.masks) == 1:
        return scores.masks[0].operand, {"mask_keeps": scores.masks[0].kind == "keeps", **fill}
    return _joined(torch.logical_and, [kept(mask) for mask in scores.masks]), {"mask_keeps": True, **fill}


def _check_masks(view: SiteView, masks: list[Mask], first: fx.Node) -> None:
    for mask in masks:
        if isinstance(mask.operand, fx.Node) and not fits(view.fake(mask.operand), view.fake(first)):
            raise Unreachable(f"{mask.operand.name} is no mask of the scores")


def _joined(function: Any, operands: list[Operand]) -> Operand:
    """Masks are small beside the scores, or one of them is what the parts write anyway."""
    made = operands[0]
    for operand in operands[1:]:
        made = Nested(function, (made, operand))
    return made


def _dropout(view: SiteView) -> dict[str, Any]:
    if not view.has("dropped"):
        return {}
    node = view.node_of(view.call("dropped").op)
    if node.target not in (F.dropout, torch.dropout):
        raise Unreachable(f"{node.name} is dropout of another kind")
    given = dict(zip(("p", "training"), node.args[1:], strict=False)) | dict(node.kwargs)
    return {"dropout": given.get("p", 0.5), "training": bool(given.get("training", given.get("train", True)))}
