"""From device time to step time: what a saving is worth where the device waits for the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from statistics import median

from auditor.devices.describe import Device
from auditor.graph.model import Kernel, OpGraph

SMALLEST_REST = 0.01
"""An Amdahl cap never claims that less than this part of a step remains."""

TOLERANCE = 0.05
"""Part of a step by which its ops may exceed it before their times are doubted: medians of noisy steps."""

PROFILER_US = 2.0
"""What the profiler may add to the time of an op."""

ROUNDING_US = 1e-6
"""What is left of sums of times that are equal: no idle time, and an amount that no store takes."""


@dataclass(frozen=True)
class StepModel:
    """One recorded window. ``serial``: a CPU run, where device time is wall time and ops never wait for a device.

    ``stretch``: how many times the step its ops took, where that is more than once: a busy machine under the profiler.
    """

    step_us: float
    busy_us: float
    kernels: int
    launch_us: float
    serial: bool
    stretch: float = 1.0

    @property
    def device_share(self) -> float:
        """Share of the step in which the device is the bottleneck."""
        return min(1.0, self.busy_us / self.step_us) if self.step_us > 0 else 1.0


def idle_within(step_us: float, busy_us: float) -> float:
    """Microseconds of a step in which its device had nothing to do."""
    idle_us = step_us - busy_us
    return idle_us if idle_us > ROUNDING_US else 0.0


def step_model(graph: OpGraph, device: Device) -> StepModel:
    """How busy the device was, and what one launch costs there. The window is what the graph covers."""
    spans = _spans(graph)
    serial = graph.device_kind == "cpu"
    window = max((s.start_us + s.dur_us for s in spans), default=0.0) - min((s.start_us for s in spans), default=0.0)
    step = graph.step_us * max(1, graph.coverage.steps) if graph.step_us > 0 else window
    if serial:
        # Ops run one after the other. Their starts are medians over steps, so intervals may seem to overlap, and
        # under the profiler they may add up to more than the bare step: then nothing of it was idle.
        took = sum(s.dur_us for s in spans)
        busy = min(took, step) if step > 0 else 0.0
        stretch = max(1.0, took / step) if step > 0 and isfinite(took / step) else 1.0
    else:
        busy = union_us(spans)
        step, stretch = max(step, busy), 1.0
    launch = _host_gap_us(spans, max(0.0, step - busy)) if serial else _launch_us(spans, device)
    return StepModel(step, busy, graph.kernels, launch, serial, stretch)


def doubt(graph: OpGraph) -> str:
    """Why the times of a CPU run say little, a sentence: one op at a time can't take longer than the step; or ``""``.

    By thread, as ops of several may well run side by side, and beyond what the profiler itself adds to an op.
    """
    step = graph.step_us * max(1, graph.coverage.steps)
    if graph.device_kind != "cpu" or step <= 0:
        return ""
    threads: dict[int, float] = {}
    for op in graph.ops:
        threads[op.thread] = threads.get(op.thread, 0.0) + op.dur_us - PROFILER_US * op.launches
    longest = max(threads.values(), default=0.0)
    if longest <= step * (1.0 + TOLERANCE):
        return ""
    return (
        "The kernels of a step add up to more than the step took: times of this recording are not to be trusted; "
        "record again on a quiet machine."
    )


def step_saving(likely_us: float, launches_removed: int, step: StepModel) -> float:
    """Wall time of the step that a saving of device time is worth, at most the step itself.

    On a CPU everything is in series: the device time and the host's own time for the ops that go; where ops took
    longer than the step, it is their share of all ops that counts. On a GPU the
    device time counts for the share of the step in which the device is the bottleneck, removed launches for the rest
    and never for more than the device's idle time.
    """
    if step.step_us <= 0:
        return max(0.0, likely_us)
    launches = max(0, launches_removed) * step.launch_us
    idle = max(0.0, step.step_us - step.busy_us)
    if step.serial:
        return min(step.step_us, max(0.0, likely_us) / step.stretch + min(launches, idle))
    device = max(0.0, likely_us) * step.device_share
    return min(step.step_us, device + min(idle, launches * (1.0 - step.device_share)))


def without_waiting(fused_us: float, likely_us: float, waited_us: float, step: StepModel) -> float:
    """Wall time that fusions (``fused_us``, of ``likely_us`` device time) and graphs of launches save together.

    The launches that fusions remove are launches that a graph replays: both save the same idle time, so it counts once.
    """
    if not waited_us:
        return fused_us
    device = max(0.0, likely_us) * step.device_share
    idle = max(0.0, step.step_us - step.busy_us)
    return min(step.step_us, max(fused_us, device + min(idle, waited_us)))


def amdahl_cap(step_us: float, in_findings_us: float) -> float:
    """Upper bound of the speed-up if the kernels in findings took no time at all: step / (step - time in them).

    ``in_findings_us`` is wall time: where the device waits for launches, pass
    ``step_saving(device_us, launches, step)`` of everything in the findings, not their device time alone.
    """
    if step_us <= 0:
        return 1.0
    rest = max(step_us - max(0.0, in_findings_us), SMALLEST_REST * step_us)
    return step_us / rest


def _spans(graph: OpGraph) -> list[Kernel]:
    every = [k for op in graph.ops for k in op.kernels] + graph.unlinked
    return sorted((k for k in every if k.dur_us > 0), key=lambda k: (k.start_us, k.dur_us))


def union_us(spans: Iterable[Kernel]) -> float:
    """Time in which at least one kernel ran on its device, summed over devices (streams overlap)."""
    total, ends = 0.0, dict[int, float]()
    for k in spans:
        end = k.start_us + k.dur_us
        free = max(k.start_us, ends.get(k.device, k.start_us))
        total += max(0.0, end - free)
        ends[k.device] = max(end, ends.get(k.device, end))
    return total


def _host_gap_us(spans: list[Kernel], idle_us: float) -> float:
    """Host time that goes with one op of a CPU run: the median gap between two ops, at most the mean of what is idle.

    The mean alone would credit every op with a share of what has nothing to do with it: a pause of the process, a
    host sync, the drawing of random numbers.
    """
    gaps = [max(0.0, b.start_us - a.start_us - a.dur_us) for a, b in pairwise(spans)]
    return min(median(gaps), idle_us / len(spans)) if gaps else 0.0


def _launch_us(spans: list[Kernel], device: Device) -> float:
    """Median distance between the starts of kernels before which the device had to wait: the host's pace.

    The description's figure where the device never waits.
    """
    by_device: dict[int, list[Kernel]] = {}
    for k in spans:
        by_device.setdefault(k.device, []).append(k)
    waited = [
        b.start_us - a.start_us
        for kernels in by_device.values()
        for a, b in pairwise(kernels)
        if b.start_us > a.start_us + a.dur_us + (device.min_kernel_us or 1.0)
    ]
    return median(waited) if waited else device.launch_us or 0.0
