"""Attention by parts as one call of ``torch.nn.functional.scaled_dot_product_attention``.

Models write attention as matmul, scale, mask, softmax, dropout and matmul, with the scores of every pair of query and
key in memory between them. SDPA's kernels never store the scores. Forward and backward are PyTorch's own.

Formula
-------
``softmax(q @ kᵀ * scale + mask) @ v``, with ``scale = 1 / sqrt(head_dim)`` unless it is given (T5: 1.0).

* ``mask``, boolean: the keys it excludes get -inf. ``mask_keeps=True`` is SDPA's polarity (True takes part),
  ``False`` that of ``masked_fill`` and ``nn.MultiheadAttention`` (True is masked out). ``fill``, of -10,000 or less, is
  what excluded scores are filled with instead: it differs for a query with no key at all, which gets the mean of v.
* ``mask``, floating: added to the scaled scores. ``scale_after_mask=True`` is ``(q @ kᵀ + mask) * scale``: the mask is
  multiplied by the scale beforehand.
* ``causal``: ``upper_left`` (query i sees keys 0 … i; SDPA's ``is_causal``) or ``lower_right`` (the last query sees
  every key; what a cache of earlier keys needs). Where the two differ a boolean mask is built for ``lower_right``, and
  ``causal`` with ``mask`` becomes one mask.
* ``dropout`` of the probabilities, only while ``training``, from PyTorch's global generator: the numbers differ from
  those that the parts would draw, their distribution does not.
* fewer heads in k and v than in q: each serves ``heads / kv_heads`` consecutive heads of q. They are not copied, save
  on a GPU together with a mask, where SDPA would otherwise compute by parts.
* the softmax: SDPA computes it in fp32 from fp32 scores, so it is at least as exact as parts that cast the scores to
  fp32 and the probabilities back.

A query that may see no key gives 0, and a gradient of 0, where by parts it is NaN. With a ``fill``, and with a floating
mask of ``finfo.min``, it gives the mean of v, as by parts.

``softcap`` and ``need_weights`` can't be had from SDPA: with them the parts run. For a soft-cap, a sliding window,
ALiBi or attention sinks use ``flash_attention``.

Shapes and dtypes
-----------------
q: (batch, heads, q_len, head_dim), k: (batch, kv_heads, kv_len, head_dim), v: (batch, kv_heads, kv_len, value_dim),
and the same with leading dimensions left out. Any strides: a transposed view of (batch, length, heads, head_dim) is
read as it is. The mask broadcasts to (batch, heads, q_len, kv_len). fp32, fp16, bf16 and fp64. A floating mask has
q's dtype or one that converts to it exactly; on a CPU an fp32 mask serves fp16 and bf16 as well. Under autocast q, k
and v are cast to its dtype, and the mask is not.

Bytes moved
-----------
Per pair of query and key, in half precision with a mask: 2 (scores written) + 4 (scale) + 4 and the mask (mask) + 8
(softmax in fp32) + 2 (read by the matmul) before; only the mask afterwards. q, k, v and the output are moved in both.

When it loses
-------------
Where SDPA has no fused kernel for the call it computes by parts as well, with casts of its own: ``sdpa_backend`` says
which kernel a call lands on and why, and ``supports`` refuses. On a CPU that is dropout, a mask that takes a gradient,
and a value_dim that is not head_dim. With few queries (decoding) the scores are small, and the gain is one of
launches. A boolean mask for ``lower_right`` costs q_len * kv_len bytes and keeps SDPA from its flash kernel on a GPU.

In backward SDPA's kernels take Σ p·dp from the rounded output. Where a query sees a handful of keys that is off by a
rounding of v, and the gradients of q and k by several times what the parts are off. With fewer than 16 keys, or heads
of fewer than 8 channels, fp16 and bf16 tensors that learn are therefore computed by parts: there is nothing to gain.

Source
------
Dao, FlashAttention-2, 2023; Rabe and Staats, Self-attention does not need O(n²) memory, 2021; both as PyTorch has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from fused_replacements._autocast import product_dtype
from fused_replacements._layout import wide
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements.algorithmic._fit import illegal, larger_mask, misfit
from fused_replacements.algorithmic._mask import Causal, as_keep, causal_keep, causal_reason, repeat_heads
from fused_replacements.algorithmic._samples import Make
from fused_replacements.algorithmic._sdpa import Backend, backend
from fused_replacements.algorithmic._sdpa_call import scale_of, sdpa_call

LEAST_FILL: Final = -1e4
"""A score that is filled with less has a probability of 0: the exponential of it is no number above 0 in fp32."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: Causal | None = None,
    scale: float | None = None,
    mask_keeps: bool = True,
    fill: float = -math.inf,
    scale_after_mask: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    softcap: float | None = None,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention through SDPA; see the module for the arguments.

    Returns:
        (batch, heads, q_len, value_dim) in q's dtype (autocast: in its dtype), and with ``need_weights`` the
        probabilities (batch, heads, q_len, kv_len) beside it.

    Raises:
        ValueError: ``causal`` is none of the two words, or the shapes or dtypes don't fit.
    """
    if causal is not None and (reason := causal_reason(causal)) is not None:
        raise ValueError(reason)
    if fill > LEAST_FILL:
        raise ValueError(_score_like(fill))
    settings = (scale_after_mask, dropout if training else 0.0, softcap, need_weights)
    dtype = product_dtype(q)
    if dtype is not None:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if not math.isinf(fill) and misfit(q, k, v, mask) is None:  # what doesn't fit is told by _attend
        larger = larger_mask(q, k, mask)
        if larger is not None:
            return _unfused(
                larger, _by_parts(q, k, v, mask, causal, scale, mask_keeps, *settings[:3], fill), need_weights
            )
        q, mask, mask_keeps = _filled(q, k, mask, causal, mask_keeps, fill)
    if dtype is None:
        return _attend(q, k, v, mask, causal, scale, mask_keeps, *settings)
    with torch.autocast(q.device.type, enabled=False):  # on, it would round the mask as well
        return _attend(q, k, v, mask, causal, scale, mask_keeps, *settings)


def _score_like(fill: float) -> str:
    return f"fill={fill} is a score like any other; it has to be {LEAST_FILL:,.0f} or less"


def _filled(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: Causal | None, mask_keeps: bool, fill: float
) -> tuple[Tensor, Tensor | None, bool]:
    """q and the mask so that a query with no key finds all keys alike, and gives no gradient to q and k, as if filled.

    That is what a query of zeros gets that sees every key. (With none SDPA gives it 0.)
    """
    if mask is None or mask.dtype is not torch.bool or math.isinf(fill):
        return q, mask, mask_keeps
    keep = as_keep(mask, mask_keeps)
    seen = keep if causal is None else keep & causal_keep(q.size(-2), k.size(-2), causal, q.device)
    blind = ~seen.any(-1, keepdim=True)
    return q.masked_fill(_of_dims(blind, q.dim()), 0.0), keep | blind, True


def _of_dims(mask: Tensor, dims: int) -> Tensor:
    """``mask`` with no more than ``dims`` dimensions, where those before are 1."""
    extra = mask.dim() - dims
    return mask[(0,) * extra] if extra > 0 and all(size == 1 for size in mask.shape[:extra]) else mask


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: Causal | None,
    scale: float | None,
    mask_keeps: bool,
    scale_after_mask: bool,
    dropout: float,
    softcap: float | None,
    need_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    reason = illegal(q, k, v, mask, scale, scale_after_mask, softcap, need_weights)
    if reason is None:
        try:
            return _by_sdpa(q, k, v, mask, causal, scale, mask_keeps, scale_after_mask, dropout)
        except RuntimeError:  # it may be the shapes: looked at here, they cost other calls nothing
            reason = misfit(q, k, v, mask) or larger_mask(q, k, mask)
            if reason is None:
                raise
    if (wrong := misfit(q, k, v, mask)) is not None:
        raise ValueError(wrong)
    parts = _by_parts(q, k, v, mask, causal, scale, mask_keeps, scale_after_mask, dropout, softcap)
    return _unfused(reason or "", parts, need_weights)


def _unfused(reason: str, parts: tuple[Tensor, Tensor], need_weights: bool) -> Tensor | tuple[Tensor, Tensor]:
    """What was computed by parts, and said so."""
    if not torch.compiler.is_compiling():
        say_unfused("attention", reason)
    return parts if need_weights else parts[0]


def _by_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: Causal | None,
    scale: float | None,
    mask_keeps: bool,
    scale_after_mask: bool,
    dropout: float,
) -> Tensor:
    call = sdpa_call(q, k, v, mask, causal, scale, mask_keeps, scale_after_mask)
    grouped: dict[str, Any] = (
        {"enable_gqa": True} if call.grouped else {}
    )  # a branch: to the compiler the comparison is symbolic
    out = scaled_dot_product_attention(*call.tensors, dropout, call.is_causal, scale=scale, **grouped)
    return out if q.dim() >= 4 else out[(0,) * (4 - q.dim())]


def _by_parts(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: Causal | None,
    scale: float | None,
    mask_keeps: bool,
    scale_after_mask: bool,
    dropout: float,
    softcap: float | None,
    fill: float = -math.inf,
) -> tuple[Tensor, Tensor]:
    """Output and probabilities, as models write it."""
    if q.dim() > 2 and k.dim() > 2 and v.dim() > 2 and k.size(-3):
        k, v = repeat_heads(k, q.size(-3) // k.size(-3)), repeat_heads(v, q.size(-3) // v.size(-3))
    scores = torch.matmul(q, k.transpose(-1, -2))
    if not scale_after_mask:
        scores = scores * scale_of(q, scale)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        masked = mask.dtype is torch.bool
        scores = scores.masked_fill(~as_keep(mask, mask_keeps), fill) if masked else scores + mask
    if causal is not None:
        keep = causal_keep(q.size(-2), k.size(-2), causal, q.device)
        scores = scores.masked_fill(~keep, float("-inf"))
    if scale_after_mask:
        scores = scores * scale_of(q, scale)
    probabilities = torch.softmax(scores, -1, dtype=wide(scores).dtype).to(q.dtype)
    dropped = torch.dropout(probabilities, dropout, train=True) if dropout else probabilities
    return torch.matmul(dropped, v), dropped


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: Causal | None = None,
    scale: float | None = None,
    mask_keeps: bool = True,
    fill: float = -math.inf,
    scale_after_mask: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    softcap: float | None = None,
    need_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The definition: attention by parts, with the softmax in fp32. A query with no key gives NaN."""
    if (reason := causal_reason(causal)) is not None:
        raise ValueError(reason)
    p = dropout if training else 0.0
    out, weights = _by_parts(q, k, v, mask, causal, scale, mask_keeps, scale_after_mask, p, softcap, fill)
    return (out, weights) if need_weights else out


