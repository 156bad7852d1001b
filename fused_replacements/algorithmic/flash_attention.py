"""Flash attention for what ``scaled_dot_product_attention`` can't express: soft-cap, window, ALiBi, biases, sinks.

Formula
-------
``softmax(bias + alibi + softcap · tanh(q @ kᵀ · scale / softcap)) @ v``, computed in fp32, with
``scale = 1 / sqrt(head_dim)`` unless it is given. Keys are hidden by -inf.

* ``softcap`` bends the scaled scores into ±softcap before anything is added (Gemma 2: 50). None or 0: no cap.
* ``bias``: floating, added after the soft-cap and read with its own strides (T5's relative bias is (1, heads, q_len,
  kv_len)), or boolean, True takes part.
* ``alibi_slopes``: slope · |distance| is subtracted, computed in the kernel (BLOOM, MPT, Falcon). Under a causal mask
  that is what adding ``slope · key position`` does, as a softmax doesn't see a shift of a whole row.
* ``causal``: ``upper_left`` or ``lower_right``, which says where the triangle is anchored when there are more keys than
  queries, and with it the positions that ``window`` and ALiBi count from. None: no triangle.
* ``window``: keys at a distance of ``window`` or more are hidden. With ``causal`` that leaves the last ``window`` keys,
  the query's own included (Mistral, Gemma 2); without, ``window - 1`` on either side. At least 1; None: no window.
* ``sinks``: one learned score for each head whose key has no value: it takes weight and gives nothing (gpt-oss).
* fewer heads in k and v than in q: each serves ``heads / kv_heads`` consecutive heads of q, and none is copied.

On a CPU gradients in 16 bits of fewer than 16 keys or 8 channels are computed in fp32 and rounded once.

A query that sees no key gives 0 and a gradient of 0. Its reference gives NaN.

Shapes and dtypes
-----------------
q: (batch, heads, q_len, head_dim); k and v: (batch, kv_heads, kv_len, head_dim); bias: (batch or 1, heads or 1, q_len
or 1, kv_len or 1), leading dimensions may be left out; alibi_slopes: (heads,) or (batch, heads); sinks: (heads,).
Result: (batch, heads, q_len, head_dim), contiguous. fp32, bf16 and fp16, on a GPU with head_dim up to 256; fp64 on a
CPU. Any strides of batch, heads and length, so that a transposed view of (batch, length, heads, head_dim) is read in
place; channels lie at stride 1 on a GPU. Gradients to q, k, v, a floating bias, and sinks, not to ALiBi's slopes.

Bytes moved
-----------
Per pair of query and key, in half precision: before, 2 (scores written) and 4 for each of scale, division, tanh, cap,
bias and masks, 8 for the softmax in fp32, 2 for the last product; after, only the bias if there is one. q, k, v and the
output are moved once, and 4 bytes a query are kept for backward, which computes the scores again. A window reads only
the keys inside it, and a causal mask half of them.

When it loses
-------------
Against SDPA's own kernels wherever those can run: use ``attention`` there. While decoding: one query fills a
sixteenth of a tile, and one program walks over all the keys. In fp32 on NVIDIA GPUs, as products in full precision
run on no tensor core. A bias is as large as the scores, and reading it is most of the traffic that is left.

Source
------
Dao, FlashAttention-2, 2023 (tiles, order of loops); Milakov and Gimelshein, Online normalizer calculation for softmax,
2018; Press et al., ALiBi, 2022; Gemma 2, 2024 (soft-cap); Xiao et al., attention sinks, 2023.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._registry import Replacement
from fused_replacements._supports import first_reason, floating, same_device
from fused_replacements.algorithmic import _blocked
from fused_replacements.algorithmic._flash_samples import samples
from fused_replacements.algorithmic._mask import Causal, causal_reason, in_four_dims, repeat_heads
from fused_replacements.algorithmic._whole import misfit, whole

OP = FusedOp(
    "flash_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? alibi_slopes, Tensor? sinks, float scale, "
    "float softcap, int window, bool causal, bool lower_right) -> (Tensor, Tensor)",
    whole,
    forward=Kernels("flash_attention", "forward", cpu=_blocked.forward),
    backward=Kernels("flash_attention", "backward", "refuses_backward", cpu=_blocked.backward),
    gradient=_blocked.backward,
    saved=1,
    keeps_outputs=True,
    constant=("alibi_slopes",),
    discrete=("bias",),
    misfit=misfit,
    exact=True,  # heads and batches of other sizes would be broadcast
)


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: Causal | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of ``q`` (batch, heads, q_len, head_dim); see the module for the arguments.

    Under autocast q, k and v are cast to its dtype; bias, slopes and sinks are read as they are.

    Raises:
        ValueError: an option has no meaning, or the shapes don't fit.
    """
    if causal is not None or window is not None or softcap is not None:
        _check_options(causal, window, softcap)
    dtype = product_dtype(q)
    if dtype is not None:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return OP(*_arguments(q, k, v, bias, causal, window, softcap, scale, alibi_slopes, sinks))  # type: ignore[no-any-return]


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    causal: Causal | None,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> tuple[Any, ...]:
    """The arguments of the op."""
    return (
        q,
        k,
        v,
        None if bias is None else in_four_dims(bias),
        alibi_slopes if alibi_slopes is None or alibi_slopes.dim() == 2 else alibi_slopes[None],
        sinks,
        1.0 / math.sqrt(q.size(-1)) if scale is None else float(scale),
        float(softcap or 0.0),
        0 if window is None else window,
        causal is not None,
        causal == "lower_right",
    )


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: Causal | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The definition by parts, as models write it: masks as tensors, the softmax in fp32. A query with no key: NaN."""
    _check_options(causal, window, softcap)
    k, v = repeat_heads(k, q.size(1) // k.size(1)), repeat_heads(v, q.size(1) // v.size(1))
    scores = torch.matmul(q, k.transpose(-1, -2)) * (1.0 / math.sqrt(q.size(-1)) if scale is None else scale)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    shift = k.size(2) - q.size(2) if causal == "lower_right" else 0
    distance = torch.arange(q.size(2), device=q.device)[:, None] + shift - torch.arange(k.size(2), device=q.device)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[..., None, None] * distance.abs()
    if bias is not None:
        scores = scores.masked_fill(~bias, float("-inf")) if bias.dtype is torch.bool else scores + bias
    if causal is not None:
        scores = scores.masked_fill(distance < 0, float("-inf"))
    if window:
        scores = scores.masked_fill(distance.abs() >= window, float("-inf"))
    if sinks is None:
        weights = torch.softmax(scores, -1, dtype=wide(scores).dtype).to(q.dtype)
    else:
        sink = sinks.view(1, -1, 1, 1).expand(q.size(0), -1, q.size(2), 1)
        scores = torch.cat([scores, sink.to(scores.dtype)], -1)
        weights = torch.softmax(scores, -1, dtype=wide(scores).dtype)[..., :-1].to(q.dtype)
    return torch.matmul(weights, v)


def supports(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None = None,
    *,
    causal: Causal | None = None,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        _option_reason(causal, window, softcap),
        floating(q=q, k=k, v=v, alibi_slopes=alibi_slopes, sinks=sinks),
        same_device(q=q, k=k, v=v, bias=bias, alibi_slopes=alibi_slopes, sinks=sinks),
        misfit(q, k, v, bias, alibi_slopes, sinks),
    ) or OP.refuses(*_arguments(q, k, v, bias, causal, window, softcap, scale, alibi_slopes, sinks))


def _option_reason(causal: str | None, window: int | None, softcap: float | None) -> str | None:
    if (reason := causal_reason(causal)) is not None:
        return reason
    if window is not None and window < 1:
        return f"window is {window}; it is a number of keys, 1 or more, or None"
    if softcap is not None and not softcap >= 0.0:
        return f"softcap is {softcap}; it is a positive bound, or None"
    return None


def _check_options(causal: str | None, window: int | None, softcap: float | None) -> None:
    reason = _option_reason(causal, window, softcap)
    if reason is not None:
        raise ValueError(reason)


REPLACEMENT = Replacement(
    name="flash_attention",
    family="algorithmic",
    function=flash_attention,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
