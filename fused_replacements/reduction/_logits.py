"""The formulas of cross entropy that its ops share, in plain PyTorch: rows of logits, their statistics and gradient.

A row's statistics are its largest logit ``top`` and ``logsum = log Σ exp(z − top)``. They are kept apart because their
sum, the usual log-sum-exp, has the rounding error of the larger one: with logits around 1000 in fp32 the probabilities
recovered from it are wrong in the fifth digit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fused_replacements import _layout


def capped(logits: Tensor, softcap: float) -> Tensor:
    """``softcap · tanh(logits / softcap)`` in fp32 (fp64 for fp64), or only that precision where ``softcap`` is 0."""
    z = _layout.wide(logits)
    return softcap * torch.tanh(z / softcap) if softcap else z


def statistics(z: Tensor) -> tuple[Tensor, Tensor]:
    """``top`` and ``logsum`` of each row of ``z`` (rows, classes)."""
    top = z.detach().amax(-1)  # the loss doesn't depend on it, so neither does its gradient
    return top, (z - top[:, None]).exp().sum(-1).log()


def row_losses(
    z: Tensor, target: Tensor, weight: Tensor | None, top: Tensor, logsum: Tensor, label_smoothing: float
) -> Tensor:
    """The loss of each row, as if none were ignored; NaN where the target is no class."""
    classes = z.size(1)
    inside = (target >= 0) & (target < classes)
    place = target.clamp(0, classes - 1)
    losses = logsum - (z.gather(1, place[:, None]).squeeze(1) - top)
    if weight is not None:
        losses = losses * weight[place]
    if label_smoothing:
        far = logsum[:, None] - (z - top[:, None])
        far = far if weight is None else far * weight
        losses = losses * (1.0 - label_smoothing) + far.sum(1) * (label_smoothing / classes)
    return losses.masked_fill(~inside, float("nan"))


def row_shares(target: Tensor, weight: Tensor | None, ignore_index: int, classes: int, dtype: torch.dtype) -> Tensor:
    """What each row counts in the mean: 0 where it is ignored, else 1 or the weight of its class."""
    live = target != ignore_index
    return live.to(dtype) if weight is None else weight[target.clamp(0, classes - 1)].to(dtype) * live


def row_gradients(
    grad: Tensor, target: Tensor, total: Tensor, ignore_index: int, reduction: str, classes: int
) -> Tensor:
    """The gradient of each row's loss, from that of the reduced loss; 0 where ignored, NaN where no class."""
    grad = _layout.wide(grad)
    grad = (grad / total if reduction == "mean" else grad).expand(target.shape)
    inside = (target >= 0) & (target < classes)
    return grad.masked_fill(~inside, float("nan")).masked_fill(target == ignore_index, 0.0)


def logits_gradient(
    row_grad: Tensor,
    logits: Tensor,
    target: Tensor,
    weight: Tensor | None,
    top: Tensor,
    logsum: Tensor,
    softcap: float,
    label_smoothing: float,
    smooth_share: float,
) -> Tensor:
    """The gradient of ``logits``, some or all columns of them, in their dtype.

    ``target`` counts from the first of the columns at hand, and matches none where its class is not among them.
    ``smooth_share`` is ``label_smoothing`` over the number of all classes. ``weight`` needs all columns at hand.
    """
    z = capped(logits, softcap)
    probability = (z - top[:, None] - logsum[:, None]).exp()
    hot = torch.arange(logits.size(1), device=logits.device) == target[:, None]
    far = probability - hot.to(z.dtype)
    if weight is not None:
        own = weight[target.clamp(0, logits.size(1) - 1)][:, None]
        dz = far * (own * (1.0 - label_smoothing)) + (probability * weight.sum() - weight) * smooth_share
    elif label_smoothing:
        dz = far * (1.0 - label_smoothing) + (probability * label_smoothing - smooth_share)
    else:
        dz = far
    dz = dz * row_grad[:, None]
    if softcap:
        tanh = z / softcap
        dz = dz * (1.0 - tanh * tanh)
    return dz.masked_fill((row_grad == 0)[:, None], 0.0).to(logits.dtype)
