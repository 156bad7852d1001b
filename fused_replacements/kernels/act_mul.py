"""An activation of one tensor times another, in Triton: both from tensors of their own, or the halves of one.

``gate_start`` and ``up_start`` say where a row of each begins: 0, or half a row further where they share a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._activations import activate, activate_with_slope
from fused_replacements.kernels._elementwise import place, row_block, row_tiles, shape_refusal, tiles, warps_for
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on


@triton.jit
def act_mul_forward(
    gate, up, y, width, gate_stride, up_stride, gate_start, up_start,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, start, lane_N, inside_N = place(width, BLOCK)
    gate_N = tl.load(gate + (row * gate_stride + gate_start + start) + lane_N, mask=inside_N, other=0.0)
    up_N = tl.load(up + (row * up_stride + up_start + start) + lane_N, mask=inside_N, other=0.0)
    y_N = activate(gate_N.to(tl.float32), ACTIVATION) * up_N.to(tl.float32)
    tl.store(y + (row * width + start) + lane_N, y_N, mask=inside_N)


@triton.jit
def act_mul_backward(
    dy, gate, up, dgate, dup, width, dy_stride, gate_stride, up_stride, gradient_stride, gate_start, up_start,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``dgate`` = dy·up·act'(gate) and ``dup`` = dy·act(gate), each only if it is not None."""
    row, start, lane_N, inside_N = place(width, BLOCK)
    gate_offset, up_offset = row * gate_stride + gate_start + start, row * up_stride + up_start + start
    dy_N = tl.load(dy + (row * dy_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    gate_N = tl.load(gate + gate_offset + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    value_N, slope_N = activate_with_slope(gate_N, ACTIVATION)
    if dgate is not None:
        up_N = tl.load(up + up_offset + lane_N, mask=inside_N, other=0.0).to(tl.float32)
        tl.store(dgate + (row * gradient_stride + gate_start + start) + lane_N, dy_N * up_N * slope_N, mask=inside_N)
    if dup is not None:
        tl.store(dup + (row * gradient_stride + up_start + start) + lane_N, dy_N * value_N, mask=inside_N)


def refuses(gate: Tensor, up: Tensor, activation: str) -> str | None:
    """Shapes that broadcast, or strides that no row stride says."""
    return shape_refusal(gate=gate, up=up)


def refuses_backward(dy: Tensor | None, gate: Tensor, up: Tensor, activation: str, needs: Sequence[bool]) -> str | None:
    """As the forward, and the incoming gradient has strides of its own."""
    return shape_refusal(gate=gate, up=up, gradient=dy)


def forward(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """``y`` like ``gate`` and ``up``, in one launch."""
    y = _layout.new(gate, dtype=torch.promote_types(gate.dtype, up.dtype))
    if y.numel():
        t = tiles(gate, up)
        with on(gate):
            act_mul_forward[t.grid](
                gate, up, y, t.width, *t.strides, 0, 0, ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps
            )
    return y


def backward(dy: Tensor, gate: Tensor, up: Tensor, activation: str, needs: Sequence[bool]) -> list[Tensor]:
    """The gradients that ``needs`` asks for, of ``gate`` and ``up``."""
    dgate = _layout.new(gate) if needs[0] else None
    dup = _layout.new(up) if needs[1] else None
    if dy.numel():
        t = tiles(dy, gate, up)
        with on(gate):
            act_mul_backward[t.grid](
                dy, gate, up, dgate, dup, t.width, *t.strides, t.width, 0, 0,
                ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps,
            )  # fmt: skip
    return [gradient for gradient in (dgate, dup) if gradient is not None]


def refuses_packed(packed: Tensor, activation: str, gate_first: bool) -> str | None:
    """Strides that no row stride says."""
    return _layout.row_refusal(packed=packed)


def refuses_packed_backward(
    dy: Tensor | None, packed: Tensor, activation: str, gate_first: bool, needs: Sequence[bool]
) -> str | None:
    """As the forward, and the incoming gradient has strides of its own."""
    return _layout.row_refusal(packed=packed, gradient=dy)


def _starts(packed: Tensor, gate_first: bool) -> tuple[int, int]:
    half = packed.size(-1) // 2
    return (0, half) if gate_first else (half, 0)


def forward_packed(packed: Tensor, activation: str, gate_first: bool) -> Tensor:
    """``y`` of (…, N) from ``packed`` of (…, 2·N), in one launch and without a copy of either half."""
    y = _layout.new(packed, (*packed.shape[:-1], packed.size(-1) // 2))
    if y.numel():
        t = row_tiles(y)
        stride = _layout.row_stride(packed)
        with on(packed):
            act_mul_forward[t.grid](
                packed, packed, y, t.width, stride, stride, *_starts(packed, gate_first),
                ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps,
            )  # fmt: skip
    return y


def backward_packed(
    dy: Tensor, packed: Tensor, activation: str, gate_first: bool, needs: Sequence[bool]
) -> list[Tensor]:
    """The gradient of ``packed``: both halves, written where they belong."""
    dpacked = _layout.new(packed)
    if dy.numel():
        t = row_tiles(dy)
        stride = _layout.row_stride(packed)
        with on(packed):
            act_mul_backward[t.grid](
                dy, packed, packed, dpacked, dpacked, t.width, *t.strides, stride, stride, packed.size(-1),
                *_starts(packed, gate_first), ACTIVATION=activation, BLOCK=t.block, num_warps=t.warps,
            )  # fmt: skip
    return [dpacked]


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Forward and backward, of two tensors and of one packed, with the cheapest and the dearest activation."""
    block, pointer = row_block(width), f"*{dtype}"
    size = ELEMENT_BYTES[dtype] * min(block, width)
    starts = {"gate_start": "i32", "up_start": "i32"}
    for activation in ("silu", "gelu", "gelu_tanh"):
        strides = {"gate_stride": "i64", "up_stride": "i64"}
        fixed = {"ACTIVATION": activation, "BLOCK": block}
        yield KernelCase(
            act_mul_forward, f"forward, {activation}",
            {"gate": pointer, "up": pointer, "y": pointer, "width": "i32", **strides, **starts, **fixed},
            warps_for(block), loads=2 * size, stores=size,
            aligned=frozenset({"width", *strides, *starts}) if width % 16 == 0 else frozenset(),
        )  # fmt: skip
        strides = {"dy_stride": "i64", **strides, "gradient_stride": "i64"}
        yield KernelCase(
            act_mul_backward, f"backward, {activation}",
            {
                "dy": pointer, "gate": pointer, "up": pointer, "dgate": pointer, "dup": pointer, "width": "i32",
                **strides, **starts, **fixed,
            },
            warps_for(block), loads=3 * size, stores=2 * size,
            aligned=frozenset({"width", *strides, *starts}) if width % 16 == 0 else frozenset(),
        )  # fmt: skip
