"""RMS norm in Triton. One program holds one row; suffixes: ``_N`` a row of ``width`` elements, padded to BLOCK.

Backward programs are persistent: each walks over every ``programs``-th row, and keeps its part of the gradient of the
weight in fp32 registers. The parts are summed in a fixed order, so that the result is the same in every run. A row too
wide for that (its registers would spill, which costs more than a read) has its weight gradient summed by a second
kernel, which walks down tiles of columns and reads the row and its gradient once more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENT_BYTES, MAX_ROW_BLOCK, KernelCase, on, programs, row_launch

NO_GATE, GATE_AFTER, GATE_FIRST = 0, 1, 2
WIDEST_SUMMED = 8192
"""The widest row whose weight gradient fits in registers beside the row: above it ptxas reports spills."""
WIDEST_GATED_BACKWARD = 2048
"""The widest row whose backward fits in registers together with that of a gate."""
COLUMNS, COLUMN_ROWS = 128, 32
"""Tile of the kernel that walks down columns: 16-byte loads, and enough rows in flight to hide their latency."""


@triton.jit
def rms_norm_forward(
    x, weight, gate, y, rows, width, x_stride, gate_stride, eps, offset,
    LLAMA: tl.constexpr, HAS_WEIGHT: tl.constexpr, GATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0)
    h_N = x_N.to(tl.float32)
    if GATE != 0:
        gate_N = tl.load(gate + row * gate_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        gate_N = gate_N * tl.sigmoid(gate_N)
    if GATE == 2:
        h_N = h_N * gate_N
    y_N = h_N * tl.rsqrt(tl.sum(h_N * h_N, 0) / width + eps)
    if LLAMA:
        y_N = y_N.to(x_N.dtype).to(tl.float32)
    if HAS_WEIGHT:
        y_N = y_N * (tl.load(weight + column_N, mask=inside_N, other=0.0).to(tl.float32) + offset)
    if GATE == 1:
        y_N = y_N * gate_N
    tl.store(y + row * width + column_N, y_N, mask=inside_N)


@triton.jit
def rms_norm_backward(
    dy, x, weight, gate, dx, dweight, dgate, inverse, rows, width, dy_stride, x_stride, gate_stride, eps, offset,
    HAS_WEIGHT: tl.constexpr, LEARNS_WEIGHT: tl.constexpr, KEEPS_INVERSE: tl.constexpr, GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """With g = dy·(offset + weight) and r = 1/rms: dx = r·(g − x·r²·mean(g·x)), dweight = Σ rows dy·x·r."""
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    if HAS_WEIGHT:
        weight_N = tl.load(weight + column_N, mask=inside_N, other=0.0)
    if LEARNS_WEIGHT:
        dweight_N = tl.zeros([BLOCK], tl.float32)
    for start in range(tl.program_id(0), rows, tl.num_programs(0)):
        row = tl.cast(start, tl.int64)
        x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        h_N = x_N
        if GATE != 0:
            gate_N = tl.load(gate + row * gate_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
            sigmoid_N = tl.sigmoid(gate_N)
            silu_N = gate_N * sigmoid_N
            slope_N = sigmoid_N * (1.0 + gate_N * (1.0 - sigmoid_N))
        if GATE == 2:
            h_N = h_N * silu_N
        dn_N = dy_N
        if GATE == 1:
            dn_N = dn_N * silu_N
        g_N = dn_N
        if HAS_WEIGHT:
            g_N = g_N * (weight_N.to(tl.float32) + offset)
        r = tl.rsqrt(tl.sum(h_N * h_N, 0) / width + eps)
        along = tl.sum(g_N * h_N, 0) / width
        if KEEPS_INVERSE:
            tl.store(inverse + row, r)
        dh_N = r * (g_N - h_N * (r * r * along))
        if LEARNS_WEIGHT:
            dweight_N += dn_N * h_N * r
        if GATE == 1:
            y_N = h_N * r
            if HAS_WEIGHT:
                y_N = y_N * (weight_N.to(tl.float32) + offset)
            tl.store(dgate + row * width + column_N, dy_N * y_N * slope_N, mask=inside_N)
        if GATE == 2:
            tl.store(dgate + row * width + column_N, dh_N * x_N * slope_N, mask=inside_N)
            dh_N = dh_N * silu_N
        tl.store(dx + row * width + column_N, dh_N, mask=inside_N)
    if LEARNS_WEIGHT:
        tl.store(dweight + tl.program_id(0).to(tl.int64) * width + column_N, dweight_N, mask=inside_N)


@triton.jit
def rms_norm_weight_gradient(
    dy, x, gate, inverse, dweight, rows, width, dy_stride, x_stride, gate_stride,
    GATE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """dweight = Σ rows dy·x·r for one tile of columns (C) and every ``num_programs(1)``-th tile of rows (M)."""
    column_C = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside_C = column_C < width
    sum_C = tl.zeros([COLUMNS], tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row_M = (start + tl.arange(0, ROWS)).to(tl.int64)
        inside_MC = (row_M < rows)[:, None] & inside_C[None, :]
        r_M = tl.load(inverse + row_M, mask=row_M < rows, other=0.0)
        x_MC = tl.load(x + row_M[:, None] * x_stride + column_C[None, :], mask=inside_MC, other=0.0).to(tl.float32)
        dy_MC = tl.load(dy + row_M[:, None] * dy_stride + column_C[None, :], mask=inside_MC, other=0.0).to(tl.float32)
        product_MC = x_MC * dy_MC
        if GATE != 0:  # on either side of the norm the gate multiplies this product once
            offset_MC = row_M[:, None] * gate_stride + column_C[None, :]
            gate_MC = tl.load(gate + offset_MC, mask=inside_MC, other=0.0).to(tl.float32)
            product_MC = product_MC * gate_MC * tl.sigmoid(gate_MC)
        sum_C += tl.sum(product_MC * r_M[:, None], 0)
    tl.store(dweight + tl.program_id(1).to(tl.int64) * width + column_C, sum_C, mask=inside_C)


def _gate_code(gate: Tensor | None, gate_first: bool) -> int:
    return NO_GATE if gate is None else GATE_FIRST if gate_first else GATE_AFTER


def refuses(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, offset: float, cast: str, gate_first: bool
) -> str | None:
    """A stride that a row kernel can't read, or a row too wide for one program."""
    if x.size(-1) > MAX_ROW_BLOCK:
        return f"rows of {x.size(-1)} elements are wider than the {MAX_ROW_BLOCK} that one program holds"
    return _layout.row_refusal(x=x, weight=weight, gate=gate)


