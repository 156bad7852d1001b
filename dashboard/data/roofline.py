"""Kernels against the ceilings of their device: arithmetic intensity and achieved rate, one point a name."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.devices.describe import find_device
from auditor.document import DeviceInfo
from auditor.errors import AuditError
from auditor.report.format import count, percent, plural
from dashboard.data.cache import CACHE
from dashboard.data.kernel_table import KernelTable, kernel_table
from dashboard.data.kinds import COMPUTE_BOUND, KINDS
from dashboard.data.op_work import OpWork, op_work
from dashboard.data.stored import head, run_id, store_label

MAX_POINTS = 400


@dataclass(frozen=True)
class Point:
    """Kernels of one name and kind. ``flops`` and ``bytes`` are estimates from shapes, over all of them."""

    name: str
    kind: str
    op: str
    """Of the last of them."""
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

    @property
    def gbps(self) -> float:
        """Achieved, in GB/s (1e9)."""
        return self.bytes / self.dur_us / 1e3


@dataclass(frozen=True)
class Roofline:
    points: tuple[Point, ...]
    """Most time first, at most :data:`MAX_POINTS`."""
    peak_gbps: float
    """0 where it is not known."""
    tflops: dict[str, float]
    """Peak arithmetic by dtype, of the dtypes that the run uses; empty where it is not known."""
    left_out: int
    """Kernels without a point: of no known op, of unknown shapes, without arithmetic or without a time."""
    remarks: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        return 1000 * (1 + len(self.points))


def roofline(ref: str = "latest") -> Roofline:
    """The roofline of a run. Loads kernels, ops and values: ask for it in a callback."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "roofline"), lambda: _roofline(run))


def _roofline(run: str) -> Roofline:
    try:
        work = op_work(run)
    except AuditError as error:
        return Roofline((), 0.0, {}, 0, (f"Shapes are not at hand: {error}",))
    return place(kernel_table(run), work, head(run).document.run.device)


def place(table: KernelTable, work: OpWork, device: DeviceInfo) -> Roofline:
    """The points of these kernels, and the ceilings of ``device``."""
    flops, moved = _shared(table, work.flops), _shared(table, work.bytes)
    good = (flops > 0) & (moved > 0) & (table.dur_us > 0)
    points = _points(table, good, flops, moved)
    gbps, tflops, remarks = _ceilings(device, _dtypes(table, work, good))
    left = int((~good).sum())
    if left:
        part = float(table.dur_us[~good].sum()) / (float(table.dur_us.sum()) or 1.0)
        remarks.append(
            f"{plural(left, 'kernel')} ({percent(part)} of the kernel time) have no place here: "
            "they do no arithmetic (copies, gathers), belong to no known op, or were not timed."
        )
    if len(points) > MAX_POINTS:
        remarks.append(f"The {count(MAX_POINTS)} names that take most time are drawn, of {count(len(points))}.")
    if points:
        remarks.append("Arithmetic and bytes are estimated from shapes; caches can serve bytes faster than memory.")
    return Roofline(tuple(points[:MAX_POINTS]), gbps, tflops, left, tuple(remarks))


def _shared(table: KernelTable, of_op: NDArray[np.float64]) -> NDArray[np.float64]:
    """An op's work shared among its kernels by their time; 0 for those of no op."""
    linked = table.op >= 0
    size = len(of_op)
    total = np.bincount(table.op[linked], table.dur_us[linked], minlength=size)
    rate = np.divide(of_op, total, out=np.zeros(size), where=total > 0)
    return np.where(linked, np.append(rate, 0.0)[table.op] * table.dur_us, 0.0)


def _points(
    table: KernelTable, good: NDArray[np.bool_], flops: NDArray[np.float64], moved: NDArray[np.float64]
) -> list[Point]:
    group = table.name.codes[good].astype(np.int64) * len(KINDS) + table.kind.codes[good]
    size = len(table.name.words) * len(KINDS)
    kernels = np.bincount(group, minlength=size)
    time, work, bytes_ = (np.bincount(group, each[good], size) for each in (table.dur_us, flops, moved))
    op = np.zeros(size, np.int64)
    op[group] = table.op_name.codes[good]
    present = np.flatnonzero(kernels)
    return [
        Point(
            table.name.words[i // len(KINDS)], KINDS[i % len(KINDS)], table.op_name.words[int(op[i])],
            int(kernels[i]), float(time[i]), float(work[i]), float(bytes_[i]),
        )
        for i in present[np.argsort(-time[present], kind="stable")].tolist()
    ]  # fmt: skip


def _dtypes(table: KernelTable, work: OpWork, good: NDArray[np.bool_]) -> list[str]:
    """The dtypes of the compute-bound kernels, those of most kernels first; of all kernels where none is."""
    bound = np.isin(table.kind.codes, [KINDS.index(kind) for kind in COMPUTE_BOUND]) & good
    chosen = bound if bound.any() else good
    return [dtype for dtype, _ in Counter(work.dtype.take(table.op[chosen])).most_common() if dtype]


def _ceilings(device: DeviceInfo, dtypes: list[str]) -> tuple[float, dict[str, float], list[str]]:
    # without a bandwidth the audit had no description, whatever has this name now
    known = find_device(device.described_as or device.name, device.kind) if device.peak_gbps else None
    gbps = (known.peak_gbps if known else None) or device.peak_gbps or 0.0
    rates = known.tflops if known else {}
    # every 8-bit float (f8e4m3, f8e5m2) has the rate of f8
    found = {dtype: rates.get("f8" if dtype.startswith("f8") else dtype) for dtype in dtypes}
    tflops = {dtype: rate for dtype, rate in found.items() if rate is not None}
    if "f32" in tflops and "tf32" in rates:
        tflops["tf32"] = rates["tf32"]
    remarks = []
    if not gbps:
        remarks.append("The device's memory bandwidth is not known: its ceiling can't be drawn.")
    if not tflops and dtypes:
        remarks.append("The device's arithmetic rate is not known: its ceiling can't be drawn.")
    return gbps, tflops, remarks
