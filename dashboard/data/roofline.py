"""Kernels against the ceilings of their device: arithmetic intensity and achieved rate, one point a name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """Kernels of one name and kind. ``flops`` and ``bytes`` are estimates from shapes, over all of them."""

    name: str
    kind: str
    op: str
    kernels: int
    dur_us: float
    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP a byte."""
        return self.flops / self.bytes

    @property
    def gflops(self) -> float:
        """Achieved, in GFLOP/s."""
        return self.flops / self.dur_us / 1e3


@dataclass(frozen=True)
class Roofline:
    points: tuple[Point, ...]
    """Most time first."""
    peak_gbps: float
    """0 where it is not known."""
    tflops: dict[str, float]
    """Peak arithmetic by dtype, of the dtypes that the run uses; empty where it is not known."""
    left_out: int
    """Kernels without a point: of no known op, of unknown shapes, or without a time."""
    remarks: tuple[str, ...] = ()


def roofline(ref: str = "latest") -> Roofline:
    """The roofline of a run. Loads kernels, ops and values: ask for it in a callback."""
    raise NotImplementedError
