"""Attention with the scores of all pairs in memory: the definition of flash attention, and what short sequences run."""

from __future__ import annotations

import torch
from torch import Tensor

from fused_replacements._layout import wide
from fused_replacements.algorithmic import _scores


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
