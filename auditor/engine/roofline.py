"""Device time of bytes and of arithmetic, from a device's description. Microseconds; bandwidths in GB/s."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from auditor.devices.describe import Device
from auditor.graph.ops import TRANSCENDENTAL, kind_of

SOFTMAX = frozenset({"aten._softmax", "aten._log_softmax", "aten._safe_softmax"})

HALF_PRECISION = frozenset({"bf16", "f16"})


@dataclass(frozen=True)
class Memory:
    """The memory of ``device`` as the kernels of one site see it.

    ``in_cache``: what one kernel leaves for the next is still in the last-level cache.
    ``scale``: bytes of the site's largest kernel; picks the bandwidth on a calibrated curve.
    ``level``: how many times longer than the device's figures say the site's own kernels took.
    """

    device: Device
    in_cache: bool = False
    scale: int = 0
    level: float = 1.0

    def us(self, read: int, written: int) -> float:
        """Time to move these bytes; grows with either."""
        if not self.device.curve:
            return self.level * (read + written) / (self.reference_gbps * 1e3)
        scale = max(self.scale, 1)
        per_byte = _along(scale, [(p.bytes, p.bytes / p.gbps / 1e3) for p in self.device.curve]) / scale
        per_fresh = _along(scale, [(p.bytes, p.bytes * p.fresh_ns_per_kb / 1024e3) for p in self.device.curve]) / scale
        return self.level * ((read + written) * per_byte + written * per_fresh)

    @property
    def reference_gbps(self) -> float:
        """What a good kernel reaches; 1 where nobody knows (``level`` then carries the trace's own figure)."""
        if self.in_cache and self.device.cache_gbps:
            return self.device.cache_gbps
        return self.device.achievable_gbps or 1.0

    @property
    def is_limit(self) -> bool:
        """Whether no kernel beats the reference: a known limit. A calibrated CPU's clock drifts both ways."""
        if self.device.curve or self.device.achievable_gbps is None:
            return False
        return not self.in_cache or self.device.cache_gbps is not None

    def peak_us(self, moved: int) -> float | None:
        """Time at the peak bandwidth: the cache's where it holds the intermediates; ``None`` where none is known."""
        peak = max(self.device.peak_gbps or 0.0, (self.device.cache_gbps or 0.0) if self.in_cache else 0.0)
        return moved / (peak * 1e3) if peak else None


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


def combine(memory: float, hideable: float, device: Device) -> float:
    """Memory traffic and arithmetic of one kernel: ``overlap`` of the lesser hides behind the greater."""
    return max(memory, hideable) + _visible(device) * min(memory, hideable)


def arithmetic_shown(beyond_fixed: float, memory: float, device: Device) -> float:
    """Arithmetic of a kernel that took ``beyond_fixed`` where its bytes take ``memory``: :func:`combine` undone."""
    visible = _visible(device)
    outweighs = beyond_fixed - visible * memory
    if outweighs >= memory:
        return outweighs
    return min(memory, max(0.0, beyond_fixed - memory) / visible) if visible > 0.0 else 0.0


def _visible(device: Device) -> float:
    return 0.0 if device.overlap is None else 1.0 - device.overlap


def is_transcendental(op: str) -> bool:
    """``aten.exp``, ``aten._softmax``: arithmetic that can outweigh the bytes."""
    return op.partition(":")[0].rpartition(".")[2].lstrip("_") in TRANSCENDENTAL


def is_row_op(op: str) -> bool:
    """A reduction or norm: its threads wait for each other, whatever it is fused with."""
    return kind_of(op.partition(":")[0]) in ("reduction", "norm")


def is_streaming(op: str) -> bool:
    """One pass, cheap arithmetic: such a kernel shows what bandwidth the device gave."""
    return kind_of(op.partition(":")[0]) in ("pointwise", "copy") and not is_transcendental(op)


def op_ns(op: str, device: Device) -> tuple[float, float]:
    """Calibrated arithmetic of one element: (what may hide behind memory traffic, passes over a row that don't)."""
    plain, one_pass = op.partition(":")[0], device.op_ns.get("aten.sum", 0.0)
    if plain in SOFTMAX:
        return device.op_ns.get("aten.exp", 0.0) + device.op_ns.get("aten.div", 0.0), 2 * one_pass
    kind = kind_of(plain)
    passes = {"reduction": one_pass, "norm": 2 * one_pass}.get(kind, 0.0)
    cheap = device.op_ns.get("cheap", 0.0) if kind == "pointwise" else 0.0
    return (0.0, passes) if passes else (device.op_ns.get(op, device.op_ns.get(plain, cheap)), 0.0)
