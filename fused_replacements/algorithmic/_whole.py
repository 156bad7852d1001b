"""Attention with the scores of all pairs in memory: the definition of flash attention, and what short sequences run."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_replacements._layout import wide
from fused_replacements.algorithmic import _scores


def misfit(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None, *_: object
) -> str | None:
    """What about the shapes of flash attention doesn't fit, or None."""
    if not q.dim() == k.dim() == v.dim() == 4:
        return f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions, and the kernels take 4"
    if q.size(0) != k.size(0) or k.shape != v.shape or q.size(3) != k.size(3):
        return f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together"
    if not k.size(1) or q.size(1) % k.size(1):
        return f"{q.size(1)} heads of q are no multiple of {k.size(1)} of k"
    if bias is not None and bias.dtype is not torch.bool and not bias.is_floating_point():
        return f"the bias is {bias.dtype}, neither floating nor boolean"
    scores = (q.size(0), q.size(1), q.size(2), k.size(2))
    if bias is not None and (
        bias.dim() > 4 or any(b not in (1, s) for b, s in zip(reversed(bias.shape), reversed(scores), strict=False))
    ):
        return f"a bias of shape {tuple(bias.shape)} does not broadcast to the scores {scores}"
    if slopes is not None and tuple(slopes.shape) not in ((q.size(1),), (1, q.size(1)), (q.size(0), q.size(1))):
        shape = tuple(slopes.shape)[slopes.dim() > 1 and slopes.size(0) == 1 :]
        return f"alibi_slopes have shape {shape}, and q {q.size(1)} heads"
    if sinks is not None and tuple(sinks.shape) != (q.size(1),):
        return f"sinks have shape {tuple(sinks.shape)}, and q {q.size(1)} heads"
    return None


def whole(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float,
    window: int,
    causal: bool,
    lower_right: bool,
) -> tuple[Tensor, Tensor]:
    """Output, and the log of the softmax's denominator, with the scores of all pairs in memory."""
    kv_heads = k.size(1)
    groups = q.size(1) // kv_heads
    q_len, kv_len = q.size(2), k.size(2)
    if not kv_len:
        return q * 0.0, wide(q).sum(-1) + float("inf")
    products = torch.matmul(q.unflatten(1, (kv_heads, groups)), k.unsqueeze(2).transpose(-1, -2))
    shift = kv_len - q_len if lower_right else 0
    terms = _scores.Terms(
        None if bias is None else bias.unflatten(1, (kv_heads, groups) if bias.size(1) > 1 else (1, 1)),
        None if slopes is None else slopes.view(-1, kv_heads, groups, 1, 1),
        None if sinks is None else sinks.view(kv_heads, groups, 1, 1),
        torch.arange(q_len, dtype=torch.int32, device=q.device)[:, None] + shift,
        torch.arange(kv_len, dtype=torch.int32, device=q.device)[None, :],
        scale,
        softcap,
        window,
        causal,
    )
    p, lse = _scores.weights(products, *terms)
    return torch.matmul(p, v.unsqueeze(2)).flatten(1, 2), lse.flatten(1, 2)
