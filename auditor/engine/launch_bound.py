"""Stretches of launches that the device waits for: a CUDA or HIP graph replays them without the host.

Between two kernels the device waits for the host where the second starts as soon as it is launched. A stretch ends
where a graph would have to: at a host sync, a collective, a copy between host and device, a shape that depends on data,
a graph that is replayed already; and where the host does something else for long, such as loading data.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from auditor.engine.legality import Region, barrier_name
from auditor.engine.propose import Candidate, Proposals, Waiting
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Kernel, Op
from auditor.graph.ops import kind_of

IDLE_SHARE = 0.5
"""Of a stretch's wall time the device waits for launches at least this part."""
LEAST_OF_STEP = 0.005
LEAST_OF_ALL = 0.03
"""What one graph saves of a step, and all of them of the recorded time, at least: less is noise."""
SMALL_GAP_US = 2.0
"""Kernels of a full queue lie this far apart."""
SOON_US = 30.0
"""A kernel that starts this soon after its op was called, and the call took, did not wait for another one."""
PAUSE_US = 300.0
PAUSE_CALLS = 8.0
"""A host that calls nothing for that long, and for that many usual distances between launches, does something else."""
REPLAYED_GAP_US = 1.0
"""Time between the kernels of a replayed graph. 3.4 µs a kernel against 2.9 µs of the kernel itself on a V100:
A. Gray, Getting Started with CUDA Graphs, NVIDIA 2019; rounded up."""
REPLAY_US = 10.0
"""Host time of one replay: the launch of a graph of a thousand nodes, as the same source has it, rounded up."""


@dataclass(slots=True)
class _Stretch:
    ops: list[Op] = field(default_factory=list)
    waited_us: float = 0.0
    ends: str = ""


