"""What of a run's kernels is to be drawn between two times: each one, or what fills each pixel.

Nothing here walks over the kernels in view: their busy time up to any moment is a difference of two sums, found by
binary search, so that a whole run costs as much as a corner of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow
from numpy.typing import NDArray

from auditor.errors import AuditError
from dashboard.data.cache import CACHE
from dashboard.data.kernel_table import KernelTable, kernel_table
from dashboard.data.kinds import KINDS
from dashboard.data.stored import run_id, store_label

EXACT_LIMIT = 1200
"""Up to so many kernels in view are drawn each by itself: about one for each pixel of a wide window."""
MAX_LANES = 24
MAX_COLUMNS = 2000
MAX_CELLS = 12_000
"""Pixels of all lanes: more take longer to send and to draw than they tell."""
_TOLD_US = 0.005
"""What a kind has to take to be told: less reads 0.00 µs, and rounding leaves as much of long sums."""
LEAST_US = 0.1
"""The narrowest view: kernels are told apart to a nanosecond at best."""

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Lane:
    """One stream of one device."""

    device: int
    stream: int
    kernels: int
    busy_us: float

    @property
    def label(self) -> str:
        return f"device {self.device} · stream {self.stream}"


@dataclass(frozen=True)
class Bins:
    """What fills each of the equal parts of the view, by lane (rows) and part (columns)."""

    kind: NDArray[np.int8]
    """Code of the kind that takes most of the time, -1 where nothing runs."""
    busy: Floats
    """Share of the time in which a kernel runs, 0 to 1."""
    by_kind: Floats
    """Share of the time by lane, kind and part; together they can exceed 1 where kernels overlap."""
    kernels: NDArray[np.int64]
    """Kernels that start there."""


@dataclass(frozen=True)
class View:
    """Kernels between two times. Either ``rows`` (numbers of kernels, and their lanes) or ``bins`` is set."""

    t0_us: float
    t1_us: float
    end_us: float
    """Of the whole run."""
    lanes: tuple[Lane, ...]
    kernels: int
    kind_us: Floats
    """Busy time in view by kind, in the order of :data:`dashboard.data.kinds.KINDS`."""
    rows: Rows | None = None
    lane_of: Rows | None = None
    bins: Bins | None = None


@dataclass(frozen=True)
class _Busy:
    """The busy time of some kernels up to any moment, whether or not they overlap."""

    starts: Floats
    ends: Floats
    start_sums: Floats
    end_sums: Floats

    @classmethod
    def of(cls, start: Floats, end: Floats) -> _Busy:
        ends = np.sort(end, kind="stable")  # they are nearly in order
        return cls(start, ends, np.append(0.0, np.cumsum(start)), np.append(0.0, np.cumsum(ends)))

    def until(self, at: Floats) -> Floats:
        """Sum over the kernels of the time that each has run before ``at``."""
        began, ended = np.searchsorted(self.starts, at), np.searchsorted(self.ends, at)
        return np.asarray(began * at - self.start_sums[began] - (ended * at - self.end_sums[ended]))

    @property
    def nbytes(self) -> int:
        return int(2 * self.starts.nbytes + 2 * self.start_sums.nbytes)


@dataclass(frozen=True)
class _Rows:
    """The kernels of one lane, by start."""

    rows: Rows
    start: Floats
    latest_end: Floats
    """Of this kernel and those before it: never falls, so that it can be searched."""
    kinds: tuple[tuple[int, _Busy], ...]

    def between(self, t0: float, t1: float) -> slice:
        """The kernels that run between two times, and maybe some before that have ended."""
        return slice(int(np.searchsorted(self.latest_end, t0, "right")), int(np.searchsorted(self.start, t1)))

    @property
    def nbytes(self) -> int:
        return int(3 * self.rows.nbytes) + sum(busy.nbytes for _, busy in self.kinds)


class Timeline:
    """The kernels of one run, ready to be looked at by time."""

    def __init__(self, table: KernelTable) -> None:
        end = table.start_us + table.dur_us
        self.end_us = float(end.max(initial=0.0))
        self._end, self._dur = end, table.dur_us
        found = _by_lane(table)
        busiest = sorted(found, key=lambda lane: -lane[0].busy_us)[:MAX_LANES]
        shown = sorted(busiest, key=lambda lane: (lane[0].device, lane[0].stream))
        self.lanes = tuple(lane for lane, _ in shown)
        """The busiest :data:`MAX_LANES`, by device and stream."""
        self.left_out = len(found) - len(shown)
        """Lanes that are not shown."""
        self._lanes = [_lane(table, rows, end) for _, rows in shown]

    @property
    def nbytes(self) -> int:
        return int(self._end.nbytes) + sum(lane.nbytes for lane in self._lanes)

    def view(self, t0_us: float | None = None, t1_us: float | None = None, columns: int = 1200) -> View:
        """What is seen between two times (the whole run where they are None), in ``columns`` pixels.

        Times that are no numbers, outside of the run or the wrong way round are brought into it.
        """
        t0, t1 = self.within(t0_us, t1_us)
        kinds = self._kinds(t0, t1)
        rows, lane_of = self._exact(t0, t1)
        if rows is not None:
            return View(t0, t1, self.end_us, self.lanes, len(rows), kinds, rows, lane_of)
        cells = MAX_CELLS // max(len(self.lanes), 1)
        bins = self._bins(t0, t1, min(max(columns, 1), MAX_COLUMNS, cells))
        return View(t0, t1, self.end_us, self.lanes, self._count(t0, t1), kinds, bins=bins)

    def longest(self, view: View, count: int = 20) -> Rows:
        """The kernels in view that take most time, by number, the longest first."""
        rows = np.concatenate([lane.rows[lane.between(view.t0_us, view.t1_us)] for lane in self._lanes])
        if view.rows is not None:
            rows = view.rows
        dur = self._dur[rows]
        most = np.argpartition(-dur, count)[:count] if len(rows) > count else np.arange(len(rows))
        return rows[most[np.argsort(-dur[most], kind="stable")]]

    def beside(self, kernel: int) -> tuple[int | None, int | None]:
        """The kernels before and after ``kernel`` on its stream; None where there is none, or it is not shown."""
        for lane in self._lanes:
            at = int(np.searchsorted(lane.rows, kernel))  # a kernel's number grows with its start
            if at < len(lane.rows) and lane.rows[at] == kernel:
                before = int(lane.rows[at - 1]) if at else None
                return before, int(lane.rows[at + 1]) if at + 1 < len(lane.rows) else None
        return None, None

    def within(self, t0_us: float | None, t1_us: float | None) -> tuple[float, float]:
        """The two times inside of the run, at least :data:`LEAST_US` apart."""
        t0, t1 = (at if at is not None and math.isfinite(at) else None for at in (t0_us, t1_us))
        whole = max(self.end_us, LEAST_US)
        t0, t1 = sorted((0.0 if t0 is None else t0, whole if t1 is None else t1))
        t0 = min(max(t0, 0.0), whole - LEAST_US)
        return t0, max(min(t1, whole), t0 + LEAST_US)

    def _kinds(self, t0: float, t1: float) -> Floats:
        busy, edges = np.zeros(len(KINDS)), np.array([t0, t1])
        for lane in self._lanes:
            for kind, each in lane.kinds:
                busy[kind] += np.diff(each.until(edges))[0]
        return np.where(busy < _TOLD_US, 0.0, busy)

    def _count(self, t0: float, t1: float) -> int:
        spans = [lane.between(t0, t1) for lane in self._lanes]
        return sum(max(span.stop - span.start, 0) for span in spans)

    def _exact(self, t0: float, t1: float) -> tuple[Rows | None, Rows | None]:
        if self._count(t0, t1) > EXACT_LIMIT:
            return None, None
        parts = [lane.rows[lane.between(t0, t1)] for lane in self._lanes]
        rows = np.concatenate([*parts, np.zeros(0, np.int64)])
        lanes = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        seen = self._end[rows] > t0
        return rows[seen], lanes[seen]

    def _bins(self, t0: float, t1: float, columns: int) -> Bins:
        edges = np.linspace(t0, t1, columns + 1)
        busy = np.zeros((len(self._lanes), len(KINDS), columns))
        begun = np.zeros((len(self._lanes), columns), np.int64)
        for i, lane in enumerate(self._lanes):
            begun[i] = np.diff(np.searchsorted(lane.start, edges))
            for kind, each in lane.kinds:
                busy[i, kind] = np.diff(each.until(edges))
        total = busy.sum(axis=1)
        width = (t1 - t0) / columns
        idle = total <= width * 1e-6  # what rounding leaves of long sums
        most = np.where(idle, -1, busy.argmax(axis=1)).astype(np.int8)
        return Bins(most, np.where(idle, 0.0, np.minimum(total / width, 1.0)), np.maximum(busy / width, 0.0), begun)


def timeline(ref: str = "latest") -> Timeline:
    """The timeline of a run, made once. AuditError where none of its kernels has a time."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "timeline"), lambda: _timeline(kernel_table(run)))


