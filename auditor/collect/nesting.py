"""Which event encloses which on one thread, from start and duration alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from auditor.collect.kineto import Event, by_thread

Thread = tuple[object, object]


class Nest:
    """Events of one thread by start time; ``parent[i]`` is the innermost event around event ``i``, -1 for none.

    Whole-microsecond traces round: an event that starts where another ends is its neighbour, not its child.
    """

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.parent: list[int] = []
        self.depth: list[int] = []
        open_: list[int] = []
        for i, event in enumerate(events):
            while open_ and events[open_[-1]].end <= event.start and not _instant_inside(event, events[open_[-1]]):
                open_.pop()
            self.parent.append(open_[-1] if open_ else -1)
            self.depth.append(len(open_))
            open_.append(i)

    def enclosing(self, times: Iterable[float]) -> list[int]:
        """Innermost event around each of ``times`` (ascending), -1 for none."""
        events, found, open_, following = self.events, [], list[int](), 0
        for time in times:
            while following < len(events) and events[following].start <= time:
                open_.append(following)
                following += 1
            while open_ and events[open_[-1]].end < time:
                open_.pop()
            found.append(next((i for i in reversed(open_) if events[i].end >= time), -1))
        return found


def _instant_inside(event: Event, around: Event) -> bool:
    return not event.dur and event.start == around.end > around.start


def nests(events: Iterable[Event]) -> dict[Thread, Nest]:
    """A nest for each (pid, tid)."""
    return {thread: Nest(held) for thread, held in by_thread(events).items()}
