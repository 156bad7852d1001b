"""What lies between the two matrix products of attention, as plain PyTorch over one block of scores.

Shapes: a block of scores is (batch, kv_heads, groups, rows, columns), where ``groups`` heads of q share a head of k and
v. ``Terms`` holds what is added or masks, in shapes that broadcast to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fused_replacements._layout import wide


class Terms(NamedTuple):
    """Everything that changes scores, for one block of them or for all."""

    bias: Tensor | None
    """Boolean (True takes part) or floating (added)."""
    slopes: Tensor | None
    """ALiBi: slope·|distance| is subtracted. (batch or 1, kv_heads, groups, 1, 1)."""
    sinks: Tensor | None
    """One more score for each head, whose key has no value. (kv_heads, groups, 1, 1)."""
    rows: Tensor
    """Positions of the queries among the keys, (rows, 1)."""
    columns: Tensor
    """Positions of the keys, (1, columns)."""
    scale: float
    softcap: float
    """0 for none."""
    window: int
    """Keys at a distance of ``window`` or more are hidden; 0 for none."""
    causal: bool


def capped(products: Tensor, terms: Terms) -> tuple[Tensor, Tensor | None]:
    """The scaled, soft-capped products of q and k, and the tanh, for its derivative."""
    scaled = products * terms.scale
    if not terms.softcap:
        return scaled, None
    bent = torch.tanh(scaled / terms.softcap)
    return bent * terms.softcap, bent


def hide(scores: Tensor, terms: Terms) -> Tensor:
    """``scores`` with bias and ALiBi added, and -inf at the keys that a query may not see."""
    distance = terms.rows - terms.columns
    if terms.slopes is not None:
        scores = scores - wide(terms.slopes) * distance.abs()
    if terms.bias is not None and terms.bias.dtype is not torch.bool:
        scores = scores + terms.bias
    if terms.bias is not None and terms.bias.dtype is torch.bool:
        scores = torch.where(terms.bias, scores, float("-inf"))
    if terms.causal:
        scores = torch.where(distance >= 0, scores, float("-inf"))
    if terms.window:
        scores = torch.where(distance.abs() < terms.window, scores, float("-inf"))
    return scores


def weights(products: Tensor, *terms: Any) -> tuple[Tensor, Tensor]:
    """Softmax weights in the dtype of ``products``, and the log of its denominator in fp32 (…, rows).

    Computed in fp32. A query without keys has weights of 0, and inf for the logarithm, so that exp(score - lse) is 0
    there too.
    """
    scores = hide(capped(wide(products), Terms(*terms))[0], Terms(*terms))
    sinks = Terms(*terms).sinks
    top = scores.amax(-1, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, wide(sinks))
    top = torch.where(top == float("-inf"), 0.0, top)
    e = torch.exp(scores - top)
    total = e.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(wide(sinks) - top)
    empty = total == 0.0
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, float("inf"), top + torch.log(total)).squeeze(-1)
    return (e / total).to(products.dtype), lse


def gradients(products: Tensor, dweights: Tensor, lse: Tensor, *terms: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights p again, and gradients, from those of the weights, dp.

    Returns:
        p in the dtype of ``products``; the gradient of q·k in it (soft-cap and scale included); that of the biased
        score in fp32; and Σ p·dp (…, rows), which is what a sink takes.
    """
    bent, derivative = capped(wide(products), Terms(*terms))
    p = torch.exp(hide(bent, Terms(*terms)) - lse[..., None])
    dp = wide(dweights)
    mean = (p * dp).sum(-1, keepdim=True)
    dscores = p * (dp - mean)
    slope = Terms(*terms).scale if derivative is None else (1.0 - derivative * derivative) * Terms(*terms).scale
    return p.to(products.dtype), (dscores * slope).to(products.dtype), dscores, mean.squeeze(-1)
