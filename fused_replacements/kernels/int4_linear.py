"""A matrix product whose weight stays in packed 4-bit groups until it is in registers, in Triton.

Suffixes: ``_M`` rows, ``_N`` output features, ``_K`` input features of a tile; ``_H`` half a group: its bytes.

A byte holds element ``i`` of its group in the low and element ``i + HALF`` in the high nibble, so that a run of bytes
meets two runs of the input, and two products replace the shuffle that interleaved nibbles would need. A trip of
forward stays in one group: the integers, centred on their zero point, are exact in every dtype here, and the group's
scale goes to the fp32 sum of the trip. Neither direction ever writes a dequantised weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._gemm import FP32, LARGE, GemmLaunch, gemm_launch, is_aligned, strides, tile_place
from fused_replacements.kernels._gemm_cases import launches, product_case
from fused_replacements.kernels._launch import KernelCase
from fused_replacements.kernels._packed_weight import backward_refusal as refuses_backward
from fused_replacements.kernels._packed_weight import gradients, is_full, launch
from fused_replacements.kernels._packed_weight import refusal as refuses

__all__ = ["backward", "cases", "forward", "refuses", "refuses_backward"]

COLUMNS = 64
"""The widest tile of forward: beside the sum it holds that of one group, and registers are for both."""
FEW_WIDE = GemmLaunch(16, 64, 64, warps=8, stages=4)
"""Of few rows in groups of 128 or more: a thread of 4 warps would hold 32 bytes, and their 64 integers would spill."""
FULL_FEW, FULL = GemmLaunch(16, 64, 16, warps=8, stages=3), GemmLaunch(32, 32, 16, warps=8, stages=3)
"""Of forward in full fp32, where no tensor cores are used: threads hold both operands of both products in registers."""


@triton.jit(do_not_specialize=["rows"])
def int4_forward(
    x, packed, scale, zero, bias, y, rows, columns, depth, x_row, x_column, packed_row, scale_row, zero_row,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """y = Σ groups scale · Σ x·(nibble − zero) + bias. The last group may reach beyond ``depth``, where x is 0.

    A trip takes DEPTH bytes, which divides the HALF of a group.
    """
    first_row, first_column = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, column_N = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inside_M, inside_N = row_M < rows, column_N < columns
    h_H = tl.arange(0, DEPTH).to(tl.int64)
    x_MH = x + row_M[:, None] * x_row + h_H[None, :] * x_column
    packed_HN = packed + h_H[:, None] + column_N[None, :] * packed_row
    sum_MN = tl.zeros([ROWS, COLUMNS], tl.float32)
    for trip in range(tl.cdiv(depth, 2 * HALF) * (HALF // DEPTH)):
        group = trip // (HALF // DEPTH)
        first = tl.cast(group, tl.int64) * HALF + trip * DEPTH  # the low run: a group before it is twice its bytes
        bytes_HN = tl.load(packed_HN, mask=inside_N[None, :], other=0)
        low_MH = x_MH + first * x_column
        high_MH = x_MH + (first + HALF) * x_column
        if EVEN:
            a_MH = tl.load(low_MH, mask=inside_M[:, None], other=0.0)
            b_MH = tl.load(high_MH, mask=inside_M[:, None], other=0.0)
        else:
            left = depth - first
            a_MH = tl.load(low_MH, mask=inside_M[:, None] & (h_H < left)[None, :], other=0.0)
            b_MH = tl.load(high_MH, mask=inside_M[:, None] & (h_H + HALF < left)[None, :], other=0.0)
        low_HN, high_HN = (bytes_HN & 15).to(tl.int8), (bytes_HN >> 4).to(tl.int8)
        if HAS_ZERO:
            zero_N = tl.load(zero + column_N * zero_row + group, mask=inside_N, other=0).to(tl.int8)
            low_HN, high_HN = low_HN - zero_N[None, :], high_HN - zero_N[None, :]
        else:
            low_HN, high_HN = low_HN - 8, high_HN - 8
        part_MN = tl.dot(a_MH, low_HN.to(a_MH.dtype), input_precision=PRECISION)
        part_MN = tl.dot(b_MH, high_HN.to(b_MH.dtype), part_MN, input_precision=PRECISION)
        scale_N = tl.load(scale + column_N * scale_row + group, mask=inside_N, other=0.0).to(tl.float32)
        sum_MN += part_MN * scale_N[None, :]
        packed_HN += DEPTH
    if HAS_BIAS:
        sum_MN += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    tl.store(y + row_M[:, None] * columns + column_N[None, :], sum_MN, mask=inside_M[:, None] & inside_N[None, :])


@triton.jit(do_not_specialize=["rows"])
def int4_backward(
    dy, packed, scale, zero, dx, rows, columns, depth, dy_row, dy_column, packed_row, scale_row, zero_row,
    HAS_ZERO: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dx = Σ dy·scale·(nibble − zero) over ``depth`` output features, for the COLUMNS of one group: two runs of dx."""
    HALF: tl.constexpr = COLUMNS // 2
    first_row, low = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, low_H = first_row + tl.arange(0, ROWS), low + tl.arange(0, HALF)
    inside_M, group = row_M < rows, low // COLUMNS
    byte_H = group * HALF + tl.arange(0, HALF)
    low_MH = tl.zeros([ROWS, HALF], tl.float32)
    high_MH = tl.zeros([ROWS, HALF], tl.float32)
    for start in range(0, depth, DEPTH):
        n_N = (start + tl.arange(0, DEPTH)).to(tl.int64)
        inside_N = n_N < depth
        dy_MN = dy + row_M[:, None] * dy_row + n_N[None, :] * dy_column
        g_MN = tl.load(dy_MN, mask=inside_M[:, None] & inside_N[None, :], other=0.0)
        bytes_NH = tl.load(packed + n_N[:, None] * packed_row + byte_H[None, :], mask=inside_N[:, None], other=0)
        low_NH, high_NH = (bytes_NH & 15).to(tl.float32), (bytes_NH >> 4).to(tl.float32)
        if HAS_ZERO:
            zero_N = tl.load(zero + n_N * zero_row + group, mask=inside_N, other=0).to(tl.float32)
            low_NH, high_NH = low_NH - zero_N[:, None], high_NH - zero_N[:, None]
        else:
            low_NH, high_NH = low_NH - 8.0, high_NH - 8.0
        scale_N = tl.load(scale + n_N * scale_row + group, mask=inside_N, other=0.0).to(tl.float32)
        low_MH = tl.dot(g_MN, (low_NH * scale_N[:, None]).to(g_MN.dtype), low_MH, input_precision=PRECISION)
        high_MH = tl.dot(g_MN, (high_NH * scale_N[:, None]).to(g_MN.dtype), high_MH, input_precision=PRECISION)
    out_MH = dx + row_M[:, None] * columns + low_H[None, :]
    tl.store(out_MH, low_MH, mask=inside_M[:, None] & (low_H < columns)[None, :])
    tl.store(out_MH + HALF, high_MH, mask=inside_M[:, None] & (low_H + HALF < columns)[None, :])


