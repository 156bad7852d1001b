"""What the savings model is told of a site: its kernels as they ran, and the bytes that would still move."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from auditor.graph.model import Op
from auditor.graph.ops import COMPUTE_BOUND, kind_of


@dataclass(frozen=True)
class KernelCost:
    """One kernel as it ran. ``op`` is a canonical op; a form that costs otherwise follows a colon (``aten.gelu:tanh``).

    ``numel`` counts the elements it iterates over: the largest of its inputs and outputs. ``launches``: kernels
    that took ``dur_us`` together, where an op is several; what goes from one to the next is in no trace.
    """

    op: str
    dur_us: float
    bytes_read: int
    bytes_written: int
    numel: int
    dtype: str
    launches: int = 1

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def is_gemm(self) -> bool:
        return _is_gemm(self.op)

    @property
    def plain(self) -> str:
        """The op without its form."""
        return _plain(self.op)


@cache
def _plain(op: str) -> str:
    return op.partition(":")[0]


@cache
def _is_gemm(op: str) -> bool:
    return kind_of(_plain(op)) in COMPUTE_BOUND


@dataclass(frozen=True)
class SiteCost:
    """A site before and after: its kernels, and the bytes that the ``kernels_after`` fused kernels move."""

    family: str
    kernels: tuple[KernelCost, ...]
    bytes_read_fused: int
    bytes_written_fused: int
    kernels_after: int = 1
    launches_only: bool = False
    """The kernels that remain move what these move."""

    @property
    def now_us(self) -> float:
        return sum(k.dur_us for k in self.kernels)

    @property
    def bytes_fused(self) -> int:
        return self.bytes_read_fused + self.bytes_written_fused


IN_PASSES = ("batch_norm", "group_norm", "groupnorm")
"""A part of the names of norms whose statistics are not those of a row: a pass for them, another to apply them."""
KEEPS_GEMM = ("epilogue", "prologue")
"""Families whose fused kernel is the GEMM, or convolution, that was there before."""


def remaining(ops: Iterable[Op], family: str) -> int:
    """Kernels that remain where ``ops`` are fused: one, and those of a native op that are not what is fused.

    A batch norm of three kernels stays three with the activation in the last one; so does a GEMM that is split.
    """
    kept = (op.launches - 1 for op in ops if _is_in_passes(op.name) or (family in KEEPS_GEMM and _is_gemm(op.name)))
    return 1 + sum(kept)


def _is_in_passes(op: str) -> bool:
    return any(part in op for part in IN_PASSES)
