"""A matrix product whose weight stays in packed 4-bit groups until it is in registers, in Triton.

Suffixes: ``_M`` rows, ``_N`` output features, ``_K`` input features of a tile; ``_H`` half a group: its bytes.

A byte holds element ``i`` of its group in the low and element ``i + HALF`` in the high nibble, so that a run of bytes
meets two runs of the input, and two products replace the shuffle that interleaved nibbles would need. One trip of
forward is one group: the integers, centred on their zero point, are exact in every dtype here, and the group's scale
goes to the fp32 sum of the trip. Neither direction ever writes a dequantised weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._gemm import (
    FP32,
    LAUNCHES,
    GemmLaunch,
    gemm_launch,
    matrix_refusal,
    precision,
    stages,
    strides,
    tile_place,
)
from fused_replacements.kernels._launch import KernelCase, on

COLUMNS = 64
"""The widest tile of forward: beside the sum it holds that of one group, and registers are for both."""


@triton.jit(do_not_specialize=["rows"])
def int4_forward(
    x, packed, scale, zero, bias, y, rows, columns, depth, groups, x_row, x_column, packed_row, scale_row, zero_row,
    HAS_ZERO: tl.constexpr, HAS_BIAS: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """y = Σ groups scale · Σ x·(nibble − zero) + bias. The last group may reach beyond ``depth``, where x is 0."""
    first_row, first_column = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, column_N = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inside_M, inside_N = row_M < rows, column_N < columns
    h_H = tl.arange(0, HALF).to(tl.int64)
    low_MH = x + row_M[:, None] * x_row + h_H[None, :] * x_column
    x_half = tl.cast(x_column, tl.int64) * HALF
    packed_HN = packed + h_H[:, None] + column_N[None, :] * packed_row
    sum_MN = tl.zeros([ROWS, COLUMNS], tl.float32)
    for group in range(groups):
        bytes_HN = tl.load(packed_HN, mask=inside_N[None, :], other=0)
        if EVEN:
            a_MH = tl.load(low_MH, mask=inside_M[:, None], other=0.0)
            b_MH = tl.load(low_MH + x_half, mask=inside_M[:, None], other=0.0)
        else:
            left = depth - group * (2 * HALF)
            a_MH = tl.load(low_MH, mask=inside_M[:, None] & (h_H < left)[None, :], other=0.0)
            b_MH = tl.load(low_MH + x_half, mask=inside_M[:, None] & (h_H + HALF < left)[None, :], other=0.0)
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
        low_MH += 2 * x_half
        packed_HN += HALF
    if HAS_BIAS:
        sum_MN += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    tl.store(y + row_M[:, None] * columns + column_N[None, :], sum_MN, mask=inside_M[:, None] & inside_N[None, :])


@triton.jit(do_not_specialize=["rows"])
def int4_backward(
    dy, packed, scale, zero, dx, rows, columns, depth, width, dy_row, dy_column, packed_row, scale_row, zero_row,
    HAS_ZERO: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, HALF: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """dx = Σ dy·scale·(nibble − zero) over ``depth`` output features, for the bytes of one group: two runs of dx."""
    first_row, first_byte = tile_place(rows, columns, ROWS, HALF, GROUP)
    row_M, byte_H = first_row + tl.arange(0, ROWS), first_byte + tl.arange(0, HALF)
    inside_M, group = row_M < rows, first_byte // HALF
    low_H = byte_H + first_byte  # a byte stands for two elements: the run before it is twice as long
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
    out_MH = dx + row_M[:, None] * width + low_H[None, :]
    tl.store(out_MH, low_MH, mask=inside_M[:, None] & (low_H < width)[None, :])
    tl.store(out_MH + HALF, high_MH, mask=inside_M[:, None] & (low_H + HALF < width)[None, :])


def refuses(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> str | None:
    """A packed weight, scale or zero point whose rows are not contiguous, or an input that is no matrix."""
    return matrix_refusal(x=x) or _layout.row_refusal(packed=packed, scale=scale, zero=zero, bias=bias)


def refuses_backward(
    dy: Tensor | None, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and the incoming gradient has strides of its own."""
    return refuses(x, packed, scale, zero, bias) or matrix_refusal(gradient=dy)


def half_group(packed: Tensor, scale: Tensor) -> int:
    """Bytes of one group."""
    return packed.size(1) // max(1, scale.size(1))


