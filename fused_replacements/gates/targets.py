"""The GPUs that kernels are compiled for, and the limits that decide how many programs fit on one processor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Target:
    """One GPU architecture. A processor is NVIDIA's SM or AMD's CU; a warp is AMD's wavefront."""

    name: str
    backend: Literal["cuda", "hip"]
    arch: int | str
    warp_size: int
    registers: int
    """Vector registers of 32 bits for each lane of a scheduler (a quarter of a processor)."""
    register_step: int
    """Registers of a lane are handed out in multiples of this."""
    warps: int
    """Warps that a scheduler holds at most."""
    programs: int
    """Programs (blocks, workgroups) that a processor holds at most."""
    shared_bytes: int
    """Shared memory (LDS) of a processor."""
    program_shared_bytes: int
    """Shared memory that one program may have."""
    reserved_bytes: int
    """Shared memory that the system takes for each program."""
    source: str
    schedulers: int = 4


_CUDA = "CUDA C++ Programming Guide, Technical Specifications per Compute Capability"

TARGETS: Final[tuple[Target, ...]] = (
    # 65,536 registers a processor are 16,384 for each of 4 schedulers, 512 for each of 32 lanes.
    Target("sm_80", "cuda", 80, 32, 512, 8, 16, 32, 164 * 1024, 163 * 1024, 1024, f"{_CUDA}, 8.0"),
    Target("sm_90", "cuda", 90, 32, 512, 8, 16, 32, 228 * 1024, 227 * 1024, 1024, f"{_CUDA}, 9.0"),
    Target("sm_100", "cuda", 100, 32, 512, 8, 16, 32, 228 * 1024, 227 * 1024, 1024, f"{_CUDA}, 10.0"),
    # 512 unified vector registers (256 architectural, 256 accumulation) and 8 wavefronts for each of 4 SIMDs.
    Target(
        "gfx942", "hip", "gfx942", 64, 512, 8, 8, 32, 64 * 1024, 64 * 1024, 0,
        "AMD Instinct MI300 (CDNA3) Instruction Set Architecture; LLVM, User Guide for AMDGPU Backend",
    ),
)  # fmt: skip


def named(name: str) -> Target:
    """The target called ``name`` (``sm_90``, ``90``, ``gfx942``). ``ValueError`` for any other."""
    for target in TARGETS:
        if name in (target.name, str(target.arch)):
            return target
    raise ValueError(f"no target {name!r}; there are {', '.join(target.name for target in TARGETS)}")
