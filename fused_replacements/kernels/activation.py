"""An activation of one tensor in Triton, forward and backward: relu² and quick_gelu share these kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._activations import activate, activate_with_slope
from fused_replacements.kernels._elementwise import place, row_block, shape_refusal, tiles, warps_for
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on


@triton.jit
def activation_forward(x, y, width, x_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row, start, lane_N, inside_N = place(width, BLOCK)
    x_N = tl.load(x + (row * x_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(y + (row * width + start) + lane_N, activate(x_N, ACTIVATION), mask=inside_N)


@triton.jit
def activation_backward(dy, x, dx, width, dy_stride, x_stride, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row, start, lane_N, inside_N = place(width, BLOCK)
    dy_N = tl.load(dy + (row * dy_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    x_N = tl.load(x + (row * x_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    _, slope_N = activate_with_slope(x_N, ACTIVATION)
    tl.store(dx + (row * width + start) + lane_N, dy_N * slope_N, mask=inside_N)


def refuses(x: Tensor, activation: str) -> str | None:
    """Strides that no row stride says."""
    return shape_refusal(x=x)


def refuses_backward(dy: Tensor | None, x: Tensor, activation: str, needs: Sequence[bool]) -> str | None:
    """As the forward, and the incoming gradient has strides of its own."""
    return shape_refusal(x=x, gradient=dy)


def forward(x: Tensor, activation: str) -> Tensor:
    """``y`` like ``x``, in one launch."""
    y = _layout.new(x)
    if y.numel():
        t = tiles(x)
        with on(x):
            activation_forward[t.grid](
                x, y, t.width, *t.strides, ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps
            )
    return y


def backward(dy: Tensor, x: Tensor, activation: str, needs: Sequence[bool]) -> list[Tensor]:
    """The gradient of ``x``."""
    dx = _layout.new(x)
    if dx.numel():
        t = tiles(dy, x)
        with on(x):
            activation_backward[t.grid](
                dy, x, dx, t.width, *t.strides, ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps
            )
    return [dx]


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward of both activations."""
    block, pointer = row_block(width), f"*{dtype}"
    size, divisible = ELEMENT_BYTES[dtype] * min(block, width), width % 16 == 0
    for activation in ("relu_squared", "quick_gelu"):
        fixed = {"ACTIVATION": activation, "BLOCK": block}
        yield KernelCase(
            activation_forward, f"forward, {activation}",
            {"x": pointer, "y": pointer, "width": "i32", "x_stride": "i64", **fixed},
            warps_for(block), loads=size, stores=size,
            aligned=frozenset({"width", "x_stride"}) if divisible else frozenset(),
        )  # fmt: skip
        yield KernelCase(
            activation_backward, f"backward, {activation}",
            {
                "dy": pointer, "x": pointer, "dx": pointer, "width": "i32", "dy_stride": "i64", "x_stride": "i64",
                **fixed,
            },
            warps_for(block), loads=2 * size, stores=size,
            aligned=frozenset({"width", "dy_stride", "x_stride"}) if divisible else frozenset(),
        )  # fmt: skip
