"""Dropout and add in Triton: what is dropped follows from the seed, and is drawn again in backward.

``keep`` is the one definition of it here; ``elementwise/dropout_add.py`` has the same in PyTorch, bit for bit.
Suffix: ``_N`` the BLOCK columns of a program, all of one row.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._elementwise import place, row_block, row_tiles, shape_refusal, warps_for
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on

MIX_FIRST = tl.constexpr(0x21F0AAAD)
MIX_SECOND = tl.constexpr(0x735A2D97)


@triton.jit
def mix(h_N):
    """A bijection of 32 bits in which each bit of ``h_N`` changes each bit of the result half of the time."""
    h_N = (h_N ^ (h_N >> 16)) * MIX_FIRST
    h_N = (h_N ^ (h_N >> 15)) * MIX_SECOND
    return h_N ^ (h_N >> 15)


@triton.jit
def keep(seed, row, column_N, threshold):
    """Which elements stay: those whose 32 random bits, less 2³¹, are no less than ``threshold``."""
    first, second, _, _ = tl.randint4x(tl.load(seed), row)
    bits_N = mix(mix(column_N.to(tl.uint32) ^ first.to(tl.uint32)) ^ second.to(tl.uint32))
    return (bits_N ^ 0x80000000).to(tl.int32, bitcast=True) >= threshold


@triton.jit
def dropout_kernel(
    x, residual, y, seed, width, x_stride, residual_stride, threshold, scale, BLOCK: tl.constexpr
):  # fmt: skip
    """``y`` = residual + x·scale where ``x`` stays. Without a residual it is the gradient of ``x`` from that of ``y``.

    A dropped element is multiplied by 0, not left out: NaN and infinity come through, as they do in ``F.dropout``.
    """
    row, start, lane_N, inside_N = place(width, BLOCK)
    x_N = tl.load(x + (row * x_stride + start) + lane_N, mask=inside_N, other=0.0).to(tl.float32)
    y_N = x_N * tl.where(keep(seed, row, start + lane_N, threshold), scale, 0.0)
    if residual is not None:
        residual_N = tl.load(residual + (row * residual_stride + start) + lane_N, mask=inside_N, other=0.0)
        y_N += residual_N.to(tl.float32)
    tl.store(y + (row * width + start) + lane_N, y_N, mask=inside_N)


def refuses(x: Tensor, residual: Tensor, seed: Tensor, p: float) -> str | None:
    """Shapes that broadcast, or rows at no one stride."""
    return shape_refusal(x=x, residual=residual)


def refuses_backward(dy: Tensor, seed: Tensor, p: float, dtype: torch.dtype) -> str | None:
    """An incoming gradient whose rows lie at no one stride."""
    return shape_refusal(gradient=dy)


def threshold_of(p: float) -> int:
    """What ``keep`` compares with, in [−2³¹, 2³¹): it drops a share ``p`` to within 2⁻³²."""
    return min(round(p * 2**32), 2**32 - 1) - 2**31


def forward(x: Tensor, residual: Tensor, seed: Tensor, p: float) -> Tensor:
    """``residual + dropout(x)`` of (…, N), in one launch."""
    return _launch(x, residual, seed, p, torch.promote_types(x.dtype, residual.dtype))


def backward(dy: Tensor, seed: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    """The gradient of ``x``, in its ``dtype``: that of the output, dropped at the same places."""
    return _launch(dy, None, seed, p, dtype)


def _launch(x: Tensor, residual: Tensor | None, seed: Tensor, p: float, dtype: torch.dtype) -> Tensor:
    y = _layout.new(x, dtype=dtype)
    if y.numel():
        t = row_tiles(x) if residual is None else row_tiles(x, residual)
        with on(x):
            dropout_kernel[t.grid](
                x, residual, y, seed, t.width, t.strides[0], t.strides[-1], threshold_of(p), 1.0 / (1.0 - p),
                BLOCK=t.block, num_warps=t.warps,
            )  # fmt: skip
    return y


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """With a residual, which is forward, and without, which is backward. The seed is 8 bytes more."""
    block, pointer = row_block(width), f"*{dtype}"
    size = ELEMENT_BYTES[dtype] * min(block, width)
    strides = {"x_stride": "i64", "residual_stride": "i64"}
    for label, residual in (("forward", pointer), ("backward", None)):
        yield KernelCase(
            dropout_kernel, label,
            {
                "x": pointer, "residual": residual, "y": pointer, "seed": "*i64", "width": "i32", **strides,
                "threshold": "i32", "scale": "fp32", "BLOCK": block,
            },
            warps_for(block), loads=size * (1 if residual is None else 2) + 8, stores=size,
            aligned=frozenset({"width", *strides}) if width % 16 == 0 else frozenset(),
        )  # fmt: skip
