"""The memory bandwidth that a trace shows by itself: what there is to say of a device that nobody described."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from auditor.engine.roofline import is_streaming
from auditor.graph.model import OpGraph
from auditor.graph.traffic import traffic_of

SMALL_BYTES = 10_000_000
"""Kernels that move less show their launch, or a cache, more than the memory."""
LARGE_SHARE = 0.25
"""Kernels that move less than this part of the largest are left out, for the same reason."""


@dataclass(frozen=True)
class Achieved:
    """The best median bandwidth over kernels of one op and size."""

    gbps: float
    op: str
    bytes: int
    kernels: int

    def __str__(self) -> str:
        many = "kernel" if self.kernels == 1 else "kernels"
        large = self.bytes >= SMALL_BYTES
        size = f"{self.bytes / 1e6:.0f} MB each" if large else f"{self.bytes / 1e6:.2g} MB each, too little to tell"
        return f"{self.gbps:,.0f} GB/s ({self.kernels} {many} of {self.op} that move {size})"


def achieved_bandwidth(graph: OpGraph) -> Achieved | None:
    """What the largest streaming kernels reached; ``None`` where no kernel has both a time and known shapes.

    Bytes are those that the op has to move, so a kernel that finds its inputs in a cache shows more than memory gives.
    """
    rates: dict[tuple[str, int], list[float]] = defaultdict(list)
    for op in graph.ops:
        if len(op.kernels) == 1 and is_streaming(op.name) and op.kernels[0].dur_us > 0:
            moved = traffic_of(op).total
            if moved > 0:
                rates[op.name, moved].append(moved / op.kernels[0].dur_us / 1e3)
    least = LARGE_SHARE * max((moved for _, moved in rates), default=0)
    found = [Achieved(median(gbps), op, moved, len(gbps)) for (op, moved), gbps in rates.items() if moved >= least]
    return max(found, key=lambda achieved: achieved.gbps, default=None)
