"""Masks of attention: which keys a query may see, in the forms that models pass and that SDPA takes."""

from __future__ import annotations

from typing import Final, Literal, get_args

import torch
from torch import Tensor

Causal = Literal["upper_left", "lower_right"]
"""Where the triangle of a causal mask is anchored when there are more keys than queries, in PyTorch's own words.

``upper_left``: query i sees the keys 0 … i. ``lower_right``: the last query sees every key, as it must with a cache
of earlier keys. They are the same where the lengths are equal.
"""

ANCHORS: Final = get_args(Causal)


def causal_reason(causal: object) -> str | None:
    """None, or that ``causal`` is none of the two anchors: False and True don't say where the triangle lies."""
    if causal is None or (isinstance(causal, str) and causal in ANCHORS):
        return None
    return f"causal is {causal!r}; it may be 'upper_left' or 'lower_right', use None for none"


EXACT: Final = {
    torch.bfloat16: (torch.bfloat16, torch.float32, torch.float64),
    torch.float16: (torch.float16, torch.float32, torch.float64),
    torch.float32: (torch.float32, torch.float64),
    torch.float64: (torch.float64,),
}
"""To which dtypes a mask can be converted without rounding. Rounding is not harmless: finfo(fp32).min is -inf in bf16,
and a row of nothing but that has a mean in fp32 and none in bf16."""


def causal_keep(q_len: int, kv_len: int, causal: Causal, device: torch.device) -> Tensor:
    """Boolean (q_len, kv_len), True where the query may see the key."""
    offset = kv_len - q_len if causal == "lower_right" else 0
    queries = torch.arange(q_len, device=device)[:, None]
    keys = torch.arange(kv_len, device=device)[None, :]
    return keys <= queries + offset


def needs_causal_mask(q_len: int, kv_len: int, causal: Causal | None) -> bool:
    """Whether a causal mask has to be built: SDPA's own ``is_causal`` is anchored at the upper left.

    At equal lengths both anchors are the same, and a single query at the lower right sees every key.
    """
    return causal == "lower_right" and q_len not in (kv_len, 1)


def with_causal(mask: Tensor, keep: Tensor) -> Tensor:
    """``mask`` and the causal mask as one: SDPA takes a mask or ``is_causal``, not both."""
    if mask.dtype is torch.bool:
        return mask & keep
    return torch.where(keep, mask, float("-inf"))


def as_keep(mask: Tensor, mask_keeps: bool) -> Tensor:
    """A boolean mask in SDPA's polarity: True takes part."""
    return mask if mask_keeps else ~mask


def in_four_dims(x: Tensor) -> Tensor:
    """``x`` with dimensions of size 1 put in front, as a view: SDPA's kernels take (batch, heads, length, head_dim)."""
    return x[(None,) * (4 - x.dim())] if x.dim() < 4 else x


def repeat_heads(x: Tensor, groups: int) -> Tensor:
    """(…, kv_heads, length, head_dim) to (…, kv_heads * groups, length, head_dim), each head ``groups`` times."""
    return x if groups == 1 else x.repeat_interleave(groups, dim=-3)
