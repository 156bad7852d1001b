"""Residual add and layer norm in Triton: one program holds one row. The arithmetic is that of ``_rows``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import KernelCase, on, row_launch
from fused_replacements.kernels._norm_launch import (
    add_refusal,
    backward_cases,
    forward_case,
    launch_backward,
    result_dtype,
    sum_alone,
)
from fused_replacements.kernels._rows import backward_rows, columns_of_gradients, forward_row


@triton.jit
def add_layer_norm_forward(
    x, residual, weight, bias, y, total, width, x_stride, residual_stride, eps, offset,
    ROUND_FIRST: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    forward_row(
        x, residual, weight, bias, y, total, width, x_stride, residual_stride, eps, offset, ADD=True, CENTRED=True,
        ROUND_FIRST=ROUND_FIRST, HAS_WEIGHT=HAS_WEIGHT, HAS_BIAS=HAS_BIAS, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def add_layer_norm_backward(
    dy, dtotal, total, weight, dh, dweight, dbias, statistics, rows, width, dy_stride, dtotal_stride, total_stride,
    eps, offset,
    ADD: tl.constexpr, HAS_WEIGHT: tl.constexpr, SUM_WEIGHT: tl.constexpr, SUM_BIAS: tl.constexpr, HOLD: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    backward_rows(
        dy, dtotal, total, weight, dh, dweight, dbias, statistics, rows, width, dy_stride, dtotal_stride, total_stride,
        eps, offset, ADD=ADD, CENTRED=True, HAS_WEIGHT=HAS_WEIGHT, SUM_WEIGHT=SUM_WEIGHT, SUM_BIAS=SUM_BIAS,
        HOLD=HOLD, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def add_layer_norm_columns(
    dy, h, statistics, dweight, dbias, rows, width, dy_stride, h_stride,
    SUM_WEIGHT: tl.constexpr, SUM_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns_of_gradients(
        dy, h, statistics, dweight, dbias, rows, width, dy_stride, h_stride, SUM_WEIGHT, SUM_BIAS, ROWS, BLOCK
    )


def refuses(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    cast: str,
    wide: bool,
) -> str | None:
    """A stride that a row kernel can't read, or a row too wide for one program."""
    return add_refusal(x, residual, weight, bias)


def refuses_backward(
    dy: Tensor | None, dtotal: Tensor | None, total: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    offset: float, cast: str, wide: bool, needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and each incoming gradient has strides of its own."""
    return add_refusal(total, total, weight, bias) or _layout.row_refusal(gradient=dy, gradient_of_the_sum=dtotal)


def forward(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    cast: str,
    wide: bool,
) -> tuple[Tensor, Tensor]:
    """The norm of the sum, and the sum, of (…, N), in one launch."""
    total = _layout.new(x, dtype=torch.promote_types(x.dtype, residual.dtype))
    y = _layout.new(x, dtype=result_dtype(total.dtype, weight, bias, cast == "deberta", wide))
    if not y.numel():
        return y, total
    width = x.size(-1)
    config = row_launch(width, 2)
    with on(x):
        add_layer_norm_forward[(_layout.rows(x),)](
            x, residual, weight, bias, y, total, width, _layout.row_stride(x), _layout.row_stride(residual), eps,
            offset, ROUND_FIRST=cast == "deberta", HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
            BLOCK=config.block, num_warps=config.warps,
        )  # fmt: skip
    return y, total


def backward(
    dy: Tensor | None, dtotal: Tensor | None, total: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float,
    offset: float, cast: str, wide: bool, needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of the sum, ``weight`` and ``bias``."""
    if dy is None:
        assert dtotal is not None
        return sum_alone(dtotal, total, needs, weight, bias)
    found = launch_backward(
        add_layer_norm_backward, add_layer_norm_columns, dy, dtotal, total, weight, eps, offset,
        sum_weight=needs[1] and weight is not None, sum_bias=needs[2] and bias is not None,
    )  # fmt: skip
    return found.asked_for(needs, weight, bias)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward in both casting orders, and the backward that has both gradients and learns all."""
    for label, round_first in (("deberta", True), ("torch", False)):
        yield forward_case(add_layer_norm_forward, label, width, dtype, round_first, add=True, bias=True)
    yield from backward_cases(add_layer_norm_backward, add_layer_norm_columns, width, dtype, add=True, bias=True)
