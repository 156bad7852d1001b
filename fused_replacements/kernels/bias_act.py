"""A bias and an activation in Triton. Suffix: ``_N`` the BLOCK columns of a program.

Backward programs are persistent: each walks down its columns over every ``num_programs(1)``-th row, and keeps their
part of the gradient of the bias in fp32 registers. The parts are summed in a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._activations import activate, activate_with_slope
from fused_replacements.kernels._elementwise import place, row_block, row_tiles, shape_refusal, warps_for
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on, programs

PROGRAMS_PER_PROCESSOR = 16
"""Each has one row of BLOCK elements in flight: about as many programs of 4 warps as fit."""


@triton.jit
def bias_act_forward(
    x, bias, y, width, x_stride, bias_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, start, lane_N, inside_N = place(width, BLOCK)
    x_N = tl.load(x + (row * x_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    bias_N = tl.load(bias + (start + lane_N) * bias_stride, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(y + (row * width + start) + lane_N, activate(x_N + bias_N, ACTIVATION), mask=inside_N)


@triton.jit
def bias_act_backward(
    dy, x, bias, dx, dbias, rows, width, dy_stride, x_stride, bias_stride,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``dx`` = dy·act'(x + bias), and in ``dbias`` (programs, width) its sum over the rows; None: not wanted."""
    column_N = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside_N = column_N < width
    bias_N = tl.load(bias + column_N * bias_stride, mask=inside_N, other=0.0).to(tl.float32)
    if dbias is not None:
        dbias_N = tl.zeros([BLOCK], tl.float32)
    for index in range(tl.program_id(1), rows, tl.num_programs(1)):
        row = tl.cast(index, tl.int64)
        dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        _, slope_N = activate_with_slope(x_N + bias_N, ACTIVATION)
        dx_N = dy_N * slope_N
        if dx is not None:
            tl.store(dx + row * width + column_N, dx_N, mask=inside_N)
        if dbias is not None:
            dbias_N += dx_N
    if dbias is not None:
        tl.store(dbias + tl.program_id(1).to(tl.int64) * width + column_N, dbias_N, mask=inside_N)


def refuses(x: Tensor, bias: Tensor, activation: str) -> str | None:
    """A bias that isn't one vector of the rows' width, or rows at no one stride."""
    if x.dim() == 0 or tuple(bias.shape) != (x.size(-1),):
        return f"the bias has shape {tuple(bias.shape)}, and x {tuple(x.shape)}"
    return _layout.row_refusal(x=x)


def refuses_backward(dy: Tensor | None, x: Tensor, bias: Tensor, activation: str, needs: Sequence[bool]) -> str | None:
    """As the forward, and the incoming gradient has strides of its own."""
    return refuses(x, bias, activation) or shape_refusal(x=x, gradient=dy)


def forward(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    """``y`` like ``x`` (…, N) for ``bias`` (N,), in one launch."""
    y = _layout.new(x, dtype=torch.promote_types(x.dtype, bias.dtype))
    if y.numel():
        t = row_tiles(x)
        with on(x):
            bias_act_forward[t.grid](
                x, bias, y, t.width, *t.strides, bias.stride(0),
                ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps,
            )  # fmt: skip
    return y


def backward(dy: Tensor, x: Tensor, bias: Tensor, activation: str, needs: Sequence[bool]) -> list[Tensor]:
    """The gradients that ``needs`` asks for, of ``x`` and ``bias``."""
    dx = _layout.new(x) if needs[0] else None
    parts = None
    if x.numel():
        t = row_tiles(dy, x)
        down = min(t.rows, -(-programs(x.device, PROGRAMS_PER_PROCESSOR) // t.blocks))
        parts = _layout.new(x, (down, t.width), torch.float32) if needs[1] else None
        with on(x):
            bias_act_backward[(t.blocks, down)](
                dy, x, bias, dx, parts, t.rows, t.width, *t.strides, bias.stride(0),
                ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps, num_stages=1,
            )  # fmt: skip
    found = [] if dx is None else [dx]
    if needs[1]:
        found.append(_layout.new(bias).zero_() if parts is None else parts.sum(0).to(bias.dtype))
    return found


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward with a learned bias. A contiguous bias has the stride 1, which Triton makes a constant."""
    block, pointer = row_block(width), f"*{dtype}"
    held, divisible = min(block, width), width % 16 == 0
    size = ELEMENT_BYTES[dtype] * held
    for activation in ("gelu", "gelu_tanh", "relu"):
        fixed = {"ACTIVATION": activation, "BLOCK": block}
        yield KernelCase(
            bias_act_forward, f"forward, {activation}",
            {
                "x": pointer, "bias": pointer, "y": pointer, "width": "i32", "x_stride": "i64", "bias_stride": 1,
                **fixed,
            },
            warps_for(block), loads=2 * size, stores=size,
            aligned=frozenset({"width", "x_stride"}) if divisible else frozenset(),
        )  # fmt: skip
        yield KernelCase(
            bias_act_backward, f"backward, {activation}",
            {
                "dy": pointer, "x": pointer, "bias": pointer, "dx": pointer, "dbias": "*fp32", "rows": "i32",
                "width": "i32", "dy_stride": "i64", "x_stride": "i64", "bias_stride": 1, **fixed,
            },
            warps_for(block), loads=3 * size, stores=size + 4 * held,
            aligned=frozenset({"width", "dy_stride", "x_stride"}) if divisible else frozenset(),
        )  # fmt: skip
