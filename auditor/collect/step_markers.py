"""What may mark the steps of a trace: ranges of the profiler, the user, optimizers, data loaders and modules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from auditor.collect.kineto import Event, Trace

PROFILER = "ProfilerStep#"
_OPTIMIZER = "Optimizer.step#"
_LOADER = "enumerate(DataLoader)#"
_MODULE = "nn.Module: "
_STEP = re.compile(r"(?:^|[^a-z])(?:step|iter|iteration)(?:[^a-z]|$)|^execute_(?:context|model|\d)", re.IGNORECASE)
"""Names that people, and serving engines (vLLM's ``execute_…``, SGLang's ``step[DECODE …]``), give to a step."""
_PART_OF_STEP = re.compile(r"optim|sched|zero_grad|clip|nccl|gloo|rccl", re.IGNORECASE)
_NO_STEP = re.compile(
    r"^(?:ProfilerStep#|Optimizer\.|enumerate\(|nccl:|gloo:|## Call CompiledFx|Torch-Compiled|\[param)"
)
_MOST_NAMES = 12
"""Names of the user's ranges that are tried: one that begins a step is among the first."""


@dataclass(frozen=True, slots=True)
class Marker:
    """Ranges of one kind on one thread, in order, none within another.

    ``ends``: a step ends with each of them, where it else begins with one. ``whole``: each is a step from begin to end.
    ``told``: what it is called says so; what else repeats has to be shown alike.
    """

    by: str
    name: str
    ranges: tuple[Event, ...]
    ends: bool = False
    whole: bool = False
    told: bool = True


def markers(trace: Trace) -> Iterator[Marker]:
    """What may mark the steps of ``trace``, the most trustworthy first; each at least twice, but for the profiler's."""
    return (marker for marker in _all(trace) if len(marker.ranges) > 1 or marker.by == "profiler")


def _all(trace: Trace) -> Iterator[Marker]:
    named = [e for e in trace.annotations if e.dur is not None]
    named += [e for e in trace.cpu_ops if e.dur is not None and is_mark(e.name)]  # the 1.8 era knew no other category
    named.sort(key=lambda e: (e.start, -e.end))
    yield from _of("profiler", "ProfilerStep", (e for e in named if e.name.startswith(PROFILER)), whole=True)
    yield from _steps_by_name(named)
    optimizers = _by_name("optimizer", named, _OPTIMIZER, ends=True)
    yield from optimizers
    if not any(e.name.startswith(_OPTIMIZER) for e in named) or optimizers:
        yield from _by_name("data loader", named, _LOADER)  # several batches of one optimizer step are no steps
    yield from _by_users_names(named)
    modules = sorted((e for e in trace.python if e.name.startswith(_MODULE)), key=lambda e: (e.start, -e.end))
    yield from _by_users_names(_outermost(modules), "modules")


@lru_cache(maxsize=4096)
def is_mark(name: str) -> bool:
    """Whether an event is a range of the profiler, an optimizer or a data loader, whatever its category."""
    return name.startswith((PROFILER, _OPTIMIZER, _LOADER))


def _of(by: str, name: str, events: Iterable[Event], *, whole: bool = False, ends: bool = False) -> list[Marker]:
    """The ranges of the thread that has most of them."""
    threads: dict[tuple[object, object], list[Event]] = {}
    for event in events:
        threads.setdefault(event.thread, []).append(event)
    if not threads:
        return []
    most = max(threads.values(), key=len)
    return [Marker(by, name, tuple(_outermost(most)), ends=ends, whole=whole)]


def _outermost(events: Sequence[Event]) -> list[Event]:
    """Those of each thread that lie in no other; ``events`` by start."""
    kept: list[Event] = []
    ends: dict[tuple[object, object], float] = {}
    for event in events:
        if event.start >= ends.get(event.thread, float("-inf")):
            kept.append(event)
            ends[event.thread] = event.end
    return kept


def _by_name(by: str, named: Sequence[Event], prefix: str, *, ends: bool = False) -> list[Marker]:
    """A marker for each name that begins with ``prefix``; several optimizers may share a step."""
    events = [e for e in named if e.name.startswith(prefix)]
    names = dict.fromkeys(e.name for e in events)
    made = [m for name in names for m in _of(by, name, (e for e in events if e.name == name), ends=ends)]
    return [m for m in made if len(m.ranges) > 1]


def _steps_by_name(named: Sequence[Event]) -> list[Marker]:
    """Ranges that are called steps, those that differ by numbers or in brackets only taken together."""
    steps = [e for e in named if _STEP.search(e.name) and not (_PART_OF_STEP.search(e.name) or _NO_STEP.match(e.name))]
    groups: dict[str, list[Event]] = {}
    for event in steps:
        groups.setdefault(_without_numbers(event.name), []).append(event)
    return [m for name, events in groups.items() for m in _of("annotation", name, events, whole=True)]


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", re.split(r"[\[(]", name, maxsplit=1)[0] or name)


def _by_users_names(named: Sequence[Event], by: str = "annotation") -> list[Marker]:
    """Whatever else has a name and comes again; the one that comes first may begin a step."""
    groups: dict[str, list[Event]] = {}
    for event in named:
        if not _NO_STEP.match(event.name) and not _STEP.search(event.name):
            groups.setdefault(event.name, []).append(event)
    repeated = [(name, events) for name, events in groups.items() if len(events) > 1][:_MOST_NAMES]
    made = (Marker(m.by, m.name, m.ranges, told=False) for n, events in repeated for m in _of(by, n, events))
    return [m for m in made if len(m.ranges) > 1]
