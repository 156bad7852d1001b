"""Residual add and layer norm in one kernel, with both results.

Formula
-------
``total = x + residual``, rounded to its dtype, and ``y = layer_norm(total)``: see ``layer_norm`` for the norm, its
``offset`` and its two orders of casts. The result is ``(y, total)``: a pre-norm block (GPT-2, ViT, Phi) reads both, a
post-norm block (BERT, DeBERTa) only ``y``. The gradient of either may be absent.

Shapes and dtypes
-----------------
``x`` and ``residual``: (…, N), of one shape; ``weight`` and ``bias``: (N,) or None; results: (…, N), contiguous. fp32,
bf16 and fp16 fused, fp64 by the reference. ``total`` has the promoted dtype of ``x`` and ``residual``, as an add gives;
``y`` that of ``layer_norm`` of it. The rows of ``x`` and ``residual`` may each lie at any one stride. Gradients to
``x``, ``residual``, ``weight`` and ``bias``.

Bytes moved
-----------
Forward: 4 accesses an element (two reads, two writes) instead of 5 for an add and ``F.layer_norm``, or 15 to 23 where
the norm is written by hand. Backward: the sum and both gradients read, one written, which both inputs share: 4 instead
of 6. Kept for backward: the sum, which the next residual add reads anyway. Above 8,192 columns, where weight or bias
learn, 6.

When it loses
-------------
The gain is least in a post-norm block that needs no gradient: there ``total`` is written for nobody, and the 4 accesses
here are against 5 of an add and ``F.layer_norm``. It is a loss inside a graph that ``torch.compile`` compiles as a
whole: the compiler fuses it too.

Source
------
Ba, Kiros and Hinton 2016, "Layer Normalization". The fusion with the residual add is that of apex and FlashAttention.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fused_replacements._dispatched import Kernels
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, row_width, same_device, same_shape
from fused_replacements.reduction._residual import ResidualOp
from fused_replacements.reduction.layer_norm import CASTS, Cast, check_cast, definition, gradient, widened_by_autocast


def _misfit(x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, *_: object) -> str | None:
    return same_shape(x=x, residual=residual) or row_width(x, weight=weight, bias=bias)


OP = ResidualOp(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, float offset, str cast, "
    "bool wide) -> (Tensor, Tensor)",
    definition,
    gradient,
    forward=Kernels("add_layer_norm", "forward"),
    backward=Kernels("add_layer_norm", "backward", "refuses_backward"),
    misfit=_misfit,
)


def add_layer_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> tuple[Tensor, Tensor]:
    """``(layer norm of x + residual, x + residual)`` for (…, N), in one kernel; see the module for the formula.

    Raises:
        ValueError: ``cast`` is none of the two, or the shapes don't fit.
    """
    check_cast(cast)
    if x.shape != residual.shape:
        return OP.broadcast(x, residual, weight, bias, eps, offset, cast, widened_by_autocast(x, cast))
    y, total = OP(x, residual, weight, bias, eps, offset, cast, widened_by_autocast(x, cast))
    return y, total


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> tuple[Tensor, Tensor]:
    """The definition, op by op."""
    total = x + residual
    return definition(total, weight, bias, eps, offset, cast, widened_by_autocast(x, cast)), total


def supports(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    offset: float = 0.0,
    cast: Cast = "torch",
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        one_of("cast", cast, CASTS),
        floating(x=x, residual=residual, weight=weight, bias=bias),
        same_shape(x=x, residual=residual),
        row_width(x, weight=weight, bias=bias),
        same_device(x=x, residual=residual, weight=weight, bias=bias),
        OP.refuses(x, residual, weight, bias, eps, offset, cast, widened_by_autocast(x, cast)),
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use: with and without bias and weight, both casts, and a residual stream in fp32."""

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def pair() -> tuple[Tensor, Tensor]:
        return random(rows, width), random(rows, width)

    yield Sample("weight and bias", (*pair(), random(width), random(width), 1e-5))
    yield Sample("no bias", (*pair(), random(width), None, 1e-5))
    yield Sample("no weight", (*pair(), None, None, 1e-6))
    yield Sample("deberta", (*pair(), random(width), random(width), 1e-7), {"cast": "deberta"})
    wide = torch.promote_types(dtype, torch.float32)
    yield Sample("residual in fp32", (random(rows, width), random(rows, width, dtype=wide), random(width), None, 1e-5))


REPLACEMENT = Replacement(
    name="add_layer_norm",
    family="reduction",
    function=add_layer_norm,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
