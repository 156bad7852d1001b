"""What a fusion would save. Pure functions; times in microseconds, sizes in bytes, bandwidths in GB/s.

The time of a site after fusion has three parts::

    after = GEMMs  +  fixed cost of the kernels that remain
          + combine(level × memory(bytes that still move), arithmetic)

* ``memory()`` is the device's time for those bytes: the achievable bandwidth of its description, the cache's
  where all intermediates fit in it, or the calibrated curve of this machine (which also knows page faults).
* ``level`` is how these very kernels did against that: the median over the site's plain streaming kernels.
* ``arithmetic`` is what memory traffic does not hide. On a calibrated machine it is measured per op; elsewhere
  it is what a transcendental kernel took beyond its bytes.
* GEMMs keep their time: a fusion only removes what is read again, intermediate traffic and launches.

Checked against measurements by ``benchmarks/savings.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from auditor.devices.describe import Device
from auditor.engine.costs import KernelCost, SiteCost
from auditor.engine.cpu_code import spilled
from auditor.engine.roofline import (
    HALF_PRECISION,
    SOFTMAX,
    arithmetic_shown,
    combine,
    is_bound,
    is_streaming,
    is_transcendental,
    memory_us,
    op_ns,
    peak_us,
)
from auditor.engine.step_time import StepModel, amdahl_cap, step_model, step_saving

__all__ = [
    "Estimate",
    "KernelCost",
    "SiteCost",
    "StepModel",
    "amdahl_cap",
    "estimate",
    "step_model",
    "step_saving",
]

REDUCTION_DISCOUNT = 1.2
"""A fused reduction takes 10-25 % longer than its bytes say (measured for rms_norm, add+rms_norm; DESIGN §8)."""

STREAMING_SHARE = 0.1
"""Kernels that move less than this part of the site's largest kernel say nothing about bandwidth."""


@dataclass(frozen=True)
class Estimate:
    """Device time saved: 0 ≤ ``likely_us`` ≤ ``ideal_us`` ≤ the site's time now."""

    ideal_us: float
    likely_us: float
    formula: str


@dataclass(frozen=True)
class After:
    """The parts of a site's time after fusion, in microseconds."""

    gemm_us: float
    fixed_us: float
    body_us: float
    arithmetic_us: float

    @property
    def us(self) -> float:
        return self.gemm_us + self.fixed_us + self.body_us


def estimate(site: SiteCost, device: Device) -> Estimate:
    """Ideal and likely device time saved by fusing ``site`` on ``device``. Zero where the kernels have no timing."""
    now = site.now_us
    moved = sum(k.bytes for k in site.kernels)
    sizes = f"{len(site.kernels)} kernels move {_mb(moved)}, {site.kernels_after} would move {_mb(site.bytes_fused)}"
    if now <= 0:
        return Estimate(0.0, 0.0, f"{sizes}; no timing, so no time saved is claimed")
    if site.family == "horizontal":
        return _siblings(site, device, sizes)
    in_cache = fits_in_cache(site, device)
    level = achieved_level(site, device, in_cache)
    after = time_after(site, device, level, in_cache)
    ideal = min(now, max(0.0, now - after.gemm_us - _ideal_us(site, device, level, in_cache)))
    likely = min(ideal, max(0.0, now - after.us))
    return Estimate(ideal, likely, f"{sizes}: {_spelled(now, after)}{_cache_note(device, in_cache)}")


def fits_in_cache(site: SiteCost, device: Device) -> bool:
    """Whether what one kernel leaves for the next is still in the last-level cache when it is read."""
    largest = max((k.bytes for k in site.kernels if not k.is_gemm), default=0)
    return device.cache_bytes is not None and largest <= device.cache_bytes


def achieved_level(site: SiteCost, device: Device, in_cache: bool) -> float:
    """How many times longer than :func:`memory_us` the site's streaming kernels took; at least 1 under a hard limit."""
    ratios = [_ratio(k, device, in_cache) for k in _telling(site.kernels)]
    if not ratios:
        rest = [k for k in site.kernels if not k.is_gemm and k.bytes] or [k for k in site.kernels if k.bytes]
        ratios = [min((_ratio(k, device, in_cache) for k in rest), default=1.0)]
        if device.curve:
            ratios = [min(1.0, ratios[0])]
    level = median(ratios)
    return max(1.0, level) if is_bound(device, in_cache=in_cache) else level


def _telling(kernels: tuple[KernelCost, ...]) -> list[KernelCost]:
    largest = max((k.bytes for k in kernels if not k.is_gemm), default=0)
    return [k for k in kernels if is_streaming(k.op) and k.bytes >= max(1, STREAMING_SHARE * largest)]


def _ratio(kernel: KernelCost, device: Device, in_cache: bool) -> float:
    beyond = max(0.0, kernel.dur_us - (device.min_kernel_us or 0.0))
    return beyond / memory_us(kernel.bytes_read, kernel.bytes_written, device, in_cache=in_cache)