def propose_launch_bound(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """One site for each stretch; its ops are those that no other site has, and it counts none of their kernels."""
    found = Proposals()
    if graph.graph.device_kind == "cpu":
        return found
    least = (rule.detect or {}).get("min", 20)
    launches = sorted((op for op in graph.graph.ops if op.host and op.launches), key=lambda op: op.host or (0, 0))
    every = [k for op in graph.graph.ops for k in op.kernels] + graph.graph.unlinked
    recorded = max((k.start_us + k.dur_us for k in every), default=0.0) - min((k.start_us for k in every), default=0.0)
    step = recorded / max(1, graph.graph.coverage.steps)
    for device in sorted({op.kernels[0].device for op in launches}):
        on_device = [op for op in launches if op.kernels[0].device == device]
        for stretch in _stretches(graph, on_device, _Timeline(every, device)):
            waiting = _waiting(stretch, step) if len(stretch.ops) >= least else None
            left = [op for op in stretch.ops if op.index not in taken]
            if waiting is not None and left:
                region = Region(tuple(sorted(left, key=lambda op: op.index)), (), (), ())
                found.candidates.append(_candidate(rule, region, waiting))
    saved = sum(c.waiting.saved_us for c in found.candidates if c.waiting)
    return found if saved >= LEAST_OF_ALL * recorded else Proposals()


def _candidate(rule: Rule, region: Region, waiting: Waiting) -> Candidate:
    return Candidate(
        rule, region, left=0, example=region.ops[:1], waiting=waiting,
        instead='torch.compile(model, mode="reduce-overhead"), or torch.cuda.CUDAGraph around fixed shapes',
    )  # fmt: skip


def _waiting(stretch: _Stretch, step_us: float) -> Waiting | None:
    kernels = [k for op in stretch.ops for k in op.kernels]
    start, end = min(k.start_us for k in kernels), max(k.start_us + k.dur_us for k in kernels)
    wall, count = end - start, len(kernels)
    saved = stretch.waited_us - REPLAYED_GAP_US * (count - 1) - REPLAY_US
    if stretch.waited_us < IDLE_SHARE * wall or saved < LEAST_OF_STEP * step_us:
        return None
    told = (
        f"{count:,} kernels in {wall / 1e3:,.2f} ms, for {stretch.waited_us / 1e3:,.2f} ms of which the device waits "
        f"for launches; replayed as one graph they would take {(wall - saved) / 1e3:,.2f} ms"
    )
    told += f"; it ends at {stretch.ends}" if stretch.ends else ""
    return Waiting(count, wall, wall - stretch.waited_us, saved, told)


class _Timeline:
    """When a device was busy."""

    def __init__(self, kernels: list[Kernel], device: int) -> None:
        self._waits: dict[int, float] = {}
        end = float("-inf")
        for kernel in sorted((k for k in kernels if k.device == device), key=lambda k: k.start_us):
            self._waits[id(kernel)] = kernel.start_us - end
            end = max(end, kernel.start_us + kernel.dur_us)

    def idle_before(self, kernel: Kernel) -> float:
        """How long no kernel had run when ``kernel`` started."""
        return max(0.0, self._waits[id(kernel)])


def _stretches(graph: Canonical, launches: list[Op], timeline: _Timeline) -> Iterator[_Stretch]:
    pause = max(PAUSE_US, PAUSE_CALLS * _usual_distance(launches))
    obstacles = _Obstacles(graph, pause)
    stretch = _Stretch()
    for op in launches:
        obstacle = obstacles.before(op)
        if obstacle and stretch.ops:
            stretch.ends = obstacle
            yield stretch
            stretch = _Stretch()
        if stretch.ops:
            stretch.waited_us += _waits_for_launch(op, timeline)
        stretch.ops.append(op)
    yield stretch


def _usual_distance(launches: list[Op]) -> float:
    starts = [op.host.start_us for op in launches if op.host]
    return median([b - a for a, b in pairwise(starts)] or [0.0])


def _waits_for_launch(op: Op, timeline: _Timeline) -> float:
    kernel, host = op.kernels[0], op.host
    assert host is not None
    idle = timeline.idle_before(kernel)
    soon = kernel.start_us - host.start_us <= host.dur_us + SOON_US
    return idle if soon and idle > SMALL_GAP_US else 0.0


class _Obstacles:
    """What a graph can't hold, in the order in which the host comes to it."""

    def __init__(self, graph: Canonical, pause_us: float) -> None:
        self._pause = pause_us
        self._barriers = graph.barrier_ops
        self._calls = sorted((op for op in graph.graph.ops if op.host), key=lambda op: op.host or (0, 0))
        self._unlinked = sorted(k.start_us for k in graph.graph.unlinked)
        self._next = self._passed = 0
        self._quiet_since: float | None = None
        self._told = ""

    def before(self, op: Op) -> str:
        """What lies between the launch before and that of ``op``, in words; ``""``: nothing."""
        told = self._told
        self._told = ""
        assert op.host is not None
        while self._next < len(self._calls):
            call = self._calls[self._next]
            assert call.host is not None
            if call.host.start_us > op.host.start_us:
                break
            self._next += 1
            told = told or self._pauses(call) or ("" if call is op else self._stops(call))
            end = call.host.start_us + call.host.dur_us
            self._quiet_since = end if self._quiet_since is None else max(end, self._quiet_since)
        self._told = self._stops(op)
        return told or self._told or self._replayed(op)

    def _pauses(self, call: Op) -> str:
        assert call.host is not None
        quiet = call.host.start_us - (call.host.start_us if self._quiet_since is None else self._quiet_since)
        return f"a pause of the host before {call.name}" if quiet > self._pause else ""

    def _stops(self, call: Op) -> str:
        assert call.host is not None
        if call.index in self._barriers:
            return f"{barrier_name(call)}, {call.name}"
        if any(k.is_transfer and ("HtoD" in k.name or "DtoH" in k.name) for k in call.kernels):
            return f"a copy between host and device, {call.name}"
        busy = call.host.dur_us > self._pause and not call.launches and kind_of(call.name) != "allocation"
        return f"work of the host, {call.name}" if busy else ""

    def _replayed(self, op: Op) -> str:
        before, self._passed = self._passed, bisect_left(self._unlinked, op.kernels[0].start_us, self._passed)
        return "kernels that no op launched" if self._passed > before else ""
