"""Microseconds of a call: by the wall clock on a CPU, by the device's own events on a GPU.

On a GPU a call that finds its inputs in the L2 cache seems faster than any memory, so a buffer of at least twice that
cache is written before every call. The time from a call's first kernel to its last contains the gaps in which the GPU
waits for the host: a version that launches fewer kernels gains by that, as it does in use.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
Clock = Callable[[Call, int], float]
"""Takes a call and how often to run it; returns microseconds of one call."""


@dataclass(frozen=True)
class Prepared:
    """A call on what is made anew for each, as the inputs of a step that writes to them. Making it isn't timed."""

    prepare: Callable[[], Any]
    run: Callable[[Any], object]

    def __call__(self) -> object:
        return self.run(self.prepare())

    def ready(self) -> Call:
        """What is left to do once that is made."""
        made = self.prepare()
        return lambda: self.run(made)


def ready(call: Call) -> Call:
    """``call`` with all done that isn't timed. The result is to be called once."""
    return call.ready() if isinstance(call, Prepared) else call


FLUSH_BYTES: Final = 2**28
"""At least; twice the L2 cache where that is more. Some devices don't tell theirs (XPU), or have one more behind it."""


def clock_of(device: torch.device | str) -> Clock:
    """The clock for calls that compute on ``device``.

    Raises:
        ValueError: the device has no events that tell the time.
    """
    import torch

    device = torch.device(device)
    return wall_clock if device.type == "cpu" else DeviceClock(device)


def wall_clock(call: Call, count: int) -> float:
    """Microseconds of one call: the lower quartile of ``count`` in a row.

    What disturbs some calls of so short a time (others' turns on the CPU) is not the code's.
    """
    taken = []
    for _ in range(count):
        run = ready(call)
        start = time.perf_counter_ns()
        run()
        taken.append(time.perf_counter_ns() - start)
    return sorted(taken)[count // 4] / 1e3


class DeviceClock:
    """Events of CUDA, ROCm or XPU around each call, after a cache flush."""

    def __init__(self, device: torch.device) -> None:
        import torch

        runtime: Any = getattr(torch, device.type, None)
        if not hasattr(runtime, "Event"):
            raise ValueError(f"{device.type}: no such device, or its runtime has no events to take times by.")
        cache = int(getattr(runtime.get_device_properties(device), "L2_cache_size", 0))
        self._runtime = runtime
        self._flush = torch.zeros(max(FLUSH_BYTES, 2 * cache) // 4, dtype=torch.int32, device=device)

    def __call__(self, call: Call, count: int) -> float:
        """Microseconds of one call: the mean of ``count`` of them, all enqueued before any is waited for."""
        events = [[self._runtime.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            run = ready(call)
            self._flush.zero_()
            start.record()
            run()
            end.record()
        self._runtime.synchronize()
        return 1e3 * sum(float(start.elapsed_time(end)) for start, end in events) / count


def first_us(call: Call, device: torch.device | str) -> float:
    """Wall microseconds of a first call until its last kernel ended: it compiles, tunes and fills caches."""
    run = ready(call)
    synchronize(device)
    start = time.perf_counter_ns()
    run()
    synchronize(device)
    return (time.perf_counter_ns() - start) / 1e3


def synchronize(device: torch.device | str) -> None:
    """Wait until ``device`` has nothing left to do."""
    import torch

    runtime = getattr(torch, torch.device(device).type, None)
    if runtime is not None and hasattr(runtime, "synchronize"):
        runtime.synchronize()
