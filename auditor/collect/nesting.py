"""Which event encloses which on one thread, from start and duration alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from auditor.collect.kineto import Event, by_thread, times_of

Thread = tuple[object, object]


class Nest:
    """Events of one thread by start time; ``parent[i]`` is the innermost event around event ``i``, -1 for none.

    ``starts`` and ``ends`` are those of the events, in microseconds.
    Whole-microsecond traces round: an event that starts where another ends is its neighbour, not its child.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self._starts, durations = times_of(events)
        self.starts: list[float] = self._starts.tolist()
        self.ends: list[float] = (self._starts + durations).tolist()
        self.parent = _parents(self.starts, self.ends, (durations == 0).tolist())

    @cached_property
    def depth(self) -> list[int]:
        """How many events are around each."""
        found: list[int] = []
        for parent in self.parent:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        return found

    def enclosing(self, times: Sequence[float]) -> list[int]:
        """Innermost event around each of ``times``, -1 for none."""
        ends, parent, found = self.ends, self.parent, []
        last_started = np.searchsorted(self._starts, np.asarray(times, float), side="right") - 1
        for time, event in zip(times, last_started.tolist(), strict=True):
            while event >= 0 and ends[event] < time:
                event = parent[event]
            found.append(event)
        return found


def _parents(starts: Sequence[float], ends: Sequence[float], instant: Sequence[bool]) -> list[int]:
    """The open events are the chain of parents of the last one: no stack is needed beside it."""
    parent: list[int] = []
    open_ = -1
    for i, start in enumerate(starts):
        while open_ >= 0 and ends[open_] <= start:
            if instant[i] and start == ends[open_] > starts[open_]:
                break  # nothing else can hold an event without a length
            open_ = parent[open_]
        parent.append(open_)
        open_ = i
    return parent


def nests(events: Iterable[Event]) -> dict[Thread, Nest]:
    """A nest for each (pid, tid)."""
    return {thread: Nest(held) for thread, held in by_thread(events).items()}
