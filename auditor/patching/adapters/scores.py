"""Between scores and probabilities: the scale and the masks before a softmax, read upward from it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from auditor.collect.capture import hint
from auditor.graph.nodes import CValue, Node
from auditor.patching.adapters.operands import Operand, argument, learned_number
from auditor.patching.calls import Nested
from auditor.patching.region import Unreachable
from auditor.patching.site import SiteView

LOW = -1e4
"""A score that is filled with less has a probability of 0: the exponential of it is no number above 0 in fp32."""


@dataclass
class Mask:
    """``added``: to the scores. ``keeps``: True takes part. ``drops``: True is filled."""

    kind: Literal["added", "keeps", "drops"]
    operand: Operand


@dataclass
class Scores:
    """``softmax(scale · first, masked)``. ``masks`` in the order in which they are applied."""

    first: CValue
    reader: Node
    """The node that reads ``first``."""
    scale: float = 1.0
    scale_last: bool = False
    """The scale multiplies the masks as well."""
    masks: list[Mask] = field(default_factory=list)
    fill: float = -math.inf


def scores_before(view: SiteView, softmax: Node) -> Scores:
    """What the nodes of the region before ``softmax`` do to the scores.

    Raises:
        Unreachable: more than a scale, masks that are added, and masks that fill with one number.
    """
    found = Scores(softmax.args[0].root, softmax)
    inside = {id(node) for node in view.inside()}
    while (made := found.first.producer) is not None and id(made) in inside and made.kind in _STEPS:
        _STEPS[made.kind](view, made, found)
        found.reader = made
    found.masks.reverse()
    return found


def _scaled(view: SiteView, node: Node, found: Scores) -> None:
    scale = learned_number(view, node.args[1])
    if scale is None:
        raise Unreachable("the scale is a tensor, not a number")
    if node.op.name.startswith("aten.div") and type(node.args[1]) is CValue:
        scale = 1.0 / scale
    if found.masks and found.scale != 1.0:
        raise Unreachable("the scores are scaled before and after a mask")
    found.scale *= scale
    found.scale_last, found.first = not found.masks, node.args[0].root


def _added(view: SiteView, node: Node, found: Scores) -> None:
    scores, mask = node.args
    if not _is_scores(view, scores, mask, node):
        scores, mask = mask, scores
    found.masks.append(Mask("added", argument(view, node, mask)))
    found.first = scores.root


def _is_scores(view: SiteView, one: CValue, other: CValue, node: Node) -> bool:
    """Which of two addends are the scores: what the region computes, or else what is as large as the sum."""
    inside = {id(n) for n in view.inside()}
    if one.root.producer is not None and id(one.root.producer) in inside:
        return True
    if other.root.producer is not None and id(other.root.producer) in inside:
        return False
    return bool(one.value.numel == node.outs[0].value.numel)


def _filled(view: SiteView, node: Node, found: Scores) -> None:
    scores, mask, fill = node.args[:3]
    _take_fill(view, found, fill)
    found.masks.append(Mask("drops", argument(view, node, mask)))
    found.first = scores.root


def _chosen(view: SiteView, node: Node, found: Scores) -> None:
    mask, scores, fill = node.args[:3]
    if type(scores) is not CValue:
        raise Unreachable("torch.where has the scores where its condition is False")
    _take_fill(view, found, fill)
    found.masks.append(Mask("keeps", argument(view, node, mask)))
    found.first = scores.root


def _take_fill(view: SiteView, found: Scores, fill: object) -> None:
    number = learned_number(view, fill)
    if number is None:
        raise Unreachable("masked scores are filled from a tensor")
    if any(mask.kind != "added" for mask in found.masks) and number != found.fill:
        raise Unreachable("two masks fill with two numbers")
    found.fill = number


_STEPS = {"mul": _scaled, "add": _added, "masked_fill": _filled, "where": _chosen}


def kept(mask: Mask) -> Operand:
    """A boolean mask in which True takes part."""
    return Nested(torch.logical_not, (mask.operand,)) if mask.kind == "drops" else mask.operand


def fits(mask: Tensor, scores: Tensor) -> bool:
    """Whether ``mask`` can be broadcast to ``scores`` and does not widen it."""
    ours, theirs = list(map(hint, scores.shape)), list(map(hint, mask.shape))
    pairs = zip(theirs[::-1], ours[::-1], strict=False)
    return len(theirs) <= len(ours) and all(size in (1, full) for size, full in pairs)