def forward(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """``y`` of (…, N) for ``x`` of (…, K), in one launch."""
    columns, rows, half = packed.size(0), _layout.rows(x), half_group(packed, scale)
    y = _layout.new(x, (*x.shape[:-1], columns))
    if not y.numel():
        return y
    launch = _forward_launch(gemm_launch(rows, columns, x.dtype))
    with on(x):
        int4_forward[launch.grid(rows, columns)](
            x, packed, scale, zero, bias, y, rows, columns, x.size(-1), scale.size(1),
            *strides(x), packed.stride(0), scale.stride(0), 0 if zero is None else zero.stride(0),
            HAS_ZERO=zero is not None, HAS_BIAS=bias is not None, EVEN=x.size(-1) == 2 * packed.size(1),
            PRECISION=precision(x.dtype), ROWS=launch.rows, COLUMNS=launch.columns, HALF=half, GROUP=launch.group,
            num_warps=launch.warps, num_stages=stages(launch),
        )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x`` and ``bias``."""
    gradients = [_input_gradient(dy, x, packed, scale, zero)] if needs[0] else []
    if bias is not None and needs[1]:
        gradients.append(dy.reshape(-1, dy.size(-1)).sum(0, dtype=torch.float32).to(bias.dtype))
    return gradients


def _input_gradient(dy: Tensor, x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    (depth, columns), rows = packed.shape, _layout.rows(x)
    dx = _layout.new(x)
    if not dx.numel():
        return dx
    launch = _backward_launch(gemm_launch(rows, 2 * columns, x.dtype), half_group(packed, scale))
    with on(x):
        int4_backward[launch.grid(rows, columns)](
            dy, packed, scale, zero, dx, rows, columns, depth, x.size(-1),
            *strides(dy), packed.stride(0), scale.stride(0), 0 if zero is None else zero.stride(0),
            HAS_ZERO=zero is not None, PRECISION=precision(x.dtype), ROWS=launch.rows, DEPTH=launch.depth,
            HALF=launch.columns, GROUP=launch.group,
            num_warps=launch.warps, num_stages=stages(launch),
        )  # fmt: skip
    return dx


def _forward_launch(launch: GemmLaunch) -> GemmLaunch:
    return GemmLaunch(launch.rows, COLUMNS, launch.depth, launch.warps, launch.stages, launch.group)


def _backward_launch(launch: GemmLaunch, half: int) -> GemmLaunch:
    """The tile of backward: the bytes of one group, whose scale is one number for each output feature."""
    return GemmLaunch(min(launch.rows, 64), half, 32, launch.warps, launch.stages, launch.group)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward at every tile for groups of 128 and the narrowest of 32, and backward, with zero points."""
    pointer = f"*{dtype}"
    weight = {"packed": "*u8", "scale": pointer, "zero": "*u8"}
    rows = {"packed_row": "i32", "scale_row": "i32", "zero_row": "i32"}
    aligned = frozenset({"columns", "depth", "width", "x_row", "packed_row", "dy_row"})
    known = aligned if width % 32 == 0 else frozenset[str]()
    mode = "tf32" if dtype == "fp32" else "ieee"
    for launch in LAUNCHES:
        tile = FP32[launch] if dtype == "fp32" else launch
        ahead = _forward_launch(tile)
        for half in (16, 64):
            yield KernelCase(
                int4_forward,
                f"forward, {ahead.rows}x{ahead.columns}, groups of {2 * half}, {ahead.warps} warps",
                {
                    "x": pointer, **weight, "bias": pointer, "y": pointer,
                    "rows": "i32", "columns": "i32", "depth": "i32", "groups": "i32", "x_row": "i32", "x_column": 1,
                    **rows, "HAS_ZERO": True, "HAS_BIAS": True, "EVEN": width % (2 * half) == 0, "PRECISION": mode,
                    "ROWS": ahead.rows, "COLUMNS": ahead.columns, "HALF": half, "GROUP": ahead.group,
                },
                ahead.warps, loads=None, stores=None, stages=ahead.stages, aligned=known, tensor_cores=True,
            )  # fmt: skip
        tile = _backward_launch(tile, 64)
        yield KernelCase(
            int4_backward,
            f"backward, {tile.rows}x{2 * tile.columns}x{tile.depth}",
            {
                "dy": pointer, **weight, "dx": pointer,
                "rows": "i32", "columns": "i32", "depth": "i32", "width": "i32", "dy_row": "i32", "dy_column": 1,
                **rows, "HAS_ZERO": True, "PRECISION": mode, "ROWS": tile.rows, "DEPTH": tile.depth,
                "HALF": 64, "GROUP": tile.group,
            },
            tile.warps, loads=None, stores=None, stages=tile.stages, aligned=known, tensor_cores=True,
            # scales: one for each row of the tile, apart; packed: 8 of one byte a thread, as the gradient has 8 of two
            narrow=frozenset({"packed", "scale", "zero"}),
        )  # fmt: skip