def time_after(site: SiteCost, device: Device, level: float, in_cache: bool) -> After:
    """Time of the fused kernels, part by part."""
    gemms = [k for k in site.kernels if k.is_gemm]
    read, written = site.bytes_read_fused, site.bytes_written_fused
    if gemms:  # what a GEMM reads and writes is in its own time
        read = max(0, read - sum(k.bytes_read for k in gemms))
        written = max(0, written - sum(k.bytes_written for k in gemms))
    more_read, more_written = spilled(site) if device.op_ns else (0, 0)
    memory = level * memory_us(read + more_read, written + more_written, device, in_cache=in_cache)
    if site.family == "reduction" and not device.op_ns:
        memory *= REDUCTION_DISCOUNT
    hideable, additive = arithmetic_us(site, device, level, in_cache)
    body = combine(memory, hideable, additive, device)
    fixed = (device.min_kernel_us or 0.0) * max(0, site.kernels_after - len(gemms))
    return After(sum(k.dur_us for k in gemms), fixed, body, hideable + additive)


def arithmetic_us(site: SiteCost, device: Device, level: float, in_cache: bool) -> tuple[float, float]:
    """(what memory traffic may hide, what nothing hides) of the arithmetic that fusion cannot remove."""
    if not device.op_ns:
        return 0.0, sum(_beyond_bytes(k, device, level, in_cache) for k in site.kernels if is_transcendental(k.op))
    inline = sum(_inline_us(k, device, level, in_cache) for k in site.kernels)
    passes = sum(k.numel * op_ns(k.op, device)[1] for k in site.kernels) / 1e3
    if site.kernels and site.kernels[-1].dtype in HALF_PRECISION:
        inline += site.bytes_written_fused / 2 * device.op_ns.get("cast", 0.0) / 1e3
    return inline, passes


def _inline_us(kernel: KernelCost, device: Device, level: float, in_cache: bool) -> float:
    """Calibrated arithmetic, or what the kernel showed if that is more: the machine may be slower than it was then."""
    calibrated = kernel.numel * op_ns(kernel.op, device)[0] / 1e3
    if not calibrated or not is_transcendental(kernel.op) or kernel.plain in SOFTMAX:
        return calibrated
    beyond = max(0.0, kernel.dur_us - (device.min_kernel_us or 0.0))
    bytes_us = level * memory_us(kernel.bytes_read, kernel.bytes_written, device, in_cache=in_cache)
    return max(calibrated, arithmetic_shown(beyond, bytes_us, device))


def _beyond_bytes(kernel: KernelCost, device: Device, level: float, in_cache: bool) -> float:
    bytes_us = level * memory_us(kernel.bytes_read, kernel.bytes_written, device, in_cache=in_cache)
    return max(0.0, kernel.dur_us - (device.min_kernel_us or 0.0) - bytes_us)


def _ideal_us(site: SiteCost, device: Device, level: float, in_cache: bool) -> float:
    """``bytes_fused`` at peak bandwidth; at the bandwidth achieved where the peak is not known."""
    moved = site.bytes_fused
    if any(k.is_gemm for k in site.kernels):
        moved = max(0, moved - sum(k.bytes for k in site.kernels if k.is_gemm))
    at_peak = peak_us(moved, device, in_cache=in_cache)
    return level * memory_us(moved, 0, device, in_cache=in_cache) if at_peak is None else at_peak


def _siblings(site: SiteCost, device: Device, sizes: str) -> Estimate:
    """GEMMs on one input become one: their common input is read once, and launches go.

    Bytes only cost time where the GEMMs are bound by them: the share is their achieved bandwidth against
    the achievable one (1 in a decode step, next to 0 in a large prefill).
    """
    moved, now = sum(k.bytes for k in site.kernels), site.now_us
    fixed = (device.min_kernel_us or 0.0) * max(0, len(site.kernels) - site.kernels_after)
    removed = max(0, moved - site.bytes_fused)
    at_limit = memory_us(moved, 0, device) if device.achievable_gbps else now
    share = min(1.0, at_limit / now)
    again_us = now * removed / moved if moved else 0.0
    ideal = min(now, again_us + fixed)
    likely = min(ideal, share * again_us + fixed)
    return Estimate(ideal, likely, f"{sizes}: {share:.0%} bound by bytes, {likely:.1f} of {now:.1f} us saved")


def _spelled(now: float, after: After) -> str:
    parts = [f"{after.gemm_us:.1f} GEMM"] if after.gemm_us else []
    parts += [f"{after.body_us:.1f} bytes and arithmetic"]
    if after.arithmetic_us > 0:
        parts[-1] += f" ({after.arithmetic_us:.1f} of it arithmetic before overlap)"
    parts += [f"{after.fixed_us:.1f} fixed"] if after.fixed_us else []
    return f"{now:.1f} us now, {after.us:.1f} us after = {' + '.join(parts)}"


def _cache_note(device: Device, in_cache: bool) -> str:
    return f"; intermediates fit in the {_mb(device.cache_bytes or 0)} cache" if in_cache else ""


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
