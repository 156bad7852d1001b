"""What was read from one kernel, compiled for one target: plain data that crosses from a worker process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fused_replacements.gates.accesses import Access, accesses
from fused_replacements.gates.compile import aot
from fused_replacements.gates.ir import parse
from fused_replacements.gates.machine import Machine, read_amdgcn, read_ptx
from fused_replacements.gates.offsets import narrow_offsets
from fused_replacements.gates.targets import Target
from fused_replacements.gates.usage import Usage, read_amd_metadata, read_cubin

if TYPE_CHECKING:
    from fused_replacements.kernels._launch import KernelCase


@dataclass(frozen=True)
class Expected:
    """What a ``KernelCase`` demands."""

    label: str
    warps: int
    loads: int | None
    stores: int | None
    tensor_cores: bool
    narrow: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Facts:
    expected: Expected
    error: str | None = None
    """What the compiler said; then nothing else is known."""
    accesses: list[Access] = field(default_factory=list)
    machine: Machine = field(default_factory=Machine)
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    narrow_offsets: list[str] = field(default_factory=list)


def gather(case: KernelCase, target: Target) -> Facts:
    """Compile ``case`` for ``target`` and read the result. A compiler's failure is a fact, not an exception."""
    warps = case.warps_of(target.warp_size)
    expected = Expected(case.label, warps, case.loads, case.stores, case.tensor_cores, case.narrow)
    key = (case.kernel, tuple(case.arguments.items()), warps, case.stages, case.aligned, case.vectors, target)
    if key not in _seen:
        try:
            _seen[key] = _read(case, target, expected)
        except Exception as error:  # the compiler raises many kinds, its own and Python's
            _seen[key] = Facts(expected, in_a_line(error))
    return replace(_seen[key], expected=expected)


_seen: dict[Any, Facts] = {}
"""Of this process: many kernels are the same at several widths."""


def _read(case: KernelCase, target: Target, expected: Expected) -> Facts:
    compiled = aot(case, target)
    shared = int(compiled.metadata.shared)
    if target.backend == "cuda":
        machine, usage = read_ptx(compiled.asm["ptx"]), read_cubin(compiled.asm["cubin"], shared)
    else:
        assembly = compiled.asm["amdgcn"]
        machine, usage = read_amdgcn(assembly), read_amd_metadata(assembly, shared)
    return Facts(
        expected,
        accesses=accesses(parse(compiled.asm["ttgir"])),
        machine=machine,
        usage=usage,
        narrow_offsets=narrow_offsets(parse(compiled.asm["ttir"]), case.vectors),
    )


def in_a_line(error: Exception) -> str:
    """The kind of ``error`` and the last line of what it says, where compilers put the point."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
