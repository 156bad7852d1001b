"""How many programs fit on one processor at once, from what one program uses: an estimate, nothing is run."""

from __future__ import annotations

from dataclasses import dataclass

from fused_replacements.gates.targets import Target


@dataclass(frozen=True)
class Occupancy:
    programs: int
    """Programs on a processor at once; 0 where one does not fit."""
    fraction: float
    """Warps in flight of those that a processor can hold, 0 to 1."""
    limit: str
    """What runs out first: ``registers``, ``shared memory``, ``warps`` or ``programs``."""


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def estimate(target: Target, registers: int, shared_bytes: int, warps: int) -> Occupancy:
    """Occupancy of programs of ``warps`` warps with ``registers`` a thread and ``shared_bytes`` of shared memory.

    Warps of a program are spread over the schedulers of a processor, so that a program of 5 warps takes two places
    on one of them. Allocation steps and limits are those of ``targets``.
    """
    in_registers = min(target.warps, target.registers // _up(max(registers, 1), target.register_step))
    slots, places = in_registers * target.schedulers, target.warps * target.schedulers
    fits = {
        "warps": places // warps,
        "programs": target.programs,
        "registers": slots // warps,
        "shared memory": target.shared_bytes // max(1, shared_bytes + target.reserved_bytes),
    }
    if shared_bytes > target.program_shared_bytes:
        fits["shared memory"] = 0
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(fits[limit], fits[limit] * warps / places, limit)
