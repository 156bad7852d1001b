"""A matrix product whose weight stays in int8 until it is in registers, in Triton.

Suffixes: ``_M`` rows, ``_N`` output features, ``_K`` input features of a tile.

Forward multiplies the integers themselves, which every dtype here holds exactly, and scales the fp32 sum of a column
once. Backward (to the input) sums over output features, so there the scale goes to the tile of the weight. Neither ever
writes a dequantised weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._gemm import FEW_ROWS, GemmLaunch, gemm_launch, is_aligned, strides, tile_place
from fused_replacements.kernels._gemm_cases import launches, product_case
from fused_replacements.kernels._launch import KernelCase
from fused_replacements.kernels._packed_weight import backward_refusal as refuses_backward
from fused_replacements.kernels._packed_weight import gradients, is_full, launch
from fused_replacements.kernels._packed_weight import refusal as refuses

__all__ = ["backward", "cases", "forward", "refuses", "refuses_backward"]

FULL = GemmLaunch(64, 64, 16, warps=8, stages=3)
"""The tile of more than a few rows in full fp32: a depth of 32 would spill."""


@triton.jit(do_not_specialize=["rows"])
def int8_forward(
    x, values, scale, zero, bias, y, rows, columns, depth, x_row, x_column, values_row,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """y = scale · Σ x·(values − zero) + bias."""
    first_row, first_column = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, column_N = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inside_M, inside_N = row_M < rows, column_N < columns
    k_K = tl.arange(0, DEPTH).to(tl.int64)
    x_MK = x + row_M[:, None] * x_row + k_K[None, :] * x_column
    values_KN = values + k_K[:, None] + column_N[None, :] * values_row
    x_step = tl.cast(x_column, tl.int64) * DEPTH
    if HAS_ZERO:
        zero_N = tl.load(zero + column_N, mask=inside_N, other=0).to(tl.int16)
    sum_MN = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        if EVEN:
            a_MK = tl.load(x_MK, mask=inside_M[:, None], other=0.0)
            q_KN = tl.load(values_KN, mask=inside_N[None, :], other=0)
        else:
            left_K = tl.arange(0, DEPTH) < depth - start
            a_MK = tl.load(x_MK, mask=inside_M[:, None] & left_K[None, :], other=0.0)
            q_KN = tl.load(values_KN, mask=left_K[:, None] & inside_N[None, :], other=0)
        if HAS_ZERO:
            q_KN = q_KN.to(tl.int16) - zero_N[None, :]
        sum_MN = tl.dot(a_MK, q_KN.to(a_MK.dtype), sum_MN, input_precision=PRECISION)
        x_MK += x_step
        values_KN += DEPTH
    sum_MN *= tl.load(scale + column_N, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    if HAS_BIAS:
        sum_MN += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    tl.store(y + row_M[:, None] * columns + column_N[None, :], sum_MN, mask=inside_M[:, None] & inside_N[None, :])


@triton.jit(do_not_specialize=["rows"])
def int8_backward(
    dy, values, scale, zero, dx, rows, columns, depth, dy_row, dy_column, values_row,
    HAS_ZERO: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dx = Σ dy·scale·(values − zero) over ``depth`` output features; ``columns`` are the input features."""
    first_row, first_column = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, column_K = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inside_M, inside_K = row_M < rows, column_K < columns
    sum_MK = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        n_N = (start + tl.arange(0, DEPTH)).to(tl.int64)
        inside_N = n_N < depth
        dy_MN = dy + row_M[:, None] * dy_row + n_N[None, :] * dy_column
        g_MN = tl.load(dy_MN, mask=inside_M[:, None] & inside_N[None, :], other=0.0)
        values_NK = values + n_N[:, None] * values_row + column_K[None, :]
        w_NK = tl.load(values_NK, mask=inside_N[:, None] & inside_K[None, :], other=0).to(tl.float32)
        if HAS_ZERO:
            w_NK -= tl.load(zero + n_N, mask=inside_N, other=0).to(tl.float32)[:, None]
        w_NK *= tl.load(scale + n_N, mask=inside_N, other=0.0).to(tl.float32)[:, None]
        sum_MK = tl.dot(g_MN, w_NK.to(g_MN.dtype), sum_MK, input_precision=PRECISION)
    tl.store(dx + row_M[:, None] * columns + column_K[None, :], sum_MK, mask=inside_M[:, None] & inside_K[None, :])


def _tile(source: Tensor, values: Tensor, out: Tensor) -> GemmLaunch:
    columns = out.size(-1)
    aligned = is_aligned(columns, strides(source), (values.stride(0), 1))
    return _fitting(gemm_launch(_layout.rows(out), columns, source.dtype, aligned), is_full(source))


def _fitting(tile: GemmLaunch, full: bool) -> GemmLaunch:
    return FULL if full and tile.rows > FEW_ROWS else tile


def forward(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """``y`` of (…, N) for ``x`` of (…, K), in one launch."""
    depth, y = values.size(1), _layout.new(x, (*x.shape[:-1], values.size(0)))
    tile = _tile(x, values, y)
    return launch(
        int8_forward, tile, x, (values, scale, zero, bias), y, depth, (values.stride(0),),
        HAS_ZERO=zero is not None, HAS_BIAS=bias is not None, EVEN=depth % tile.depth == 0,
    )  # fmt: skip


def backward(
    dy: Tensor, x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x`` and ``bias``."""

    def input_gradient() -> Tensor:
        dx = _layout.new(x)
        return launch(
            int8_backward, _tile(dy, values, dx), dy, (values, scale, zero), dx, values.size(0), (values.stride(0),),
            HAS_ZERO=zero is not None,
        )  # fmt: skip

    return gradients(dy, bias, needs, input_gradient)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward at every tile of the table, with a zero point, on a square weight."""
    aligned = width % 16 == 0
    known = frozenset({"columns", "depth", "x_row", "values_row", "dy_row"} if aligned else ())
    choices = ((_fitting(tile, dtype == "fp32" and mode == "ieee"), mode) for tile, mode in launches(dtype, aligned))
    for tile, mode in dict.fromkeys(choices):
        label, common = f"{tile.rows}x{tile.columns}x{tile.depth}", {"values": "*i8", "zero": "*i8"}
        even = {"EVEN": width % tile.depth == 0}
        yield product_case(int8_forward, f"forward, {label}", tile, dtype, mode, known, {**common, **even})
        # scales: one for each row of the tile; values: 8 of one byte a thread, as the gradient has 8 of two
        narrow = frozenset({"values", "scale", "zero"})
        yield product_case(int8_backward, f"backward, {label}", tile, dtype, mode, known, common, narrow)
