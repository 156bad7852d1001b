"""Time on a GPU by its own events, with a cold L2 cache; on a machine without one, by the wall clock.

A kernel that finds its input in L2 seems faster than any memory: before every call a buffer larger than the cache is
written, as often as the host needs to get ahead of the GPU. So what the events tell is the time of the kernels and
not that of the launches, as in a captured graph; what the host spends is taken apart from it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Final, Protocol

import torch

Run = Callable[[], Any]
FLUSH_BYTES: Final = 2**28
"""At least; twice the L2 cache where that is more. MI300X has 256 MiB behind its L2."""
MOST_FLUSHES: Final = 20
"""A call that keeps the host busy for longer (one that compiles) isn't waited for."""


@dataclass(frozen=True)
class Taken:
    """Microseconds of one call: the median and the middle half."""

    us: float
    low: float
    high: float

    @classmethod
    def of(cls, times: list[float]) -> Taken:
        low, middle, high = quantiles(times, n=4, method="inclusive") if len(times) > 1 else [times[0]] * 3
        return cls(middle, low, high)


class Clock(Protocol):
    def times(self, run: Run, count: int) -> list[float]:
        """Microseconds of ``count`` calls."""

    def host_us(self, run: Run) -> float:
        """Microseconds that the host spends on a call: the lowest of a few."""


class DeviceClock:
    """CUDA and ROCm events; the same interface of ``torch.xpu``."""

    def __init__(self, device: torch.device) -> None:
        self._runtime = getattr(torch, device.type)
        cache = int(getattr(self._runtime.get_device_properties(device), "L2_cache_size", 0))
        self._flush = torch.zeros(max(FLUSH_BYTES, 2 * cache) // 4, dtype=torch.int32, device=device)
        self._flush_us = 1.0
        self._flush_us = min(self.times(self._flush.zero_, 5))

    def host_us(self, run: Run) -> float:
        return min(self._host_us(run) for _ in range(5))

    def _host_us(self, run: Run) -> float:
        self._runtime.synchronize()
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6

    def times(self, run: Run, count: int) -> list[float]:
        ahead = min(MOST_FLUSHES, 1 + int(self._host_us(run) / self._flush_us))
        events = [[self._runtime.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            for _ in range(ahead):
                self._flush.zero_()
            start.record()
            run()
            end.record()
        self._runtime.synchronize()
        return [1e3 * float(start.elapsed_time(end)) for start, end in events]


class HostClock:
    """The wall clock: of the interpreter it says nothing but that it ran."""

    def times(self, run: Run, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            start = time.perf_counter()
            run()
            taken.append((time.perf_counter() - start) * 1e6)
        return taken

    def host_us(self, run: Run) -> float:
        return self.times(run, 1)[0]


def interleaved(runs: Mapping[str, Run], clock: Clock, rounds: int, round_us: float) -> dict[str, Taken]:
    """Every run in every round, in a new order each time, for about ``round_us``. They have run before."""
    calls = {name: max(1, min(20, int(round_us / max(1.0, min(clock.times(run, 2)))))) for name, run in runs.items()}
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(runs), len(runs)):
            times[name] += clock.times(runs[name], calls[name])
    return {name: Taken.of(taken) for name, taken in times.items()}


def copy_of(nbytes: int, device: torch.device) -> Run:
    """A copy that reads and writes ``nbytes`` in all: what this memory can do."""
    source, target = (torch.zeros(max(1, nbytes // 2), dtype=torch.uint8, device=device) for _ in range(2))
    return lambda: target.copy_(source)
