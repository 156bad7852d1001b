"""Most memory that one call holds at once, beyond what was held before it.

On a CPU it is the profiler's record of PyTorch's own allocator: every allocation and release of one call, summed up in
order. It is the same in every run, where the resident size of the process tells of the C allocator's habits. It sees
the buffers of compiled code and of custom ops that ask PyTorch for memory; it doesn't see what a library takes by
itself (oneDNN's scratch space, a kernel's stack). Outputs count, and what is kept for backward; inputs do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from auditor.collect.stderr import quiet
from auditor.graph.garbage import collection_paused
from auditor.measuring.clocks import Call, ready, synchronize

if TYPE_CHECKING:
    import torch

MEASURED: Final = "measured call"
"""The range that a profile knows it by."""


def peak_bytes(call: Call, device: torch.device | str = "cpu") -> int:
    """Extra bytes at the peak of one run of ``call``, on ``device`` alone; its result is held until the end.

    It runs before, to compile and to fill caches, on a CPU once more to own what the next run replaces. On a GPU the
    runtime's record of its peak starts again.

    Raises:
        ValueError: the device's runtime keeps no record of its peak.
    """
    import torch

    device = torch.device(device)
    peak = _on_cpu if device.type == "cpu" else _on_gpu
    call()  # this one compiles
    with collection_paused():
        return max(0, peak(call, device))


def _on_cpu(call: Call, _: torch.device) -> int:
    """The profiler knows no block that is older than itself: what a call replaces has to come from a call before."""
    from torch.profiler import ProfilerActivity, profile, record_function

    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
        run = ready(call)
        with record_function(MEASURED):
            kept = run()
    del kept
    now = peak = 0
    for nbytes in _changes(recorded):
        now += nbytes
        peak = max(peak, now)
    return peak


def _changes(recorded: torch.profiler.profile) -> Iterator[int]:
    """Bytes of each allocation in the measured call, and of each release as a negative number, in order of time."""
    kineto: Any = recorded.profiler
    events = kineto.kineto_results.events()
    start_ns = next(event.start_ns() for event in events if event.name() == MEASURED)
    changes = [e for e in events if e.name() == "[memory]" and e.device_type().name == "CPU"]
    for change in sorted(changes, key=lambda change: change.start_ns()):
        if change.start_ns() >= start_ns:
            yield change.nbytes()


def _on_gpu(call: Call, device: torch.device) -> int:
    import torch

    runtime: Any = getattr(torch, device.type, None)
    if not hasattr(runtime, "max_memory_allocated"):
        raise ValueError(f"{device.type}: its runtime keeps no record of the most memory that was allocated.")
    run = ready(call)
    synchronize(device)
    before = runtime.memory_allocated(device)
    runtime.reset_peak_memory_stats(device)
    kept = run()
    synchronize(device)
    del kept
    return int(runtime.max_memory_allocated(device)) - int(before)
