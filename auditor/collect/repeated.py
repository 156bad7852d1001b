"""Events that a file holds twice, as where a trace was joined with itself or with one that overlaps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from auditor.collect.kineto import Event, Trace


def drop_repeated(trace: Trace) -> int:
    """Keep one of each event; how many were dropped.

    Told by the kernels (or by the ops, where there are none): a stream runs one kernel at a time, so two of one name,
    begin, length and arguments are one. Other events are only looked at where that is so, as it takes its time.
    """
    if not _repeats(trace.kernels or trace.cpu_ops):
        return 0
    before = _count(trace)
    for name in ("cpu_ops", "kernels", "memory", "launches", "python", "annotations", "instants"):
        setattr(trace, name, list({_key(event): event for event in getattr(trace, name)}.values()))
    return before - _count(trace)


def _repeats(events: list[Event]) -> bool:
    lasting = [event for event in events if event.dur]
    if len({(event.ts, event.dur, event.name) for event in lasting}) == len(lasting):
        return False
    return len({_key(event) for event in lasting}) < len(lasting)


def _key(event: Event) -> tuple[object, ...]:
    return (event.pid, event.tid, event.ts, event.dur, event.name, event.cat, bytes(event.args))


def _count(trace: Trace) -> int:
    lists = (trace.cpu_ops, trace.kernels, trace.memory, trace.launches, trace.python, trace.annotations)
    return sum(map(len, lists))
