"""How kernels are launched: block and warps by width, the device of the tensors, and what a gate compiles.

Launch choices are a table to read, not an autotune for each shape: a sweep for each of a model's shapes costs the
first hundred steps two thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import triton
from torch import Tensor

ELEMENTWISE_BLOCK: Final = 1024
"""Elements of one program of an elementwise kernel: 8 a thread at 4 warps, two 16-byte loads in bf16."""
MAX_ROW_BLOCK: Final = 65536
"""The widest row that one program holds: above it the row must be looped over."""


@dataclass(frozen=True)
class RowLaunch:
    block: int
    warps: int


def row_launch(width: int, arrays: int = 1) -> RowLaunch:
    """Block and warps of a kernel that holds ``arrays`` rows of ``width`` in registers.

    Between 8 and 16 elements of each array a thread, up to the 32 warps that a block can have: fewer threads spill,
    more leave loads under 16 bytes. ``arrays`` counts what is alive at once in fp32 (the row, its gradient, a sum).
    """
    block = max(16, triton.next_power_of_2(width))
    elements = 16 if arrays <= 2 else 8
    return RowLaunch(block, min(32, max(1, block // (32 * elements))))


def on(tensor: Tensor) -> AbstractContextManager[Any]:
    """The device of ``tensor`` as the current one: Triton launches on the current device, not on the tensor's."""
    if tensor.is_cuda and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return nullcontext()


def programs(device: torch.device, per_processor: int = 4) -> int:
    """Programs of a persistent kernel: enough to fill the device, so that partial sums stay few."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).multi_processor_count) * per_processor
    return 4


@dataclass(frozen=True)
class KernelCase:
    """One kernel at one width and dtype, for the gates that compile it ahead of time.

    ``loads`` and ``stores`` are the bytes of device memory that one program has to move: every input once, every
    output once. In a kernel with a loop they are those of one trip, plus what lies outside of it. None where a tile
    is read as often as the algorithm needs (a GEMM): then no figure is demanded, and what is seen is only listed.
    """

    kernel: Any
    """The ``triton.jit`` function."""
    label: str
    arguments: Mapping[str, str | int | float | bool | None]
    """Every parameter in order: a type (``*bf16``, ``i32``, ``i64``, ``fp32``) or the value of a constexpr."""
    warps: int
    loads: int | None
    stores: int | None
    stages: int = 1
    waves: int | None = None
    """Warps on AMD, where one has 64 threads: half as many hold the same tile. None: as many as ``warps``."""
    amd_stages: int | None = None
    """Stages of the pipeline on AMD, where shared memory is less than half. None: as many as ``stages``."""
    aligned: frozenset[str] = field(default_factory=frozenset)
    """Scalars that are known to be divisible by 16 (row strides). Pointers are always taken to be."""
    tensor_cores: bool = False
    """Whether the machine code must hold matrix instructions."""
    vectors: frozenset[str] = field(default_factory=frozenset)
    """Pointers to less than 2³¹ elements whatever the number of rows (a bias): 32-bit offsets are enough for them."""
    narrow: frozenset[str] = field(default_factory=frozenset)
    """Pointers whose elements a thread can't take 16 bytes at a time, because they lie apart (interleaved pairs)."""

    def warps_of(self, threads: int) -> int:
        """Warps where a warp has ``threads`` threads."""
        return self.waves if self.waves is not None and threads == 64 else self.warps

    def stages_of(self, threads: int) -> int:
        """Stages of the pipeline where a warp has ``threads`` threads."""
        return self.amd_stages if self.amd_stages is not None and threads == 64 else self.stages


ELEMENT_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "bf16": 2, "fp16": 2}
