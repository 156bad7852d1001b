"""What the matrix products share: tiles by size, the order of tiles, the strides of matrices, the precision of fp32.

Suffixes: ``_M`` rows of a tile of the result, ``_N`` its columns, ``_K`` what is summed over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW_ROWS, SOME_ROWS = 16, 64
"""Up to here a tile holds all rows: of a generating model (matrix instructions take 16 or more), of a small batch."""
SMALL_RESULT = 128 * 128 * 108
"""Elements of a result that 128 × 128 tiles would spread over fewer processors than an A100 has."""


@dataclass(frozen=True)
class GemmLaunch:
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
    """Row tiles that are walked before the next column tile, so that their operands stay in the L2 cache."""

    def grid(self, rows: int, columns: int) -> tuple[int]:
        """One program for each tile of a result of ``rows`` × ``columns``."""
        return (triton.cdiv(rows, self.rows) * triton.cdiv(columns, self.columns),)

    @property
    def constants(self) -> dict[str, int]:
        """The tile, for a kernel's constexprs."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "DEPTH": self.depth, "GROUP": self.group}

    @property
    def options(self) -> dict[str, int]:
        """What the compiler is told beside the constexprs."""
        if torch.version.hip:
            return {"num_warps": self.waves, "num_stages": self.amd_stages}
        return {"num_warps": self.warps, "num_stages": self.stages}

    @property
    def waves(self) -> int:
        """Warps of 64 threads: one for each scheduler of a processor."""
        return min(4, self.warps)

    @property
    def amd_stages(self) -> int:
        """Stages of the software pipeline where shared memory (64 KiB) holds the operands of two."""
        return min(2, self.stages)


FEW = GemmLaunch(16, 64, 128, warps=4, stages=4)
SOME = GemmLaunch(64, 64, 64, warps=4, stages=4)
SMALL = GemmLaunch(64, 128, 64, warps=4, stages=3)
LARGE = GemmLaunch(128, 64, 64, warps=8, stages=3)
"""Not 128 columns: beside a kept pre-activation and a residual the sum would spill on sm_90 (48 bytes a thread)."""
FP32 = {
    FEW: GemmLaunch(16, 64, 32, warps=4, stages=4),
    SOME: GemmLaunch(64, 64, 32, warps=4, stages=3),
    SMALL: GemmLaunch(64, 64, 32, warps=4, stages=3),
    LARGE: GemmLaunch(128, 64, 32, warps=8, stages=3),
}
"""The same for elements of 4 bytes: a stage of operands takes as much shared memory at half the depth."""
UNALIGNED = GemmLaunch(64, 64, 32, warps=8, stages=3)
"""More than a few rows that start anywhere: each element has an address of its own, 2 registers. 4 warps, or twice the
tile, would spill; and there is no pipeline to feed, since no copy to shared memory takes less than 4 bytes."""
UNALIGNED_FEW_FP32 = GemmLaunch(16, 64, 32, warps=8, stages=4)
LAUNCHES = (FEW, SOME, SMALL, LARGE)


def gemm_launch(rows: int, columns: int, dtype: torch.dtype, aligned: bool) -> GemmLaunch:
    """The tile for a result of ``rows`` × ``columns``: one of four, so that no sequence length compiles its own."""
    if rows <= FEW_ROWS:
        launch = FEW
    elif rows <= SOME_ROWS:
        launch = SOME
    else:
        launch = SMALL if rows * columns < SMALL_RESULT else LARGE
    return in_dtype(launch, dtype, aligned)


def in_dtype(launch: GemmLaunch, dtype: torch.dtype, aligned: bool) -> GemmLaunch:
    """What becomes of a choice for aligned elements of 2 bytes where they have 4, or lie anywhere."""
    if not aligned and launch is not FEW:
        return UNALIGNED
    if dtype is not torch.float32:
        return launch
    return FP32[launch] if aligned else UNALIGNED_FEW_FP32


def is_aligned(columns: int, *pairs: tuple[int, int]) -> bool:
    """Whether Triton knows the rows of a result, and of matrices of strides (row, column), to start at 16 elements.

    Then one address serves several neighbours. Either stride may be the one that is 1.
    """
    return columns % 16 == 0 and all(1 in pair and {step % 16 for step in pair} == {0, 1} for pair in pairs)


def precision(dtype: torch.dtype) -> str:
    """How products of fp32 are taken: as ``torch.backends.cuda.matmul`` says for PyTorch's own."""
    return "tf32" if dtype is torch.float32 and torch._C._get_cublas_allow_tf32() else "ieee"


def matrix_strides(x: Tensor) -> tuple[int, int] | None:
    """Elements from row to row and from column to column of ``x`` read as (rows, width), or None where none say it."""
    if x.dim() == 0:
        return None
    row = expected = None
    for size, step in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if row is None:
            row = expected = step
        if step != expected:
            return None
        expected = step * size
    return (x.size(-1) if row is None else row, x.stride(-1) if x.size(-1) > 1 else 1)


def matrix_refusal(**tensors: Tensor | None) -> str | None:
    """Why a kernel can't read one of ``tensors`` as a matrix without a copy, or None."""
    for name, tensor in tensors.items():
        if tensor is not None and matrix_strides(tensor) is None:
            return (
                f"the rows of {name} do not lie at one stride (shape {tuple(tensor.shape)}, strides {tensor.stride()})"
            )
    return None


def strides(x: Tensor | None) -> tuple[int, int]:
    """``matrix_strides`` of a tensor that was not refused; zeros where there is none."""
    found = (0, 0) if x is None else matrix_strides(x)
    assert found is not None, "refuses() answers for strides before a launch"
    return found


@triton.jit
def tile_place(rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """First row and first column of this program's tile, in 64 bits.

    ``GROUP`` row tiles are walked before the next column tile, so that what they share stays in the L2 cache.
    """
    place = tl.program_id(0)
    column_tiles = tl.cdiv(columns, COLUMNS)
    row_tiles = tl.cdiv(rows, ROWS)
    in_group = GROUP * column_tiles
    first = place // in_group * GROUP
    height = tl.minimum(row_tiles - first, GROUP)
    tile_m, tile_n = first + place % in_group % height, place % in_group // height
    return tile_m.to(tl.int64) * ROWS, tile_n.to(tl.int64) * COLUMNS
