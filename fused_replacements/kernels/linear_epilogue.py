"""A matrix product with its epilogue in registers, in Triton, and the elementwise part of its backward.

Suffixes: ``_M`` rows, ``_N`` output features, ``_K`` input features of a tile; ``_C`` columns of a row tile.

Forward keeps the tile of the result in fp32 from the first product to the store: bias, activation and residual cost no
memory traffic but the residual's own. Where backward will need the pre-activation it is stored beside the result.
Backward multiplies the gradient by the activation's slope and sums the bias gradient of the same elements in fp32,
in one pass; the two matrix products are PyTorch's own. Partial sums are added in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._activations import activate, activate_with_slope
from fused_replacements.kernels._gemm import gemm_launch, is_aligned, matrix_refusal, precision, strides, tile_place
from fused_replacements.kernels._gemm_cases import launches, product_case
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on, programs

COLUMNS, ROWS = 128, 32
"""Tile of the backward kernel: 16-byte loads, and enough rows in flight to hide their latency."""


@triton.jit(do_not_specialize=["rows"])
def linear_forward(
    x, weight, bias, residual, y, kept, rows, columns, depth,
    x_row, x_column, w_row, w_column, residual_row, residual_column,
    ACTIVATION: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr, KEEP: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """``w_row`` leads to the next output feature, ``w_column`` to the next input feature, in either weight layout."""
    first_row, first_column = tile_place(rows, columns, ROWS, COLUMNS, GROUP)
    row_M, column_N = first_row + tl.arange(0, ROWS), first_column + tl.arange(0, COLUMNS)
    inside_M, inside_N = row_M < rows, column_N < columns
    k_K = tl.arange(0, DEPTH).to(tl.int64)
    x_MK = x + row_M[:, None] * x_row + k_K[None, :] * x_column
    w_KN = weight + k_K[:, None] * w_column + column_N[None, :] * w_row
    x_step, w_step = tl.cast(x_column, tl.int64) * DEPTH, tl.cast(w_column, tl.int64) * DEPTH
    sum_MN = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, depth, DEPTH):
        if EVEN:
            a_MK = tl.load(x_MK, mask=inside_M[:, None], other=0.0)
            b_KN = tl.load(w_KN, mask=inside_N[None, :], other=0.0)
        else:
            left_K = tl.arange(0, DEPTH) < depth - start
            a_MK = tl.load(x_MK, mask=inside_M[:, None] & left_K[None, :], other=0.0)
            b_KN = tl.load(w_KN, mask=left_K[:, None] & inside_N[None, :], other=0.0)
        sum_MN = tl.dot(a_MK, b_KN, sum_MN, input_precision=PRECISION)
        x_MK += x_step
        w_KN += w_step
    if HAS_BIAS:
        sum_MN += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)[None, :]
    inside_MN = inside_M[:, None] & inside_N[None, :]
    out_MN = row_M[:, None] * columns + column_N[None, :]
    if KEEP:
        tl.store(kept + out_MN, sum_MN, mask=inside_MN)
    sum_MN = activate(sum_MN, ACTIVATION)
    if HAS_RESIDUAL:
        residual_MN = row_M[:, None] * residual_row + column_N[None, :] * residual_column
        sum_MN += tl.load(residual + residual_MN, mask=inside_MN, other=0.0).to(tl.float32)
    tl.store(y + out_MN, sum_MN, mask=inside_MN)


@triton.jit(do_not_specialize=["rows"])
def epilogue_backward(
    dy, kept, dz, dbias, rows, columns, dy_row, dy_column,
    ACTIVATION: tl.constexpr, LEARNS_BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dz = dy · activation'(z), and its sum over every ``num_programs(1)``-th tile of rows."""
    column_C = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside_C = column_C < columns
    sum_C = tl.zeros([COLUMNS], tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row_M = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside_MC = (row_M < rows)[:, None] & inside_C[None, :]
        kept_MC = row_M[:, None] * columns + column_C[None, :]
        dy_MC = row_M[:, None] * dy_row + column_C[None, :] * dy_column
        z_MC = tl.load(kept + kept_MC, mask=inside_MC, other=0.0).to(tl.float32)
        _, slope_MC = activate_with_slope(z_MC, ACTIVATION)
        dz_MC = tl.load(dy + dy_MC, mask=inside_MC, other=0.0).to(tl.float32) * slope_MC
        tl.store(dz + kept_MC, dz_MC, mask=inside_MC)
        if LEARNS_BIAS:
            sum_C += tl.sum(dz_MC, 0)
    if LEARNS_BIAS:
        tl.store(dbias + tl.program_id(1).to(tl.int64) * columns + column_C, sum_C, mask=inside_C)


def refuses(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, conv1d: bool, keep: bool
) -> str | None:
    """Operands of several dtypes, or rows that no single stride reaches."""
    if weight.dtype is not x.dtype or (bias is not None and bias.dtype is not x.dtype):
        return f"x is {x.dtype}, and the weight or bias is not"
    return matrix_refusal(x=x, weight=weight, residual=residual) or _layout.row_refusal(bias=bias)


def refuses_backward(
    dy: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str,
    conv1d: bool, keep: bool, kept: Tensor | None, needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and the incoming gradient has strides of its own."""
    if activation != "identity" and not keep:
        return "forward was told to keep no pre-activation"
    return refuses(x, weight, bias, residual, activation, conv1d, keep) or matrix_refusal(gradient=dy)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, conv1d: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """``y`` of (…, N) for ``x`` of (…, K), and the pre-activation, or an empty tensor in its place."""
    w_row, w_column = reversed(weight.stride()) if conv1d else weight.stride()
    columns, depth, rows = weight.size(1 if conv1d else 0), x.size(-1), _layout.rows(x)
    shape = (*x.shape[:-1], columns)
    y = _layout.new(x, shape, x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype))
    kept = _layout.new(x, shape if keep else (0,))
    if not y.numel():
        return y, kept
    matrices = [strides(x), (w_row, w_column), *([] if residual is None else [strides(residual)])]
    launch = gemm_launch(rows, columns, x.dtype, is_aligned(columns, *matrices))
    with on(x):
        linear_forward[launch.grid(rows, columns)](
            x, weight, bias, residual, y, kept if keep else None, rows, columns, depth,
            *strides(x), w_row, w_column, *strides(residual),
            ACTIVATION=activation, HAS_BIAS=bias is not None, HAS_RESIDUAL=residual is not None, KEEP=keep,
            EVEN=depth % launch.depth == 0, PRECISION=precision(x.dtype),
            **launch.constants, **launch.options,
        )  # fmt: skip
    return y, kept


def epilogue_gradient(dy: Tensor, kept: Tensor, activation: str, learns_bias: bool) -> tuple[Tensor, Tensor | None]:
    """The gradient of the pre-activation, in its dtype, and its sum over all rows in fp32 where it is asked for."""
    rows, columns = _layout.rows(kept), kept.size(-1)
    dz = _layout.new(kept)
    count = max(1, min(triton.cdiv(rows, ROWS), triton.cdiv(programs(kept.device), triton.cdiv(columns, COLUMNS))))
    parts = _layout.new(kept, (count, columns), torch.float32) if learns_bias else None
    with on(kept):
        epilogue_backward[(triton.cdiv(columns, COLUMNS), count)](
            dy, kept, dz, parts, rows, columns, *strides(dy),
            ACTIVATION=activation, LEARNS_BIAS=learns_bias, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4, num_stages=1,
        )  # fmt: skip
    return dz, None if parts is None else parts.sum(0)


def backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str,
    conv1d: bool, keep: bool, kept: Tensor, needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x``, ``weight`` and ``bias``."""
    learns_bias = bias is not None and needs[2]
    if activation == "identity" or not kept.numel():
        dz = dy.to(x.dtype)
        dbias = dz.float().sum(list(range(dz.dim() - 1))) if learns_bias else None
    else:
        dz, dbias = epilogue_gradient(dy, kept, activation, learns_bias)
    dz, flat = dz.reshape(-1, dz.size(-1)), x.reshape(-1, x.size(-1))
    gradients: list[Tensor] = []
    if needs[0]:
        gradients.append(torch.mm(dz, weight.t() if conv1d else weight).view(x.shape))
    if needs[1]:
        gradients.append(torch.mm(flat.t(), dz) if conv1d else torch.mm(dz.t(), flat))
    if learns_bias:
        assert dbias is not None
        assert bias is not None
        gradients.append(dbias.to(bias.dtype))
    return gradients


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Every tile of the table on a square weight in both layouts, and the pass of backward."""
    pointer, size, aligned = f"*{dtype}", ELEMENT_BYTES[dtype], width % 16 == 0
    names = ("columns", "depth", "x_row", "w_row", "w_column", "residual_row", "dy_row")
    known = frozenset(names if aligned else ())
    for (tile, mode), conv1d in product(launches(dtype, aligned), (False, True)):
        label = f"forward, {tile.rows}x{tile.columns}x{tile.depth}, {'Conv1D' if conv1d else 'Linear'} weight"
        layout = {"w_row": 1, "w_column": "i32"} if conv1d else {}
        values = {**layout, "ACTIVATION": "gelu_tanh", "EVEN": width % tile.depth == 0}
        yield product_case(linear_forward, label, tile, dtype, mode, known, values)
    area = size * ROWS * COLUMNS
    yield KernelCase(
        epilogue_backward,
        "backward",
        {
            "dy": pointer, "kept": pointer, "dz": pointer, "dbias": "*fp32", "rows": "i32", "columns": "i32",
            "dy_row": "i32", "dy_column": 1, "ACTIVATION": "gelu_tanh", "LEARNS_BIAS": True,
            "ROWS": ROWS, "COLUMNS": COLUMNS,
        },
        4, loads=2 * area, stores=area + 4 * COLUMNS, aligned=known,
    )  # fmt: skip