def refuses_backward(
    dy: Tensor | None, x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, offset: float, cast: str,
    gate_first: bool, needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and the incoming gradient has strides of its own."""
    if gate is not None and x.size(-1) > WIDEST_GATED_BACKWARD:
        return f"the backward of a gated row of {x.size(-1)} elements needs more registers than there are"
    return refuses(x, weight, gate, eps, offset, cast, gate_first) or _layout.row_refusal(gradient=dy)


def forward(
    x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, offset: float, cast: str, gate_first: bool
) -> Tensor:
    """``y`` for ``x`` of (…, N), in one launch."""
    llama = cast == "llama"
    dtype = torch.promote_types(x.dtype, weight.dtype) if llama and weight is not None else x.dtype
    y, width = _layout.new(x, dtype=dtype), x.size(-1)
    if not y.numel():
        return y
    config = row_launch(width, 2)
    with on(x):
        rms_norm_forward[(_layout.rows(x),)](
            x, weight, gate, y, _layout.rows(x), width, _layout.row_stride(x),
            0 if gate is None else _layout.row_stride(gate), eps, offset,
            LLAMA=llama, HAS_WEIGHT=weight is not None, GATE=_gate_code(gate, gate_first), BLOCK=config.block,
            num_warps=config.warps,
        )  # fmt: skip
    return y


def backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, gate: Tensor | None, eps: float, offset: float, cast: str,
    gate_first: bool, needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x``, ``weight`` and ``gate``."""
    rows, width, code = _layout.rows(x), x.size(-1), _gate_code(gate, gate_first)
    learns = weight is not None and needs[1]
    summed = learns and width <= WIDEST_SUMMED
    dx = _layout.new(x)
    dgate = None if gate is None else _layout.new(gate)
    inverse = _layout.new(x, (rows,), torch.float32) if learns and not summed else None
    count = max(1, min(rows, programs(x.device)))
    parts = _layout.new(x, (count, width), torch.float32) if learns else None
    strides = (_layout.row_stride(dy), _layout.row_stride(x), 0 if gate is None else _layout.row_stride(gate))
    if not x.numel():
        dweight = None if weight is None else torch.zeros_like(weight, memory_format=torch.contiguous_format)
        return _wanted((dx, dweight, dgate), needs)
    config = row_launch(width, 4)
    with on(x):
        rms_norm_backward[(count,)](
            dy, x, weight, gate, dx, parts if summed else None, dgate, inverse, rows, width, *strides, eps, offset,
            HAS_WEIGHT=weight is not None, LEARNS_WEIGHT=summed, KEEPS_INVERSE=inverse is not None, GATE=code,
            BLOCK=config.block, num_warps=config.warps, num_stages=1,
        )  # fmt: skip
        if inverse is not None:
            rms_norm_weight_gradient[(triton.cdiv(width, COLUMNS), count)](
                dy, x, gate, inverse, parts, rows, width, *strides,
                GATE=code, ROWS=COLUMN_ROWS, COLUMNS=COLUMNS, num_warps=4, num_stages=1,
            )  # fmt: skip
    dweight = None if parts is None or weight is None else parts.sum(0).to(weight.dtype)
    return _wanted((dx, dweight, dgate), needs)


def _wanted(gradients: Sequence[Tensor | None], needs: Sequence[bool]) -> list[Tensor]:
    return [grad for grad, need in zip(gradients, needs, strict=True) if need and grad is not None]


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward as a model without gate runs them, and the widest: gated."""
    size = ELEMENT_BYTES[dtype] * width
    for label, llama, gate in (("llama", True, NO_GATE), ("gemma", False, NO_GATE), ("gate first", True, GATE_FIRST)):
        gated, summed = gate != NO_GATE, width <= WIDEST_SUMMED
        pointer = f"*{dtype}"
        ahead, behind = row_launch(width, 2), row_launch(width, 4)
        strides = {"x_stride": "i64", "gate_stride": "i64"}
        scalars = {"eps": "fp32", "offset": "fp32"}
        yield KernelCase(
            rms_norm_forward,
            f"forward, {label}",
            {
                "x": pointer, "weight": pointer, "gate": pointer if gated else None, "y": pointer,
                "rows": "i32", "width": "i32", **strides, **scalars,
                "LLAMA": llama, "HAS_WEIGHT": True, "GATE": gate, "BLOCK": ahead.block,
            },
            ahead.warps, loads=size * (3 if gated else 2), stores=size,
            aligned=frozenset({"width", "x_stride", "gate_stride"}) if width % 16 == 0 else frozenset(),
        )  # fmt: skip
        if gated and width > WIDEST_GATED_BACKWARD:
            continue
        yield KernelCase(
            rms_norm_backward,
            f"backward, {label}",
            {
                "dy": pointer, "x": pointer, "weight": pointer, "gate": pointer if gated else None, "dx": pointer,
                "dweight": "*fp32" if summed else None, "dgate": pointer if gated else None,
                "inverse": None if summed else "*fp32",
                "rows": "i32", "width": "i32", "dy_stride": "i64", **strides, **scalars,
                "HAS_WEIGHT": True, "LEARNS_WEIGHT": summed, "KEEPS_INVERSE": not summed, "GATE": gate,
                "BLOCK": behind.block,
            },
            behind.warps,
            loads=size * (4 if gated else 3),
            stores=size * (2 if gated else 1) + (4 * width if summed else 4),
            aligned=frozenset({"width", "dy_stride", "x_stride", "gate_stride"}) if width % 16 == 0 else frozenset(),
        )  # fmt: skip
        if not summed:
            tile = ELEMENT_BYTES[dtype] * COLUMNS * COLUMN_ROWS
            yield KernelCase(
                rms_norm_weight_gradient,
                f"weight gradient, {label}",
                {
                    "dy": pointer, "x": pointer, "gate": pointer if gated else None, "inverse": "*fp32",
                    "dweight": "*fp32", "rows": "i32", "width": "i32", "dy_stride": "i64", **strides,
                    "GATE": gate, "ROWS": COLUMN_ROWS, "COLUMNS": COLUMNS,
                },
                4, loads=tile * (3 if gated else 2) + 4 * COLUMN_ROWS, stores=4 * COLUMNS,
                aligned=frozenset({"width", "dy_stride", *strides}) if width % 16 == 0 else frozenset(),
            )  # fmt: skip
