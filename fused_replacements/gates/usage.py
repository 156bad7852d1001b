"""Registers, shared memory and spills of one compiled kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    registers: int
    """Vector registers of 32 bits for each thread (AMD: architectural and accumulation registers together)."""
    shared_bytes: int
    stack_bytes: int
    """Local memory (AMD: scratch) of each thread: it lies in device memory, and holds what did not fit in registers."""
    spilled_registers: int = 0
    """AMD's own count of spilled vector and scalar registers; NVIDIA's tools give bytes only."""


def read_cubin(cubin: bytes, shared_bytes: int) -> Usage:
    """What NVIDIA's ``cuobjdump``, from Triton's own package, says of ``cubin``.

    ``shared_bytes`` is what Triton asks for at launch, beyond what is fixed in the code. ``RuntimeError`` where the
    tool says something else than expected.
    """
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump -res-usage says nothing of registers: {text.strip()!r}")
    registers, stack, _, local = map(int, found.groups())
    return Usage(registers, shared_bytes, stack + local)


def read_amd_metadata(assembly: str, shared_bytes: int) -> Usage:
    """What the metadata at the end of GCN assembly says. ``RuntimeError`` where an entry is missing."""

    def entry(name: str) -> int:
        found = re.search(rf"^\s*\.{name}:\s+(\d+)", assembly, re.M)
        if found is None:
            raise RuntimeError(f"the metadata of the assembly has no .{name}")
        return int(found[1])

    return Usage(
        registers=entry("vgpr_count"),
        shared_bytes=shared_bytes + entry("group_segment_fixed_size"),
        stack_bytes=entry("private_segment_fixed_size"),
        # scalar registers spill into the lanes of vector registers, which costs no memory
        spilled_registers=entry("vgpr_spill_count"),
    )
