"""Softmax of attention scores: scaled, masked, and normalised over the last dimension in one kernel.

Formula
-------
``y = exp(s − max s) / Σ exp(s − max s)`` over the last dimension, in fp32, where ``s`` is ``x`` after these steps, each
of which may be absent, in this order:

1. ``s = scale · x``
2. causal: ``s[q, k] = fill`` where ``k > q + (keys − queries)``, that is aligned at the last query and the last key, as
   with a cache of earlier keys
3. a floating mask is added; a boolean one sets ``s = fill`` where it is False (True takes part, as in
   ``scaled_dot_product_attention``)

``fill`` is −∞, or the finite lowest number that GPT-2 and others write. It matters for a row with every score masked:
−∞ gives NaN, as the same steps in PyTorch do, a finite ``fill`` gives equal shares. Masked scores have gradient zero.

Shapes and dtypes
-----------------
``x``: (…, keys), or (…, queries, keys) where it is causal; ``mask``: broadcastable to ``x``, read at its own strides
and never expanded in memory; result: the shape of ``x``, contiguous. fp32, bf16 and fp16 fused, fp64 by the reference.

The result has the dtype that PyTorch's steps would give (that of ``x``, promoted with a floating mask; fp32 under
autocast on a GPU), or ``dtype``: the idiom ``softmax(scores, dtype=torch.float32).to(query.dtype)`` is
``dtype=query.dtype``. The arithmetic is fp32 in any case. Gradients to ``x`` and to a floating ``mask``.

What is kept for backward: the result, as ``torch.softmax`` does, so that ``x`` can be freed. With a 16-bit ``dtype``
PyTorch would keep the fp32 result besides the rounded one; here ``x`` is kept, and the gradient is as exact.

On a GPU: one row stride for ``x``, at most three dimensions before the keys where there is a mask (adjacent ones that
the mask treats alike count as one), and keys of the mask at stride 1 or 0.

Bytes moved
-----------
Forward: ``x`` read and ``y`` written once, 2 accesses an element and the mask, instead of 6 to 10 for scale, mask,
softmax and casts apart; above 16,384 keys ``x`` is read twice. Backward: ``y`` (or ``x``) and the gradient read, one
gradient written: 3 instead of 5 to 8. A boolean mask is read again in backward, a floating one only with ``x``. The
gradient of a mask costs one more array of the size of ``x``.

When it loses
-------------
Without scale and mask ``torch.softmax`` is one kernel already. Where the scores only exist for attention, attention
that never writes them (``scaled_dot_product_attention``) saves far more. Other values of ``scale`` or ``fill`` compile
other CPU kernels, and a call of a few hundred elements costs some 10 µs more than PyTorch's three on a CPU.

Source
------
Online softmax for long rows: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax". Short rows are
held in registers whole, as in the fused softmax of Triton's tutorials.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, row_width, same_device

LOWEST = float("-inf")
NO_QUERIES: Final = "causal scores need a dimension of queries"


def _causal_keep(x: Tensor) -> Tensor:
    queries, keys = x.shape[-2:]
    key_K = torch.arange(keys, device=x.device)
    last_Q = torch.arange(queries, device=x.device) + (keys - queries)
    return key_K <= last_Q[:, None]


def _scores(x: Tensor, mask: Tensor | None, scale: float, causal: bool, fill: float) -> Tensor:
    scores = _layout.wide(x) * scale
    if causal:
        scores = scores.masked_fill(~_causal_keep(x), fill)
    if mask is None:
        return scores
    return scores + _layout.wide(mask) if mask.is_floating_point() else torch.where(_keep(mask), scores, fill)


def _keep(mask: Tensor) -> Tensor:
    # through int: the compiler's vectors are of 32-bit elements, and fill from bytes one by one if those are compared
    return mask.int() != 0


def _definition(
    x: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    fill: float,
    dtype: torch.dtype,
    *_: torch.dtype,  # that of x, for a gradient which doesn't see x
) -> Tensor:
    scores = _scores(x, mask, scale, causal, fill)
    return torch.softmax(scores, -1).to(dtype)


def _gradient(
    dy: Tensor,
    y: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    fill: float,
    dtype: torch.dtype,
    x_dtype: torch.dtype,
    needs: list[bool],
) -> list[Tensor]:
    """``ds = y · (dy − Σ y·dy)``."""
    wide_y, wide_dy = _layout.wide(y), _layout.wide(dy)
    ds = wide_y * (wide_dy - (wide_y * wide_dy).sum(-1, keepdim=True))
    return _through_masks(ds, mask, scale, causal, x_dtype, needs)


def _upcast_gradient(
    dy: Tensor,
    x: Tensor,
    mask: Tensor | None,
    scale: float,
    causal: bool,
    fill: float,
    dtype: torch.dtype,
    needs: list[bool],
) -> list[Tensor]:
    """The same from ``x``, with ``y`` never formed before its sum: both sums over a row are taken in one pass."""
    scores, wide_dy = _scores(x, mask, scale, causal, fill), _layout.wide(dy)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    share = 1.0 / e.sum(-1, keepdim=True)
    ds = e * share * (wide_dy - (e * wide_dy).sum(-1, keepdim=True) * share)
    return _through_masks(ds, mask, scale, causal, x.dtype, needs)


def _through_masks(
    ds: Tensor, mask: Tensor | None, scale: float, causal: bool, x_dtype: torch.dtype, needs: list[bool]
) -> list[Tensor]:
    """``dx = scale · ds`` where the score was not masked, else 0; the gradient of a mask that was added is ``ds``."""
    found = []
    if needs[0]:
        dx = ds * scale
        if causal:
            dx = dx.masked_fill(~_causal_keep(ds), 0.0)
        if mask is not None and not mask.is_floating_point():
            dx = torch.where(_keep(mask), dx, 0.0)
        found.append(dx.to(x_dtype))
    if needs[1] and mask is not None:
        found.append(ds.to(mask.dtype))
    return found


OP = FusedOp(
    "softmax(Tensor x, Tensor? mask, float scale, bool causal, float fill, ScalarType dtype, ScalarType x_dtype)"
    " -> Tensor",
    _definition,
    forward=Kernels("softmax", "forward"),
    backward=Kernels("softmax", "backward", "refuses_backward"),
    gradient=_gradient,
    output_for="x",
    discrete=("mask",),
)


UPCAST_OP = FusedOp(
    "softmax_upcast(Tensor x, Tensor? mask, float scale, bool causal, float fill, ScalarType dtype) -> Tensor",
    _definition,
    forward=Kernels("softmax", "forward"),
    backward=Kernels("softmax", "backward_upcast", "refuses_backward"),
    gradient=_upcast_gradient,
    discrete=("mask",),
)


def softmax(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = LOWEST,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Softmax of ``scale · x`` (…, keys) under ``mask``, in one kernel; see the module for the order of the steps.

    Raises:
        ValueError: ``mask`` is neither floating nor boolean, or can't be broadcast to the shape of ``x``; or ``x`` has
            no dimension of queries, and is ``causal``; or ``dtype`` is not floating.
    """
    if mask is not None:
        if mask.dtype is torch.bool:
            mask = mask.view(torch.uint8)  # what kernels read
        elif not mask.is_floating_point():
            raise ValueError(f"mask is {mask.dtype}; it is added where it is floating, and chooses where it is boolean")
        if mask.shape != x.shape:
            reason = _mask_shape(x, mask)
            if reason is not None:
                raise ValueError(reason)
            mask = mask.expand(x.shape)  # a view: broadcast dimensions have stride 0
    if causal and x.dim() < 2:
        raise ValueError(NO_QUERIES)
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(_zeros(dtype))
    if dtype is torch.bfloat16 or dtype is torch.float16:
        return UPCAST_OP(x, mask, scale, causal, fill, dtype)  # type: ignore[no-any-return]
    return OP(x, mask, scale, causal, fill, dtype or _result_dtype(x, mask), x.dtype)  # type: ignore[no-any-return]


