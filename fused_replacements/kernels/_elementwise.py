"""How elementwise kernels cut tensors into programs: BLOCK elements of one row each.

Where every tensor is contiguous there is one row, of all elements; otherwise rows have the width of the last dimension,
and each tensor its own stride from one to the next. Suffix: ``_N`` the BLOCK elements of a program.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENTWISE_BLOCK

PER_THREAD = 8
"""Elements: one 16-byte load in bf16, two in fp32."""


@triton.jit
def place(width, BLOCK: tl.constexpr):
    """Row of this program, its first column, its lanes, and which of them lie inside of the row.

    Row and column are 64-bit: an offset is taken with them before the lanes come in.
    """
    blocks = tl.cdiv(width, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    start = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK
    lane_N = tl.arange(0, BLOCK)
    return row, start, lane_N, lane_N < width - start


@dataclass(frozen=True)
class Tiles:
    """Programs that cover ``rows`` of ``width``, and the row stride of each tensor that they were made for."""

    rows: int
    width: int
    strides: tuple[int, ...]
    block: int

    @property
    def blocks(self) -> int:
        """Programs across a row."""
        return -(-self.width // self.block)

    @property
    def grid(self) -> tuple[int]:
        return (self.rows * self.blocks,)

    @property
    def warps(self) -> int:
        return warps_for(self.block)


def row_block(width: int) -> int:
    """Elements of a program that stays within a row of ``width``: a constant of the model, not of the batch."""
    return min(ELEMENTWISE_BLOCK, max(16, int(triton.next_power_of_2(width))))


def warps_for(block: int) -> int:
    return max(1, block // (32 * PER_THREAD))


def tiles(*tensors: Tensor) -> Tiles:
    """One row of everything where all of ``tensors``, of one shape, are contiguous, else row by row."""
    first = tensors[0]
    if all(tensor.is_contiguous() for tensor in tensors):
        count = first.numel()
        return Tiles(1, count, (count,) * len(tensors), ELEMENTWISE_BLOCK)
    return row_tiles(*tensors)


def row_tiles(*tensors: Tensor) -> Tiles:
    """Row by row, of the last dimension's width. Every tensor must have a row stride (``_layout.row_refusal``)."""
    width = tensors[0].size(-1)
    strides = tuple(stride for stride in map(_layout.row_stride, tensors) if stride is not None)
    assert len(strides) == len(tensors)
    return Tiles(_layout.rows(tensors[0]), width, strides, row_block(width))


def shape_refusal(**tensors: Tensor | None) -> str | None:
    """Why tensors can't be read side by side: shapes that broadcast, a scalar, or rows without one stride."""
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    first, *others = present
    for name in others:
        if present[name].shape != present[first].shape:
            return f"{name} has shape {tuple(present[name].shape)}, and {first} {tuple(present[first].shape)}"
    if all(tensor.is_contiguous() for tensor in present.values()):
        return None
    return _layout.row_refusal(**present)
