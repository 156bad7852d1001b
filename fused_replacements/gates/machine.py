"""Machine-level code as text: the width of each access to device memory, fp64 arithmetic, matrix instructions.

NVIDIA's is PTX, AMD's is GCN assembly. Each instruction counts once, whatever its predicate says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

_PTX: Final = re.compile(r"^\s*(?:@!?%p\d+\s+)?(ld|st|atom|red)((?:\.[\w:]+)*\.global(?:\.[\w:]+)*)\s", re.M)
_PTX_ASYNC: Final = re.compile(
    r"^\s*(?:@!?%p\d+\s+)?cp\.async\.c[ag]\.shared\S*\s+\[[^\]]*\],\s*\[[^\]]*\],\s*(\w+)", re.M
)
_PTX_MATRIX: Final = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)", re.M)
_PTX_FP64: Final = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.]*\.f64[\w.]*)\s", re.M)
_AMD: Final = re.compile(r"^\s*(?:buffer|global|flat)_(load|store|atomic)_(\w+)", re.M)
_AMD_MATRIX: Final = re.compile(r"^\s*v_s?mfma", re.M)
_AMD_FP64: Final = re.compile(r"^\s*(v_\w*f64\w*)", re.M)
_AMD_BYTES: Final = {"byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4}


@dataclass(frozen=True)
class Machine:
    """What the code of one program does to device memory, by each thread."""

    loads: list[int] = field(default_factory=list)
    """Bytes of each load instruction, in order."""
    stores: list[int] = field(default_factory=list)
    atomics: int = 0
    fp64: list[str] = field(default_factory=list)
    """Names of the fp64 instructions."""
    matrix: int = 0
    """How many matrix instructions there are (mma, wgmma, tcgen05, mfma)."""


def read_ptx(text: str) -> Machine:
    """What PTX says. A load, store or copy to shared memory of up to 16 (sm_100: 32) bytes is one instruction."""
    loads, atomics = [int(size, 0) for size in _PTX_ASYNC.findall(text)], 0
    stores: list[int] = []
    for kind, modifiers in _PTX.findall(text):
        if kind in ("ld", "st"):
            (loads if kind == "ld" else stores).append(_ptx_bytes(modifiers))
        else:
            atomics += 1
    return Machine(loads, stores, atomics, _PTX_FP64.findall(text), len(_PTX_MATRIX.findall(text)))


def _ptx_bytes(modifiers: str) -> int:
    """Bytes of ``.global.L1::evict_last.v4.b32``: the vector's length times the type at the end."""
    *names, kind = modifiers.split(".")
    vector = next((int(name[1:]) for name in names if re.fullmatch(r"v\d", name)), 1)
    return vector * int(kind[1:]) // 8


def read_amdgcn(text: str) -> Machine:
    """What GCN assembly says. Scalar loads (``s_load``) are left out: they read the kernel's arguments."""
    loads: list[int] = []
    stores: list[int] = []
    atomics = 0
    for kind, size in _AMD.findall(text):
        if kind == "atomic":
            atomics += 1
        else:
            (loads if kind == "load" else stores).append(_amd_bytes(size))
    return Machine(loads, stores, atomics, _AMD_FP64.findall(text), len(_AMD_MATRIX.findall(text)))


def _amd_bytes(size: str) -> int:
    """Bytes of ``dwordx4``, ``short_d16_hi``, ``lds_dword``."""
    found = re.search(r"(dword|[us]?byte|[us]?short)(?:x(\d))?", size)
    if found is None:
        raise ValueError(f"a memory instruction of unknown width: {size}")
    return _AMD_BYTES[found[1]] * int(found[2] or 1)