def _result_dtype(x: Tensor, mask: Tensor | None) -> torch.dtype:
    """What scale, mask and ``torch.softmax`` give: autocast widens the softmax on a GPU, and not on a CPU."""
    if not x.is_cpu and product_dtype(x) is not None:
        return torch.float32
    return x.dtype if mask is None or not mask.is_floating_point() else torch.promote_types(x.dtype, mask.dtype)


def reference(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = LOWEST,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The definition as models write it: scores are rounded to the dtype of ``x``, which the fused op doesn't do."""
    scores = x * scale
    if causal:
        scores = scores.masked_fill(~_causal_keep(x), fill)
    if mask is not None:
        scores = scores.masked_fill(~mask, fill) if mask.dtype is torch.bool else scores + mask
    if dtype is None:
        return torch.softmax(scores, -1, dtype=_result_dtype(x, mask))
    return torch.softmax(_layout.wide(scores), -1).to(dtype)


def supports(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = LOWEST,
    dtype: torch.dtype | None = None,
) -> str | None:
    """None, or why these arguments would not run fused."""
    reason = first_reason(
        floating(x=x, mask=None if mask is None or mask.dtype is torch.bool else mask),
        row_width(x),
        same_device(x=x, mask=mask),
        _mask_shape(x, mask),
        NO_QUERIES if causal and x.dim() < 2 else None,
        None if dtype is None or dtype.is_floating_point else _zeros(dtype),
    )
    if reason is not None:
        return reason
    mask = mask if mask is None else mask.expand(x.shape)
    return UPCAST_OP.refuses(x, mask, scale, causal, fill, dtype or x.dtype)


def _zeros(dtype: torch.dtype) -> str:
    return f"a softmax in {dtype} is all zeros"


def _mask_shape(x: Tensor, mask: Tensor | None) -> str | None:
    if mask is None:
        return None
    sizes = tuple(x.shape)[x.dim() - mask.dim() :]
    fits = mask.dim() <= x.dim() and all(m in (1, n) for m, n in zip(mask.shape, sizes, strict=True))
    return None if fits else f"mask has shape {tuple(mask.shape)}, which can't be broadcast to {tuple(x.shape)}"


def _torch_supports(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    causal: bool = False,
    fill: float = LOWEST,
    dtype: torch.dtype | None = None,
) -> str | None:
    reason = floating(x=x)
    if reason is None and (mask is not None or causal):
        return "torch.softmax has no mask"
    if reason is None and scale != 1.0:
        return "torch.softmax has no scale"
    if reason is None and dtype not in (None, x.dtype):
        return "torch.softmax converts its input before it, and a result of another dtype in a second kernel"
    return reason


def _torch(x: Tensor, mask: Tensor | None = None, **_: object) -> Tensor:
    return torch.softmax(x, -1)


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use, in two heads of half of ``rows`` queries, over which masks are broadcast."""
    heads, queries = 2, (rows + 1) // 2

    def scores() -> Tensor:
        return torch.randn(1, heads, queries, width, dtype=dtype, device=device) * 3

    def keep(*shape: int) -> Tensor:
        kept = torch.rand(*shape, device=device) > 0.3
        kept[..., :1] = True  # some key is left in every row
        return kept

    scale, lowest = width**-0.5, torch.finfo(dtype).min
    padding = torch.zeros(1, 1, 1, width, dtype=dtype, device=device).masked_fill(~keep(1, 1, 1, width), lowest)
    yield Sample("scale", (scores(),), {"scale": scale})
    yield Sample("scale, padding mask", (scores(), padding), {"scale": scale, "dtype": dtype})
    yield Sample("position bias", (scores() / 3, torch.randn(1, heads, queries, width, dtype=dtype, device=device)))
    yield Sample("boolean mask", (scores(), keep(1, 1, queries, width)), {"scale": scale})
    yield Sample("causal", (scores(),), {"scale": scale, "causal": True, "fill": lowest})
    yield Sample(
        "fp32 result", (scores(), padding), {"scale": scale, "dtype": torch.promote_types(dtype, torch.float32)}
    )


REPLACEMENT = Replacement(
    name="softmax",
    family="reduction",
    function=softmax,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP, UPCAST_OP),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
