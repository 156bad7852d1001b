"""Residual add and RMS norm in one kernel, with both results.

Formula
-------
``total = x + residual``, rounded to its dtype, and ``y = total / sqrt(mean(total²) + eps) · (offset + weight)``: see
``rms_norm`` for the norm and its two orders of casts. The result is ``(y, total)``: a pre-norm block (Llama, Qwen,
Gemma, Mistral) reads both, a post-norm block only ``y``. The gradient of either may be absent.

Shapes and dtypes
-----------------
``x`` and ``residual``: (…, N), of one shape; ``weight``: (N,) or None; results: (…, N), contiguous. fp32, bf16 and fp16
fused, fp64 by the reference. ``total`` has the promoted dtype of ``x`` and ``residual``, as an add gives; ``y`` that of
``rms_norm`` of it. The rows of ``x`` and ``residual`` may each lie at any one stride. Gradients to ``x``, ``residual``
and ``weight``.

Bytes moved
-----------
Forward: 4 accesses an element (two reads, two writes) instead of 10 to 14 for an add and the six to eight kernels of a
norm by hand, or 5 with ``F.rms_norm``. Backward: the sum and both gradients read, one written, which both inputs share:
4. Kept for backward: the sum, which the next residual add reads anyway. Above 8,192 columns, where the weight
learns, 6.

When it loses
-------------
In a post-norm block that needs no gradient: there ``total`` is written for nobody. Inside a graph that
``torch.compile`` compiles as a whole, which fuses it too.

Source
------
Zhang and Sennrich 2019, "Root Mean Square Layer Normalization". The fusion with the residual add is that of vLLM and
FlashInfer, which write in place; here neither input is written.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._dispatched import Kernels
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating, one_of, row_width, same_device, same_shape
from fused_replacements.reduction._residual import ResidualOp, through_scale
from fused_replacements.reduction.rms_norm import CASTS, Cast


def _scaled(total: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Rows in fp32, and the factors that give them mean square 1."""
    h = _layout.wide(total)
    return h, torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps)


def definition(total: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str) -> Tensor:
    """RMS norm in plain PyTorch."""
    h, r = _scaled(total, eps)
    n = h * r
    if cast == "llama":
        n = n.to(total.dtype)
        return n if weight is None else n * (weight + offset if offset else weight)
    n = n if weight is None else n * (_layout.wide(weight) + offset)
    return n.to(total.dtype)


def gradient(
    dy: Tensor, total: Tensor, weight: Tensor | None, eps: float, offset: float, cast: str, needs: list[bool]
) -> list[Tensor]:
    """Of ``total`` and ``weight``, where ``needs`` says so."""
    h, r = _scaled(total, eps)
    dy = _layout.wide(dy)
    found = []
    if needs[0]:
        g = dy if weight is None else dy * (_layout.wide(weight) + offset)
        found.append(through_scale(g, h, r).to(total.dtype))
    if needs[1] and weight is not None:
        rows = list(range(total.dim() - 1))
        n = h * r
        found.append(((dy * n).sum(rows) if rows else dy * n).to(weight.dtype))
    return found


def _misfit(x: Tensor, residual: Tensor, weight: Tensor | None, *_: object) -> str | None:
    return same_shape(x=x, residual=residual) or row_width(x, weight=weight)


OP = ResidualOp(
    "add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps, float offset, str cast) -> (Tensor, Tensor)",
    definition,
    gradient,
    forward=Kernels("add_rms_norm", "forward"),
    backward=Kernels("add_rms_norm", "backward", "refuses_backward"),
    misfit=_misfit,
)


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> tuple[Tensor, Tensor]:
    """``(RMS norm of x + residual, x + residual)`` for (…, N), in one kernel; see the module for the formula.

    Raises:
        ValueError: ``cast`` is none of the two, or the shapes don't fit.
    """
    if cast not in CASTS:
        raise ValueError(one_of("cast", cast, CASTS))
    if x.shape != residual.shape:
        return OP.broadcast(x, residual, weight, eps, offset, cast)
    y, total = OP(x, residual, weight, eps, offset, cast)
    return y, total


def reference(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> tuple[Tensor, Tensor]:
    """The definition, op by op."""
    total = x + residual
    return definition(total, weight, eps, offset, cast), total


def supports(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-6,
    *,
    offset: float = 0.0,
    cast: Cast = "llama",
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        one_of("cast", cast, CASTS),
        floating(x=x, residual=residual, weight=weight),
        same_shape(x=x, residual=residual),
        row_width(x, weight=weight),
        same_device(x=x, residual=residual, weight=weight),
        OP.refuses(x, residual, weight, eps, offset, cast),
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use: both casts, Gemma's offset, no weight, and a residual stream in fp32."""

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def pair() -> tuple[Tensor, Tensor]:
        return random(rows, width), random(rows, width)

    yield Sample("llama", (*pair(), random(width), 1e-6))
    yield Sample("gemma, 1 + weight", (*pair(), random(width), 1e-6), {"offset": 1.0, "cast": "gemma"})
    yield Sample("no weight", (*pair(), None, 1e-5))
    wide = torch.promote_types(dtype, torch.float32)
    yield Sample("residual in fp32", (random(rows, width), random(rows, width, dtype=wide), random(width), 1e-6))


REPLACEMENT = Replacement(
    name="add_rms_norm",
    family="reduction",
    function=add_rms_norm,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
