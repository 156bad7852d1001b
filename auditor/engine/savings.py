"""What a fusion would save. Pure functions; times in microseconds, sizes in bytes, bandwidths in GB/s.

The time of a site after fusion has three parts::

    after = GEMMs + fixed cost of the kernels that remain + combine(memory(bytes that still move), arithmetic)

* ``memory`` is the device's time for those bytes, times how these very kernels did against it: the median over the
  site's plain streaming kernels. Never better than the achievable bandwidth of the device's description, or its
  cache's where the intermediates fit in it.
* ``arithmetic`` is what memory traffic does not hide. On a calibrated machine it is measured per op; elsewhere
  it is what a transcendental kernel or a reduction (its threads wait for each other) took beyond its bytes.
* GEMMs keep their time: a fusion only removes what is read again, intermediate traffic and launches.

Checked against measurements by ``benchmarks/savings.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

from auditor.devices.describe import Device
from auditor.engine.costs import KernelCost, SiteCost
from auditor.engine.cpu_code import shows_arithmetic, spilled
from auditor.engine.roofline import (
    HALF_PRECISION,
    SOFTMAX,
    Memory,
    arithmetic_shown,
    combine,
    is_row_op,
    is_streaming,
    is_transcendental,
    op_ns,
)
from auditor.engine.step_time import StepModel, amdahl_cap, step_model, step_saving

__all__ = [
    "After",
    "Estimate",
    "KernelCost",
    "SiteCost",
    "StepModel",
    "amdahl_cap",
    "estimate",
    "site_memory",
    "step_model",
    "step_saving",
    "time_after",
]

REDUCTION_FACTOR = 1.2
"""A fused reduction takes 10-25 % longer than its bytes say (measured for rms_norm and add + rms_norm)."""

STREAMING_SHARE = 0.1
"""Kernels that move less than this part of the site's largest kernel say nothing about bandwidth."""


@dataclass(frozen=True)
class Estimate:
    """Device time saved: 0 ≤ ``likely_us`` ≤ ``ideal_us`` ≤ the site's time now. ``formula`` is one readable line."""

    ideal_us: float
    likely_us: float
    formula: str


@dataclass(frozen=True)
class After:
    """The parts of a site's time after fusion; ``arithmetic_us`` is the part of ``body_us`` before any of it hides."""

    gemm_us: float
    fixed_us: float
    body_us: float
    arithmetic_us: float

    @property
    def us(self) -> float:
        return self.gemm_us + self.fixed_us + self.body_us


def estimate(site: SiteCost, device: Device) -> Estimate:
    """Ideal and likely device time saved by fusing ``site`` on ``device``. Zero where the kernels have no timing."""
    now, moved = site.now_us, sum(k.bytes for k in site.kernels)
    count = sum(k.launches for k in site.kernels)
    sizes = f"{count} kernels move {_mb(moved)}, {site.kernels_after} would move {_mb(site.bytes_fused)}"
    if now <= 0:
        return Estimate(0.0, 0.0, f"{sizes}; no timing, so no time saved is claimed")
    if site.launches_only:
        return _together(site, device, sizes)
    if site.family == "horizontal":
        return _siblings(site, device, sizes)
    memory = site_memory(site, device)
    after = time_after(site, memory)
    ideal = min(now, max(0.0, now - after.gemm_us - _ideal_us(site, memory)))
    likely = min(ideal, max(0.0, now - after.us))
    return Estimate(ideal, likely, f"{sizes}: {_spelled(now, after)}{_cache_note(memory)}")


def site_memory(site: SiteCost, device: Device) -> Memory:
    """The memory that the site's kernels saw: level 1 is the device's own figure, more is slower."""
    largest = max((k.bytes for k in site.kernels if not k.is_gemm), default=0)
    in_cache = device.cache_bytes is not None and largest <= device.cache_bytes
    memory = Memory(device, in_cache, scale=largest)
    level = _achieved_level(site, memory)
    return replace(memory, level=max(1.0, level) if memory.is_limit else level)


def _achieved_level(site: SiteCost, memory: Memory) -> float:
    """Median over the kernels that tell bandwidth; without any, the best that the site shows."""
    floor = max(1, int(STREAMING_SHARE * memory.scale))
    if ratios := [_ratio(k, memory) for k in site.kernels if is_streaming(k.op) and k.bytes >= floor]:
        return median(ratios)
    others = [_ratio(k, memory) for k in site.kernels if k.bytes and (not k.is_gemm or not memory.scale)]
    best = min(others, default=1.0)
    return min(1.0, best) if memory.device.curve else best


def _ratio(kernel: KernelCost, memory: Memory) -> float:
    """How many times longer than its bytes the kernel took. Each kernel of one op moves about what the op does."""
    one_us = _beyond_fixed(kernel, memory.device) / kernel.launches
    return one_us / memory.us(kernel.bytes_read, kernel.bytes_written)


def _beyond_fixed(kernel: KernelCost, device: Device) -> float:
    return max(0.0, kernel.dur_us - kernel.launches * (device.min_kernel_us or 0.0))


def time_after(site: SiteCost, memory: Memory) -> After:
    """Time of the fused kernels, part by part; not clipped, so it can exceed the time now."""
    device, gemms = memory.device, [k for k in site.kernels if k.is_gemm]
    read, written = _beside_gemms(site)
    spilled_read, spilled_written = spilled(site) if device.op_ns else (0, 0)
    memory_us = memory.us(read + spilled_read, written + spilled_written)
    if site.family == "reduction" and not device.op_ns:
        memory_us *= REDUCTION_FACTOR
    hideable, additive = arithmetic_us(site, memory)
    fixed = (device.min_kernel_us or 0.0) * max(0, site.kernels_after - sum(k.launches for k in gemms))
    body = combine(memory_us, hideable, device) + additive
    return After(sum(k.dur_us for k in gemms), fixed, body, hideable + additive)


