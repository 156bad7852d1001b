"""Layer norm in Triton: one program holds one row. The arithmetic is that of ``_rows``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import KernelCase, on, row_launch
from fused_replacements.kernels._norm_launch import (
    backward_cases,
    forward_case,
    launch_backward,
    result_dtype,
    too_wide,
    vector_refusal,
)
from fused_replacements.kernels._rows import backward_rows, columns_of_gradients, forward_row


@triton.jit
def layer_norm_forward(
    x, weight, bias, y, width, x_stride, eps, offset,
    ROUND_FIRST: tl.constexpr, HAS_WEIGHT: tl.constexpr, HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    forward_row(
        x, None, weight, bias, y, None, width, x_stride, 0, eps, offset,
        ADD=False, CENTRED=True, ROUND_FIRST=ROUND_FIRST, HAS_WEIGHT=HAS_WEIGHT, HAS_BIAS=HAS_BIAS, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def layer_norm_backward(
    dy, dtotal, x, weight, dx, dweight, dbias, statistics, rows, width, dy_stride, dtotal_stride, x_stride, eps, offset,
    ADD: tl.constexpr, HAS_WEIGHT: tl.constexpr, SUM_WEIGHT: tl.constexpr,
    SUM_BIAS: tl.constexpr, HOLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    backward_rows(
        dy, dtotal, x, weight, dx, dweight, dbias, statistics, rows, width, dy_stride, dtotal_stride, x_stride, eps,
        offset, ADD=ADD, CENTRED=True, HAS_WEIGHT=HAS_WEIGHT, SUM_WEIGHT=SUM_WEIGHT,
        SUM_BIAS=SUM_BIAS, HOLD=HOLD, BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def layer_norm_columns(
    dy, h, statistics, dweight, dbias, rows, width, dy_stride, h_stride,
    SUM_WEIGHT: tl.constexpr, SUM_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    columns_of_gradients(
        dy, h, statistics, dweight, dbias, rows, width, dy_stride, h_stride,
        SUM_WEIGHT, SUM_BIAS, ROWS, BLOCK,
    )  # fmt: skip


def refuses(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str, wide: bool
) -> str | None:
    """A stride that a row kernel can't read, or a row too wide for one program."""
    return too_wide(x) or vector_refusal(x, weight=weight, bias=bias) or _layout.row_refusal(x=x)


def refuses_backward(
    dy: Tensor | None, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str,
    wide: bool, needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and the incoming gradient has strides of its own."""
    return refuses(x, weight, bias, eps, offset, cast, wide) or _layout.row_refusal(gradient=dy)


def forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str, wide: bool
) -> Tensor:
    """``y`` for ``x`` of (…, N), in one launch."""
    y = _layout.new(x, dtype=result_dtype(x.dtype, weight, bias, cast == "deberta", wide))
    if not y.numel():
        return y
    width = x.size(-1)
    config = row_launch(width, 2)
    with on(x):
        layer_norm_forward[(_layout.rows(x),)](
            x, weight, bias, y, width, _layout.row_stride(x), eps, offset,
            ROUND_FIRST=cast == "deberta", HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
            BLOCK=config.block, num_warps=config.warps,
        )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, offset: float, cast: str,
    wide: bool, needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x``, ``weight`` and ``bias``."""
    found = launch_backward(
        layer_norm_backward, layer_norm_columns, dy, None, x, weight, eps, offset,
        sum_weight=needs[1] and weight is not None, sum_bias=needs[2] and bias is not None,
    )  # fmt: skip
    return found.asked_for(needs, weight, bias)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward with weight and bias, which is the widest form, in both casting orders."""
    for label, round_first in (("torch", False), ("deberta", True)):
        yield forward_case(layer_norm_forward, label, width, dtype, round_first, bias=True)
    yield from backward_cases(layer_norm_backward, layer_norm_columns, width, dtype, bias=True)