def _half_group(packed: Tensor, scale: Tensor) -> int:
    """Bytes of one group."""
    return packed.size(1) // max(1, scale.size(1))


def _row_steps(packed: Tensor, scale: Tensor, zero: Tensor | None) -> tuple[int, int, int]:
    return packed.stride(0), scale.stride(0), 0 if zero is None else zero.stride(0)


def _tile(source: Tensor, packed: Tensor, out: Tensor) -> GemmLaunch:
    columns = out.size(-1)
    aligned = is_aligned(columns, strides(source), (packed.stride(0), 1))
    return gemm_launch(_layout.rows(out), columns, source.dtype, aligned)


def _forward_tile(tile: GemmLaunch, half: int, full: bool) -> GemmLaunch:
    """Of half a group at most, whose scale is one number for each output feature. ``full``: products of full fp32."""
    if full:
        return FULL_FEW if tile.rows == FULL_FEW.rows else FULL
    rows = 64 if tile == FP32[LARGE] else tile.rows  # or one program would fill the registers of a processor
    tile = replace(tile, rows=rows, columns=COLUMNS, depth=min(half, tile.depth))
    return FEW_WIDE if (tile.rows, tile.depth) == (FEW_WIDE.rows, FEW_WIDE.depth) else tile


def _backward_tile(tile: GemmLaunch, half: int, full: bool) -> GemmLaunch:
    """Of the columns of one group, for the same reason."""
    if full:
        return replace(tile, rows=min(tile.rows, 32), columns=2 * half, depth=16, warps=8)
    return replace(tile, rows=min(tile.rows, 64), columns=2 * half, depth=32)


def forward(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """``y`` of (…, N) for ``x`` of (…, K), in one launch."""
    y, half = _layout.new(x, (*x.shape[:-1], packed.size(0))), _half_group(packed, scale)
    tile = _forward_tile(_tile(x, packed, y), half, is_full(x))
    return launch(
        int4_forward, tile, x, (packed, scale, zero, bias), y, x.size(-1), _row_steps(packed, scale, zero), HALF=half,
        HAS_ZERO=zero is not None, HAS_BIAS=bias is not None, EVEN=x.size(-1) == 2 * packed.size(1),
    )  # fmt: skip


def backward(
    dy: Tensor, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x`` and ``bias``."""

    def input_gradient() -> Tensor:
        dx = _layout.new(x)
        tile = _backward_tile(_tile(dy, packed, dx), _half_group(packed, scale), is_full(dy))
        return launch(
            int4_backward, tile, dy, (packed, scale, zero), dx, packed.size(0), _row_steps(packed, scale, zero),
            HAS_ZERO=zero is not None,
        )  # fmt: skip

    return gradients(dy, bias, needs, input_gradient)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward at every tile for groups of 128 and the narrowest of 32, and backward, with zero points."""
    aligned = width % 32 == 0
    known = frozenset({"columns", "depth", "x_row", "packed_row", "dy_row"} if aligned else ())
    common = {"packed": "*u8", "zero": "*u8"}
    for tile, mode in launches(dtype, aligned):
        full = dtype == "fp32" and mode == "ieee"
        for half in (16, 64):
            ahead = _forward_tile(tile, half, full)
            label = f"forward, {ahead.rows}x{ahead.columns}, groups of {2 * half}, {ahead.warps} warps"
            values = {**common, "HALF": half, "EVEN": width % (2 * half) == 0}
            yield product_case(int4_forward, label, ahead, dtype, mode, known, values)
        back = _backward_tile(tile, 64, full)
        # scales: one for each row of the tile, apart; packed: 8 of one byte a thread, as the gradient has 8 of two
        narrow = frozenset({"packed", "scale", "zero"})
        label = f"backward, {back.rows}x{back.columns}x{back.depth}, {back.warps} warps"
        yield product_case(int4_backward, label, back, dtype, mode, known, common, narrow)
