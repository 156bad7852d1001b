"""Device time of bytes and of arithmetic, from a device's description. Microseconds; bandwidths in GB/s."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from auditor.devices.describe import Device
from auditor.graph.ops import TRANSCENDENTAL, kind_of

SOFTMAX = frozenset({"aten._softmax", "aten._log_softmax", "aten._safe_softmax"})

HALF_PRECISION = frozenset({"bf16", "f16"})


def memory_us(read: int, written: int, device: Device, *, in_cache: bool = False) -> float:
    """Time to move these bytes on ``device``; grows with either. 1 GB/s where the bandwidth is not known.

    ``in_cache``: the intermediates of the site fit in the last-level cache.
    """
    if device.curve:
        moved = _along(read + written, [(p.bytes, p.bytes / p.gbps / 1e3) for p in device.curve])
        faults = _along(written, [(p.bytes // 3, p.bytes / 3 * p.fresh_ns_per_kb / 1024e3) for p in device.curve])
        return moved + faults
    return (read + written) / (reference_gbps(device, in_cache=in_cache) * 1e3)


def reference_gbps(device: Device, *, in_cache: bool) -> float:
    """The bandwidth that a good kernel reaches there; 1 where it is not known (only ratios are used then)."""
    if in_cache and device.cache_gbps:
        return device.cache_gbps
    return device.achievable_gbps or 1.0


def is_bound(device: Device, *, in_cache: bool) -> bool:
    """Whether no kernel can beat :func:`reference_gbps`: a known cache or memory limit, and no drifting clock."""
    if device.curve or device.achievable_gbps is None:
        return False
    return not in_cache or device.cache_gbps is not None


def peak_us(moved: int, device: Device, *, in_cache: bool = False) -> float | None:
    """Time at the device's peak bandwidth, ``None`` where it is not known."""
    if device.curve:
        best = [(p.bytes, p.bytes / p.gbps / 1e3) for p in device.curve]
        return min(_along(moved, best), moved / (device.peak_gbps or 1e9) / 1e3)
    if in_cache:
        return moved / device.cache_gbps / 1e3 if device.cache_gbps else None
    return moved / device.peak_gbps / 1e3 if device.peak_gbps else None


def _along(size: int, points: Sequence[tuple[int, float]]) -> float:
    """Linear between the measured points, never falling; in proportion before the first and after the last."""
    rising: list[tuple[int, float]] = [(0, 0.0)]
    for at, us in points:
        rising.append((at, max(us, rising[-1][1])))
    for (x0, y0), (x1, y1) in pairwise(rising):
        if size <= x1:
            return y0 + (y1 - y0) * (size - x0) / max(x1 - x0, 1)
    last_size, last_us = rising[-1]
    return last_us * size / max(last_size, 1)


def combine(memory: float, hideable: float, additive: float, device: Device) -> float:
    """Memory traffic and arithmetic of one kernel: ``overlap`` of the lesser hides behind the greater."""
    overlap = 1.0 if device.overlap is None else device.overlap
    return max(memory, hideable) + (1.0 - overlap) * min(memory, hideable) + additive


def is_transcendental(op: str) -> bool:
    """``aten.exp``, ``aten._softmax``: arithmetic that can outweigh the bytes."""
    return op.partition(":")[0].rpartition(".")[2].lstrip("_") in TRANSCENDENTAL


def is_streaming(op: str) -> bool:
    """One pass, cheap arithmetic: such a kernel shows what bandwidth the device gave."""
    return kind_of(op.partition(":")[0]) in ("pointwise", "copy") and not is_transcendental(op)


def op_ns(op: str, device: Device) -> tuple[float, float]:
    """Calibrated arithmetic of one element: (what may hide behind memory traffic, passes over a row that don't)."""
    plain, one_pass = op.partition(":")[0], device.op_ns.get("aten.sum", 0.0)
    if plain in SOFTMAX:
        return device.op_ns.get("aten.exp", 0.0) + device.op_ns.get("aten.div", 0.0), 2 * one_pass
    passes = {"reduction": one_pass, "norm": 2 * one_pass}.get(kind_of(plain), 0.0)
    return (0.0, passes) if passes else (device.op_ns.get(op, device.op_ns.get(plain, 0.0)), 0.0)


def arithmetic_shown(beyond_fixed: float, memory: float, device: Device) -> float:
    """Arithmetic of a kernel that took ``beyond_fixed`` where its bytes take ``memory``: :func:`combine` undone."""
    visible = 0.0 if device.overlap is None else 1.0 - device.overlap
    outweighs = beyond_fixed - visible * memory
    if outweighs >= memory:
        return outweighs
    return min(memory, max(0.0, beyond_fixed - memory) / visible) if visible > 0.0 else 0.0
