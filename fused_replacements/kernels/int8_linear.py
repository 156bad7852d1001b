"""A matrix product whose weight stays in int8 until it is in registers, in Triton.

Suffixes: ``_M`` rows, ``_N`` output features, ``_K`` input features of a tile.

Forward multiplies the integers themselves, which every dtype here holds exactly, and scales the fp32 sum of a column
once. Backward (to the input) sums over output features, so there the scale goes to the tile of the weight. Neither ever
writes a dequantised weight.
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
    gemm_launch,
    matrix_refusal,
    precision,
    stages,
    strides,
    tile_place,
)
from fused_replacements.kernels._launch import KernelCase, on


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


def refuses(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> str | None:
    """A weight whose rows are not contiguous, or an input whose rows lie at no single stride."""
    return matrix_refusal(x=x) or _layout.row_refusal(values=values, scale=scale, zero=zero, bias=bias)


def refuses_backward(
    dy: Tensor | None, x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and the incoming gradient has strides of its own."""
    return refuses(x, values, scale, zero, bias) or matrix_refusal(gradient=dy)


def forward(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """``y`` of (…, N) for ``x`` of (…, K), in one launch."""
    (columns, depth), rows = values.shape, _layout.rows(x)
    y = _layout.new(x, (*x.shape[:-1], columns))
    if not y.numel():
        return y
    launch = gemm_launch(rows, columns, x.dtype)
    with on(x):
        int8_forward[launch.grid(rows, columns)](
            x, values, scale, zero, bias, y, rows, columns, depth, *strides(x), values.stride(0),
            HAS_ZERO=zero is not None, HAS_BIAS=bias is not None, EVEN=depth % launch.depth == 0,
            PRECISION=precision(x.dtype),
            ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=launch.depth, GROUP=launch.group,
            num_warps=launch.warps, num_stages=stages(launch),
        )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x`` and ``bias``."""
    gradients = [_input_gradient(dy, x, values, scale, zero)] if needs[0] else []
    if bias is not None and needs[1]:
        gradients.append(dy.reshape(-1, dy.size(-1)).sum(0, dtype=torch.float32).to(bias.dtype))
    return gradients


def _input_gradient(dy: Tensor, x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    (depth, columns), rows = values.shape, _layout.rows(x)
    dx = _layout.new(x)
    if not dx.numel():
        return dx
    launch = gemm_launch(rows, columns, x.dtype)
    with on(x):
        int8_backward[launch.grid(rows, columns)](
            dy, values, scale, zero, dx, rows, columns, depth, *strides(dy), values.stride(0),
            HAS_ZERO=zero is not None, PRECISION=precision(x.dtype),
            ROWS=launch.rows, COLUMNS=launch.columns, DEPTH=launch.depth, GROUP=launch.group,
            num_warps=launch.warps, num_stages=stages(launch),
        )  # fmt: skip
    return dx


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward at every tile of the table, with a zero point, on a square weight."""
    pointer = f"*{dtype}"
    aligned = frozenset({"columns", "depth", "x_row", "values_row", "dy_row"})
    known = aligned if width % 16 == 0 else frozenset[str]()
    for launch in LAUNCHES:
        tile = FP32[launch] if dtype == "fp32" else launch
        sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns, "DEPTH": tile.depth, "GROUP": tile.group}
        weight = {"values": "*i8", "scale": pointer, "zero": "*i8"}
        counts = {"rows": "i32", "columns": "i32", "depth": "i32"}
        label, mode = f"{tile.rows}x{tile.columns}x{tile.depth}", "tf32" if dtype == "fp32" else "ieee"
        yield KernelCase(
            int8_forward,
            f"forward, {label}",
            {
                "x": pointer, **weight, "bias": pointer, "y": pointer, **counts,
                "x_row": "i32", "x_column": 1, "values_row": "i32",
                "HAS_ZERO": True, "HAS_BIAS": True, "EVEN": width % tile.depth == 0, "PRECISION": mode, **sizes,
            },
            tile.warps, loads=None, stores=None, stages=tile.stages, aligned=known, tensor_cores=True,
        )  # fmt: skip
        yield KernelCase(
            int8_backward,
            f"backward, {label}",
            {
                "dy": pointer, **weight, "dx": pointer, **counts, "dy_row": "i32", "dy_column": 1, "values_row": "i32",
                "HAS_ZERO": True, "PRECISION": mode, **sizes,
            },
            tile.warps, loads=None, stores=None, stages=tile.stages, aligned=known, tensor_cores=True,
            # scales: one for each row of the tile; values: 8 of one byte a thread, as the gradient has 8 of two
            narrow=frozenset({"values", "scale", "zero"}),
        )  # fmt: skip