def _beside_gemms(site: SiteCost) -> tuple[int, int]:
    """Fused bytes (read, written) that are not in a GEMM's own time already."""
    gemms = [k for k in site.kernels if k.is_gemm]
    read = site.bytes_read_fused - sum(k.bytes_read for k in gemms)
    written = site.bytes_written_fused - sum(k.bytes_written for k in gemms)
    return max(0, read), max(0, written)


def arithmetic_us(site: SiteCost, memory: Memory) -> tuple[float, float]:
    """(what memory traffic may hide, what nothing hides) of the arithmetic that fusion cannot remove."""
    device = memory.device
    if not device.op_ns:
        return 0.0, sum(_beyond_bytes(k, memory) for k in site.kernels if is_transcendental(k.op) or is_row_op(k.op))
    inline = sum(_inline_us(k, memory) for k in site.kernels) * _chain_factor(site, device)
    passes = sum(k.numel * op_ns(k.op, device)[1] for k in site.kernels) / 1e3
    if site.kernels and site.kernels[-1].dtype in HALF_PRECISION:  # rounding the results to 16 bits
        inline += site.bytes_written_fused / 2 * device.op_ns.get("cast", 0.0) / 1e3
    return inline, passes


def _chain_factor(site: SiteCost, device: Device) -> float:
    """Library calls that wait for each other leave the core idle: nothing for one call, all of it from three on."""
    calls = sum(is_transcendental(k.op) and op_ns(k.op, device)[0] > 0 for k in site.kernels)
    return 1.0 + (device.chained - 1.0) * min(max(calls - 1, 0), 2) / 2


def _inline_us(kernel: KernelCost, memory: Memory) -> float:
    """Calibrated arithmetic, or what the kernel showed if that is more: the machine may be slower than it was then."""
    calibrated = kernel.numel * op_ns(kernel.op, memory.device)[0] / 1e3
    if not calibrated or not is_transcendental(kernel.op) or kernel.plain in SOFTMAX or not shows_arithmetic(kernel):
        return calibrated
    bytes_us = memory.us(kernel.bytes_read, kernel.bytes_written)
    return max(calibrated, arithmetic_shown(_beyond_fixed(kernel, memory.device), bytes_us, memory.device))


def _beyond_bytes(kernel: KernelCost, memory: Memory) -> float:
    return max(0.0, _beyond_fixed(kernel, memory.device) - memory.us(kernel.bytes_read, kernel.bytes_written))


def _ideal_us(site: SiteCost, memory: Memory) -> float:
    """The fused bytes at peak bandwidth; at the bandwidth achieved where that is more, or the peak is not known."""
    read, written = _beside_gemms(site)
    achieved, at_peak = memory.us(read, written), memory.peak_us(read + written)
    return achieved if at_peak is None else min(achieved, at_peak)


def _siblings(site: SiteCost, device: Device, sizes: str) -> Estimate:
    """GEMMs on one input become one: their common input is read once, and launches go.

    Bytes only cost time where the GEMMs are bound by them: the share is their achieved bandwidth against
    the achievable one (1 in a decode step, next to 0 in a large prefill).
    """
    moved, now = sum(k.bytes for k in site.kernels), site.now_us
    fixed = (device.min_kernel_us or 0.0) * max(0, len(site.kernels) - site.kernels_after)
    again_us = now * max(0, moved - site.bytes_fused) / moved if moved else 0.0
    known = device.achievable_gbps is not None
    share = min(1.0, Memory(device, scale=moved).us(moved, 0) / now) if known else 1.0
    ideal = min(now, again_us + fixed)
    likely = min(ideal, share * again_us + fixed)
    return Estimate(ideal, likely, f"{sizes}: {share:.0%} bound by bytes, {_time(likely)} of {_time(now)} saved")


def _together(site: SiteCost, device: Device, sizes: str) -> Estimate:
    """The same bytes in fewer kernels: what goes is the time of kernels that do next to nothing."""
    least, now = device.min_kernel_us or 0.0, site.now_us
    count = max(1, len(site.kernels))
    share = max(0, count - site.kernels_after) / count
    saved = share * sum(min(kernel.dur_us, least) for kernel in site.kernels)
    if not least:
        return Estimate(0.0, 0.0, f"{sizes}: launches are saved; what a kernel takes at the least is not known here")
    told = f"{_time(saved)} of {_time(now)} saved, {_time(least)} a kernel, same bytes"
    return Estimate(saved, saved, f"{sizes}: {told}")


def _spelled(now: float, after: After) -> str:
    parts = [f"{_time(after.gemm_us)} GEMM"] if after.gemm_us else []
    parts += [f"{_time(after.body_us)} bytes and arithmetic"]
    if after.arithmetic_us > 0:
        parts[-1] += f" ({_time(after.arithmetic_us)} of arithmetic, in part hidden)"
    parts += [f"{_time(after.fixed_us)} fixed"] if after.fixed_us else []
    return f"{_time(now)} now, {_time(after.us)} after = {' + '.join(parts)}"


def _time(us: float) -> str:
    """As reports write a duration, beside which it is read: ``107 ms``, ``66.6 µs``."""
    rounded = float(f"{us:.3g}")
    scale, unit = next(((s, u) for s, u in ((1e6, "s"), (1e3, "ms")) if rounded >= s), (1.0, "µs"))
    value = rounded / scale
    return f"{value:,.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f} {unit}"


def _cache_note(memory: Memory) -> str:
    return f"; intermediates fit in the {_mb(memory.device.cache_bytes or 0)} cache" if memory.in_cache else ""


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
