"""What attention can be computed of at all, and what SDPA would compute something else of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from fused_replacements.algorithmic._mask import EXACT

HALF: Final = frozenset({torch.bfloat16, torch.float16})
FEW_KEYS: Final = 16
FEW_CHANNELS: Final = 8
"""Below either, gradients in 16 bits are taken by parts: there is nothing to gain, and SDPA's were measured to be up to
twelve times as far from fp64 as twice the error of the parts."""


def illegal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    scale_after_mask: bool,
    softcap: float | None,
    need_weights: bool,
) -> str | None:
    """Why SDPA would compute something else, or nothing at all."""
    if q.dtype in HALF and (k.size(-2) < FEW_KEYS or q.size(-1) < FEW_CHANNELS) and _learns(q, k, v):
        return f"gradients in 16 bits of under {FEW_KEYS} keys or {FEW_CHANNELS} channels: SDPA's are less exact"
    if softcap:
        return "SDPA has no soft-cap of the scores; flash_attention has"
    if need_weights:
        return "the probabilities are returned, and SDPA never stores them"
    if not q.dtype == k.dtype == v.dtype:
        return f"q, k and v have different dtypes ({q.dtype}, {k.dtype}, {v.dtype})"
    if not q.dim() == k.dim() == v.dim() >= 2:
        return f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions"
    if k.size(-2) != v.size(-2):  # SDPA on a CPU doesn't look, and reads beyond the shorter
        return f"k has {k.size(-2)} keys, and v {v.size(-2)}"
    if q.dim() > 2 and (k.size(-3) != v.size(-3) or (k.size(-3) and q.size(-3) % k.size(-3))):
        return f"{q.size(-3)} heads of q are no multiple of {k.size(-3)} of k and {v.size(-3)} of v"
    return None if mask is None else _illegal_mask(q, mask, scale, scale_after_mask)


def _learns(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)


def _illegal_mask(q: Tensor, mask: Tensor, scale: float | None, scale_after_mask: bool) -> str | None:
    if mask.dim() > max(4, q.dim()):
        return f"the mask has {mask.dim()} dimensions"
    if mask.dtype is torch.bool:
        return None
    if scale_after_mask and scale is not None and scale <= 0.0:
        return f"a scale of {scale} after the mask turns what is masked into what is not"
    if mask.dtype is torch.float32 and q.device.type == "cpu":
        return None
    if q.dtype not in EXACT.get(mask.dtype, ()):
        return f"a mask in {mask.dtype} can't become {q.dtype} without rounding"
    return None


def misfit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """What about shapes and dtypes no attention can be computed of, or None."""
    if not q.dtype == k.dtype == v.dtype:
        return f"q, k and v have different dtypes ({q.dtype}, {k.dtype}, {v.dtype})"
    if min(q.dim(), k.dim(), v.dim()) < 2:
        return f"q, k and v have {q.dim()}, {k.dim()} and {v.dim()} dimensions"
    if k.size(-2) != v.size(-2):
        return f"k has {k.size(-2)} keys, and v {v.size(-2)}"
    if q.size(-1) != k.size(-1):
        return f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit together"
    if q.dim() > 2 and k.dim() > 2 and v.dim() > 2:
        heads = (k.size(-3), v.size(-3))
        if any(q.size(-3) % count if count else q.size(-3) for count in heads):
            return f"{q.size(-3)} heads of q are no multiple of {heads[0]} of k and {heads[1]} of v"
    batches = [x.shape[:-3] for x in (q, k, v)]
    scores = (*q.shape[:-1], k.size(-2))
    fits = all(_broadcast(batch, batches[0]) for batch in batches) and (mask is None or _broadcast(mask.shape, scores))
    if not fits:
        masked = "" if mask is None else f", and the mask {tuple(mask.shape)},"
        return f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}{masked} do not fit together"
    return None


def larger_mask(q: Tensor, k: Tensor, mask: Tensor | None) -> str | None:
    """That the mask has dimensions which the scores have not, or None: by parts they are broadcast, by SDPA not."""
    if mask is None:
        return None
    scores = (*q.shape[:-1], k.size(-2))
    pairs = zip(reversed(mask.shape), reversed(scores), strict=False)
    if all(mine in (1, its) for mine, its in pairs):
        return None
    return f"a mask of shape {tuple(mask.shape)} is larger than the scores, {scores}"


def _broadcast(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two shapes can be broadcast."""
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(shape), reversed(other), strict=False))
