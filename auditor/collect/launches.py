"""The runtime call that launched a kernel, by correlation id: also where a file holds an id more than once.

A process gives each id once. A file holds one again where recordings were joined (a profiler that was started twice,
ranks merged into one file): then the kernel's time and its device tell which launch is meant, or nothing does, and
that is counted, not guessed. RCCL's kernels have the id 0 from roctracer
(https://github.com/ROCm/roctracer/issues/100), so 0 is an id only where a launch has it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from statistics import median
from typing import Literal, NamedTuple

from auditor.collect.kineto import Event, LaunchArgs, Trace, decode_launch

SKEW_US = 1000.0
"""A kernel may seem to begin this much before its launch: clocks of host and device differ. Kineto itself drops what
is out of order ("CPU GPU out-of-order" in its log), so in its traces none does."""

GRAPH_LAUNCHES = frozenset({
    "cudaGraphLaunch", "cudaGraphLaunch_ptsz", "cuGraphLaunch", "cuGraphLaunch_ptsz", "hipGraphLaunch",
    "hipGraphLaunch_spt"
})  # fmt: skip

Unknown = Literal["none", "early", "unclear"]
"""Why a launch is not known: no launch in the file has the id; all that have it come later; several may be meant, or
the file has no launches at all."""

Launched = tuple[Event, LaunchArgs]


class Sought(NamedTuple):
    """A launch, or why it is not known."""

    launch: Event | None
    why: Unknown = "none"


class _Again(NamedTuple):
    """Launches of one id that is in the file more than once, by start time."""

    by_process: dict[object, list[Event]]
    second: Event | None
    """The first of the process that gave it second, if another one did."""

    @classmethod
    def of(cls, held: Sequence[Event]) -> _Again:
        """``held`` by process."""
        found: dict[object, list[Event]] = {}
        for event in held:
            found.setdefault(event.pid, []).append(event)
        firsts = [events[0] for events in found.values()]
        return cls(found, firsts[1] if len(firsts) > 1 else None)


_START = attrgetter("start")
_NONE, _EARLY, _UNCLEAR = Sought(None), Sought(None, "early"), Sought(None, "unclear")


class Launches:
    """Launches of a trace, by correlation id. ``kernels`` are its device events, which tell whose a device is."""

    def __init__(self, trace: Trace, kernels: Sequence[Launched]) -> None:
        self._kernels = kernels
        self._by_id: dict[int, list[Event]] = {}
        again: set[int] = set()
        for event in trace.launches:
            correlation = decode_launch(event).correlation
            if correlation < 0:
                continue
            held = self._by_id.setdefault(correlation, [])
            held.append(event)
            if len(held) > 1:
                again.add(correlation)
        self._again: dict[int, _Again] = {}
        for correlation in again:
            held = self._by_id[correlation]
            held.sort(key=_START)
            self._again[correlation] = _Again.of(held)

    def of(self, kernel: Event, args: LaunchArgs) -> Sought:
        """The launch of a device event: the last one with its id, on its process, that had begun before it."""
        held = self._by_id.get(args.correlation)
        if held is None:
            return _NONE if args.correlation > 0 and (self._by_id or self._is_shared(args)) else _UNCLEAR
        if len(held) == 1:
            return Sought(held[0]) if self._has_begun(held[0], kernel) else _EARLY
        if not self._has_begun(held[0], kernel):
            return _EARLY
        again = self._again[args.correlation]
        if again.second is not None and self._has_begun(again.second, kernel):
            process = self._process_of.get(_device(kernel, args))
            held = again.by_process.get(process[0], []) if process is not None else []
        begun = self._begun(held, kernel)
        return Sought(held[begun - 1]) if begun else _UNCLEAR

    def is_replay(self, found: Sought, args: LaunchArgs) -> bool:
        """Whether a graph was launched; without the launch in the file, whether many kernels share the id."""
        if found.launch is not None:
            return found.launch.name in GRAPH_LAUNCHES
        return found.why == "none" and self._is_shared(args)

    def _is_shared(self, args: LaunchArgs) -> bool:
        return args.correlation in self._shared_ids

    def _begun(self, held: Sequence[Event], kernel: Event) -> int:
        """How many of ``held``, by start time, had begun: a file may give one id a hundred thousand times."""
        limit = max(SKEW_US, self._slack_us)
        return bisect_right(held, limit, key=lambda launch: launch.start - kernel.start)

    def _has_begun(self, launch: Event, kernel: Event) -> bool:
        late = launch.start - kernel.start
        return late <= SKEW_US or late <= self._slack_us

    @cached_property
    def _slack_us(self) -> float:
        """How late a launch may seem. Where the host's clock is ahead of the device's, twice the median of that."""
        delays = [
            event.start - self._by_id[args.correlation][0].start
            for event, args in self._kernels
            if len(self._by_id.get(args.correlation, ())) == 1
        ]
        return SKEW_US - 2 * min(0.0, median(delays)) if delays else SKEW_US

    @cached_property
    def _process_of(self) -> dict[object, tuple[object]]:
        """The process that has a device for itself, as far as ids tell that only one process gave."""
        users: dict[object, set[object]] = defaultdict(set)
        for event, args in self._kernels:
            pids = {launch.pid for launch in self._by_id.get(args.correlation, ())}
            if len(pids) == 1:
                users[_device(event, args)] |= pids
        return {device: (next(iter(pids)),) for device, pids in users.items() if len(pids) == 1}

    @cached_property
    def _shared_ids(self) -> set[int]:
        shared = Counter(args.correlation for event, args in self._kernels if (event.cat or "").lower() == "kernel")
        return {correlation for correlation, n in shared.items() if n > 1}


def _device(kernel: Event, args: LaunchArgs) -> object:
    """Mergers of ranks renumber the process of a kernel, which stands for its device, and leave ``device`` alone."""
    return (kernel.pid, args.device)