def _timeline(table: KernelTable) -> Timeline:
    if not table.dur_us.any():
        raise AuditError(f"run {table.run} holds no kernel with a time; a timeline needs a profile or a trace")
    return Timeline(table)


def _by_lane(table: KernelTable) -> list[tuple[Lane, Rows]]:
    """Each device's streams with their kernels, by start."""
    device, devices = _codes(table.device)
    stream, streams = _codes(table.stream)
    lane_of = device * len(streams) + stream
    busy = np.bincount(lane_of, table.dur_us, minlength=len(devices) * len(streams))
    order = np.argsort(lane_of.astype(np.int16) if len(busy) < 2**15 else lane_of, kind="stable")
    bounds = np.searchsorted(lane_of[order], np.arange(len(busy) + 1))
    return [
        (Lane(devices[i // len(streams)], streams[i % len(streams)], b - a, float(busy[i])), order[a:b])
        for i, (a, b) in enumerate(pairwise(bounds.tolist()))
        if b > a
    ]


def _codes(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """A few different numbers as codes into them: hashed, which is faster than sorting a million."""
    encoded = pyarrow.array(numbers).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


def _lane(table: KernelTable, rows: Rows, end: Floats) -> _Rows:
    start, ends, kind = table.start_us[rows], end[rows], table.kind.codes[rows]
    kinds = [(int(code), kind == code) for code in np.flatnonzero(np.bincount(kind, minlength=len(KINDS)))]
    return _Rows(
        rows,
        start,
        np.maximum.accumulate(ends),
        tuple((code, _Busy.of(start[mine], ends[mine])) for code, mine in kinds),
    )
