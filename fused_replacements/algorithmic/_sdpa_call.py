"""A call of ``attention`` as one of SDPA: its tensors, its one mask, and whether heads are grouped."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fused_replacements.algorithmic._mask import (
    Causal,
    as_keep,
    causal_keep,
    in_four_dims,
    needs_causal_mask,
    repeat_heads,
    with_causal,
)


class Call(NamedTuple):
    """The arguments of SDPA for a call of ``attention``."""

    tensors: tuple[Tensor, Tensor, Tensor, Tensor | None]
    is_causal: bool
    grouped: bool


def sdpa_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: Causal | None,
    scale: float | None,
    mask_keeps: bool,
    scale_after_mask: bool,
) -> Call:
    mask = _one_mask(q, k, mask, causal, scale, mask_keeps, scale_after_mask)
    q, k, v = in_four_dims(q), in_four_dims(k), in_four_dims(v)
    groups = q.size(-3) // k.size(-3) if k.size(-3) else 1
    if groups > 1 and mask is not None and q.device.type != "cpu":
        # the one GPU kernel that takes a mask takes no grouped heads: SDPA would compute by parts, and copies are less
        k, v, groups = repeat_heads(k, groups), repeat_heads(v, groups), 1
    is_causal = causal == "upper_left"
    if causal == "lower_right" and q.size(-2) == k.size(-2):
        is_causal = True  # by a branch: of symbols the comparison is no bool, and SDPA takes nothing else
    return Call((q, k, v, mask), is_causal and mask is None, groups > 1)


def _one_mask(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    causal: Causal | None,
    scale: float | None,
    mask_keeps: bool,
    scale_after_mask: bool,
) -> Tensor | None:
    """The one mask that SDPA gets: its dtype, polarity, dimensions and triangle."""
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = as_keep(mask, mask_keeps)
        elif scale_after_mask:
            mask = mask * scale_of(q, scale)
        mask = in_four_dims(_in_mask_dtype(mask, q))
    q_len, kv_len = q.size(-2), k.size(-2)
    if causal is None or (causal == "lower_right" and q_len == 1):
        return mask
    if mask is None:
        return causal_keep(q_len, kv_len, causal, q.device) if needs_causal_mask(q_len, kv_len, causal) else None
    return with_causal(mask, causal_keep(q_len, kv_len, causal, q.device))


def _in_mask_dtype(mask: Tensor, q: Tensor) -> Tensor:
    """``mask`` as SDPA takes it: boolean, or in q's dtype; on a CPU fp32 too."""
    if mask.dtype is torch.bool or (mask.dtype is torch.float32 and q.device.type == "cpu"):
        return mask
    return mask.to(q.dtype)


def scale_of(q: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.size(-1)) if scale is None else scale
