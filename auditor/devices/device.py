"""What is known of one device. Bandwidths in GB/s (1e9 bytes per second), times in microseconds, sizes in bytes."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

KINDS = ("cuda", "hip", "xpu", "cpu")
DTYPES = ("f64", "f32", "tf32", "bf16", "f16", "f8", "i8", "f4")
"""The dtypes of :attr:`Device.tflops`."""

_ARCH = re.compile(r"sm_(?P<sm>\d+)(?P<minor>\d)[af]?|gfx(?P<gfx>\d+)(?P<gfx_minor>[0-9a-f])[0-9a-f]")


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """What kernels that move ``bytes`` in all reached on a calibrated machine."""

    bytes: int
    gbps: float
    """Reading and writing memory that exists."""
    fresh_ns_per_kb: float = 0.0
    """Extra time for each 1,024 bytes of a result that was just allocated: page faults, under the default malloc."""


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. ``None`` where a figure is not known: the model then falls back on the trace itself."""

    name: str
    kind: Literal["cuda", "hip", "xpu", "cpu"]
    match: tuple[str, ...] = ()
    """Names in a trace's ``deviceProperties``, case ignored; ``*``, ``?`` and ``[…]`` are wildcards."""
    arch: str | None = None
    """``sm_90``, ``gfx942``: a trace has its first numbers (9.0, 9.4)."""
    multiprocessors: int | None = None
    """SMs or CUs that the runtime shows. A trace with another number is of another device, or of a slice of it."""
    warp_size: int | None = None
    """Threads of a warp (wavefront)."""
    memory_bytes: int | None = None
    """Memory by the data sheet, whose GB are GiB; what the runtime shows is up to a tenth less."""
    unnamed: bool = False
    """No other device has these properties: a trace that has them and no name is of this one."""
    peak_gbps: float | None = None
    """Memory bandwidth of the data sheet; on a CPU the best that was measured."""
    achievable: float | None = None
    """Fraction of ``peak_gbps`` that a good streaming kernel reaches."""
    cache_bytes: int | None = None
    """Last-level cache, or what one process gets of it."""
    cache_gbps: float | None = None
    launch_us: float | None = None
    """Host time of one launch, the framework's own work left out; on a CPU the whole fixed cost of an op."""
    min_kernel_us: float | None = None
    """Duration of a kernel that does next to nothing."""
    tflops: dict[str, float] = {}
    """Dense peak rate of a matrix product by dtype, in TFLOP/s (TOP/s of integers): with tensor or matrix units where
    they keep the dtype's precision, accumulated in fp32 where the inputs are narrower."""
    sources: dict[str, str] = {}
    """Figure -> where it is from."""
    curve: tuple[Bandwidth, ...] = ()
    """Measured bandwidth by size, ascending (calibrated devices only)."""
    op_ns: dict[str, float] = {}
    """Op (``aten.gelu:tanh``) -> arithmetic of one element inside a fused kernel, in ns of the whole device.

    ``cheap`` is that of any other elementwise op, ``cast`` of rounding to 16 bits."""
    chained: float = 1.0
    """How many times their separate cost three dependent library calls (exp, log1p, tanh) take in one loop."""
    overlap: float | None = None
    """Share of the lesser of arithmetic and memory time that hides behind the greater: 1 is the perfect roofline."""

    @property
    def achievable_gbps(self) -> float | None:
        """Memory bandwidth that a good kernel reaches, ``None`` if unknown."""
        return None if self.peak_gbps is None else self.peak_gbps * (self.achievable or 1.0)


def compute_of(arch: str) -> tuple[int, int] | None:
    """The two numbers that a runtime reports of an architecture: ``sm_90`` → (9, 0), ``gfx90a`` → (9, 0).

    ``None`` for a name of another form. The last digit of a gfx name is a stepping, which no runtime reports.
    """
    found = _ARCH.fullmatch(arch)
    if found is None:
        return None
    if found["sm"]:
        return int(found["sm"]), int(found["minor"])
    return int(found["gfx"]), int(found["gfx_minor"], 16)
