"""Versions of one computation timed against each other, and the memory that each needs.

::

    with kept_memory():
        timings = interleave({"eager": eager, "patched": patched, "compile": compiled}, baseline="eager")
    timings.ratio("patched").is_faster, timings.median_us, peak_bytes(patched)

Only what runs needs torch; importing this does not.
"""

from __future__ import annotations

from auditor.measuring.allocator import kept_memory
from auditor.measuring.clocks import Call, Clock, DeviceClock, Prepared, clock_of, wall_clock
from auditor.measuring.interleave import Timings, VersionFailedError, interleave
from auditor.measuring.memory import peak_bytes
from auditor.measuring.ratio import Ratio

__all__ = [
    "Call",
    "Clock",
    "DeviceClock",
    "Prepared",
    "Ratio",
    "Timings",
    "VersionFailedError",
    "clock_of",
    "interleave",
    "kept_memory",
    "peak_bytes",
    "wall_clock",
]