def sdpa_backend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: Causal | None = None,
    scale: float | None = None,
    mask_keeps: bool = True,
    fill: float = -math.inf,
    scale_after_mask: bool = False,
    dropout: float = 0.0,
    training: bool = True,
) -> Backend:
    """Which kernel SDPA lands on for this call of ``attention``; ``math`` stores the scores, and has a reason.

    Raises:
        ValueError: ``causal`` is none of the two words, or the shapes or dtypes don't fit.
    """
    reason = causal_reason(causal) or misfit(q, k, v, mask)
    if reason is not None:
        raise ValueError(reason)
    q, mask, mask_keeps = _filled(q, k, mask, causal, mask_keeps, fill)
    call = sdpa_call(q, k, v, mask, causal, scale, mask_keeps, scale_after_mask)
    return backend(*call.tensors, dropout if training else 0.0, call.is_causal)


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    *,
    causal: Causal | None = None,
    scale: float | None = None,
    mask_keeps: bool = True,
    fill: float = -math.inf,
    scale_after_mask: bool = False,
    dropout: float = 0.0,
    training: bool = True,
    softcap: float | None = None,
    need_weights: bool = False,
) -> str | None:
    """None, or why these arguments would not run in a fused kernel of SDPA."""
    reason = causal_reason(causal) or (_score_like(fill) if fill > LEAST_FILL else None) or misfit(q, k, v, mask)
    reason = reason or larger_mask(q, k, mask)
    if reason is None:
        q, mask, mask_keeps = _filled(q, k, mask, causal, mask_keeps, fill)
    reason = reason or illegal(q, k, v, mask, scale, scale_after_mask, softcap, need_weights)
    if reason is not None:
        return reason
    landed = sdpa_backend(
        q,
        k,
        v,
        mask,
        causal=causal,
        scale=scale,
        mask_keeps=mask_keeps,
        scale_after_mask=scale_after_mask,
        dropout=dropout,
        training=training,
    )
    return None if landed.name != "math" else f"SDPA would compute it by parts: {landed.reason}"


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """``rows`` queries of ``width`` channels in a batch of 1; a head has at most 64 channels."""
    make = Make(rows, width, dtype, device)
    yield Sample("no mask", make.qkv())
    yield Sample("causal", make.qkv(), {"causal": "upper_left"})
    yield Sample("causal over a cache (lower right)", make.qkv(past=5), {"causal": "lower_right"})
    yield Sample("additive padding mask (BERT)", (*make.qkv(), make.padding().to(dtype) * -1e4))
    yield Sample("relative bias, scale 1.0 (T5)", (*make.qkv(scale=0.1), make.bias()), {"scale": 1.0})
    yield Sample("True is masked out", (*make.qkv(), make.padding()), {"mask_keeps": False})
    yield Sample("filled with a number", (*make.qkv(), make.padding()), {"mask_keeps": False, "fill": -1e9})
    yield Sample("causal and padding", (*make.qkv(), ~make.padding()), {"causal": "upper_left"})
    yield Sample("scale after the mask", (*make.qkv(), make.padding().to(dtype) * -1e4), {"scale_after_mask": True})
    yield Sample("grouped heads (Llama 3)", make.qkv(groups=2), {"causal": "upper_left"})
    yield Sample("views of (batch, length, heads)", make.qkv(transposed=True), {"causal": "upper_left"})


REPLACEMENT = Replacement(
    name="attention",
    family="algorithmic",
    function=attention,
    reference=reference,
    supports=supports,
    samples=samples,
)
