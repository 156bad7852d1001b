"""The steps of a trace: where each begins and ends, and which of them the window cut.

Taken from what marks them (:mod:`auditor.collect.step_markers`) where the ops between two marks bear it out, else from
what repeats, exactly (:mod:`auditor.collect.repetition`) or nearly (:mod:`auditor.collect.likeness`), else the trace is
one step, or nothing that has steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from auditor.collect.kineto import Event, Trace, times_of
from auditor.collect.likeness import likeness
from auditor.collect.repetition import repetition, takes_over
from auditor.collect.step_markers import Marker, is_mark, markers
from auditor.graph.model import StepSpan, StepSpans

_ALIKE = 0.8
"""Part of the ops that two steps of one program have in common, at least: branches and shapes differ."""
_WHOLE = 0.9
"""Part of a step's ops at which what lies at the window's edge is a whole step."""
_NEGLIGIBLE = 0.05
"""Part of a step's ops below which what lies at the window's edge is no part of a step."""
_MOST_OUTSIDE = 0.5
"""Part of all ops that may lie in no step: with more, the marks mark something else."""
_ASIDE = 0.25
"""Part of a step that may stand before what marks its begin, or after what marks its end: more is a cut step."""
_HALF = 0.5
_LONGEST = 200
"""Characters of a step's name that are kept: names come from traces."""
_JOINED = (1, 2, 3, 4)
"""Marks that a step may have of one kind: two optimizers step once each."""


_NO_STEPS = StepSpans()


@dataclass(frozen=True, slots=True)
class Steps:
    """What a trace holds of steps. ``cuts``: times that no activation outlives, ascending; ``window_us`` its length.

    ``assumed`` is a sentence on what they rest on, where that is not what marks them or exact repetition.
    """

    found: StepSpans = _NO_STEPS
    cuts: tuple[float, ...] = ()
    window_us: float = 0.0
    assumed: str = ""


def find_steps(trace: Trace) -> Steps:
    """Steps of ``trace``, times as in the file."""
    ops = [event for event in trace.cpu_ops if not is_mark(event.name)]
    counted: dict[object, _Ops] = {}
    single: Steps | None = None
    for marker in markers(trace):
        if single is not None and not marker.told:
            break  # calls of one module may well be several in the step that the profiler marks
        pid = marker.ranges[0].pid
        if pid not in counted:
            counted[pid] = _Ops(ops, pid)
        found = _marked(marker, counted[pid], ops)
        if found is not None and len(found.found.spans) > 1:
            return found
        if marker.by == "profiler":
            single = found
    return single or repetition_of(trace, ops) or _by_likeness(trace, ops) or Steps()


def repetition_of(trace: Trace, ops: Sequence[Event]) -> Steps | None:
    """Steps of a trace in which nothing marks them."""
    edges = repetition(trace, ops)
    if edges is None:
        return None
    spans = [
        StepSpan(f"step {i}", start, end, complete)
        for i, (start, end, complete) in enumerate(edges.pieces, 1)
    ]  # fmt: skip
    return _steps("repetition", edges.unit, spans, ops, cut=edges.at_ops)


def _by_likeness(trace: Trace, ops: Sequence[Event]) -> Steps | None:
    """Steps that nothing marks and that are not all the same."""
    for each in likeness(trace, ops):
        counted = _Ops(ops, ops[0].pid)
        spans = _between_marks(list(each.marks), counted, strict=True)
        complete = sum(span.complete for span in spans or ())
        if spans is None or complete < 2 or (each.at_begin and complete < len(each.marks)):
            continue
        if each.at_begin and spans[0].start_us == each.marks[0]:
            spans[0] = replace(spans[0], start_us=-inf)
        found = _steps("likeness", each.unit, spans, ops, cut=each.at_begin)
        return replace(found, assumed=each.assumed)
    return None


class _Ops:
    """Names of ops by time, for counting them between two times."""

    def __init__(self, events: Sequence[Event], pid: object) -> None:
        own = [event for event in events if event.pid == pid] or list(events)
        starts, _ = times_of(own)
        order = np.argsort(starts, kind="stable")
        numbers: dict[str, int] = {}
        codes = np.array([numbers.setdefault(event.name, len(numbers)) for event in own], np.int64)
        self._starts, self._codes, self._kinds = starts[order], codes[order], len(numbers)

    def start_of(self, time: float, further: int) -> float:
        """When the op starts that is so many ops after the first from ``time`` on; infinite beyond the last."""
        index = max(int(np.searchsorted(self._starts, time)) + further, 0)
        return float(self._starts[index]) if index < len(self._starts) else inf

    def between(self, start: float, end: float) -> NDArray[np.int64]:
        """How often each op starts from ``start`` on and before ``end``."""
        a, b = np.searchsorted(self._starts, [start, end])
        return np.bincount(self._codes[a:b], minlength=self._kinds)


def _marked(marker: Marker, ops: _Ops, events: Sequence[Event]) -> Steps | None:
    """The steps that ``marker`` marks; ``None`` where what lies between its marks is not alike."""
    if marker.whole and (marker.by == "profiler" or _holds_all(marker, ops)):
        return _of_ranges(marker, ops, events)
    if marker.by == "annotation" and _are_layers(marker, events):
        return None
    for joined in _JOINED if marker.ends else (1,):
        marks = [event.end if marker.ends else event.start for event in marker.ranges][joined - 1 :: joined]
        spans = _between_marks(marks, ops, strict=not marker.told)
        if spans is not None:
            return _steps(marker.by, marker.name, spans, events, cut=marker.told)
    return None


def _holds_all(marker: Marker, ops: _Ops) -> bool:
    """Whether next to nothing runs between its ranges: a ``training_step`` may be followed by backward and update."""
    inside = sum(_sum(ops.between(event.start, event.end)) for event in marker.ranges)
    between = sum(_sum(ops.between(one.end, other.start)) for one, other in pairwise(marker.ranges))
    return between <= (1 - _WHOLE) * (inside + between)


def _of_ranges(marker: Marker, ops: _Ops, events: Sequence[Event]) -> Steps | None:
    starts = [event.start for event in marker.ranges]
    edges = [*starts, max(event.end for event in marker.ranges)]
    counts = [ops.between(a, b) for a, b in pairwise(edges)]
    inside = sum(map(_sum, counts))
    outside = _sum(ops.between(-inf, edges[0])) + _sum(ops.between(edges[-1], inf))
    if outside > inside * _MOST_OUTSIDE / (1 - _MOST_OUTSIDE):
        return None
    names = (event.name[:_LONGEST] for event in marker.ranges)
    spans = [StepSpan(name, a, b) for name, (a, b) in zip(names, pairwise(edges), strict=True)]
    for edge in {0, len(spans) - 1} if marker.by == "profiler" and len(spans) > 1 else ():
        # A range that was open when the window began or ended is not recorded; the profiler's begins with the window
        if _is_cut(counts[edge], [count for i, count in enumerate(counts) if i != edge]):
            spans[edge] = replace(spans[edge], complete=False)
    return _steps(marker.by, marker.name, spans, events, cut=True)


def _is_cut(count: NDArray[np.int64], others: Sequence[NDArray[np.int64]]) -> bool:
    """Whether a step at the edge of the window holds only a part of what each of the others does.

    Of two the larger one may be a first that does more.
    """
    typical = _typical(others)
    most = _WHOLE if len(others) > 1 else _HALF
    return _sum(count) < most * _sum(typical) and _inside(count, typical) >= _WHOLE


def _are_layers(marker: Marker, events: Sequence[Event]) -> bool:
    """Whether each range follows at once on the one before, and takes its activation: they are parts of one step."""
    thread = [event for event in events if event.thread == marker.ranges[0].thread]
    thread.sort(key=lambda event: (event.start, -event.end))
    starts = [event.start for event in thread]
    pairs = 0
    for one, other in pairwise(marker.ranges):
        last, first = bisect_left(starts, one.end), bisect_left(starts, other.start)
        if (
            last != first
            or not 0 < first < len(thread)
            or not takes_over(thread[max(first - 50, 0) : first], thread[first : first + 50])
        ):
            return False
        pairs += 1
    return pairs > 0


def _between_marks(marks: list[float], ops: _Ops, *, strict: bool) -> list[StepSpan] | None:
    """Steps from mark to mark, with what lies before the first and after the last judged by them."""
    if len(marks) < 2:
        return None
    counts = [ops.between(a, b) for a, b in pairwise(marks)]
    typical = _typical(counts)
    if not _sum(typical) or sum(_alike(c, typical) >= _ALIKE for c in counts) < _ALIKE * len(counts):
        return None
    if moved := _to_begins(marks, ops, typical):
        return [StepSpan(f"step {i}", a, b) for i, (a, b) in enumerate(pairwise(moved), 1)]
    first, last = _edge(-inf, marks[0], ops, typical, strict), _edge(marks[-1], inf, ops, typical, strict)
    pieces = [first, *((a, b, True) for a, b in pairwise(marks)), last]
    if strict and (first is None or last is None):
        return None
    kept = [piece for piece in pieces if piece is not None and piece[0] < piece[1]]
    return [StepSpan(f"step {i}", a, b, whole) for i, (a, b, whole) in enumerate(kept, 1)]


def _to_begins(marks: list[float], ops: _Ops, typical: NDArray[np.int64]) -> list[float] | None:
    """Where the steps of a window of whole ones begin and end, if what each does before or after its mark goes with it.

    Of ``x = load(); model(x)`` the model is marked, and of ``optimizer.step(); log()`` the optimizer: what lies before
    the first mark and after the last then is one step, and stands there at every mark.
    """
    before, after = ops.between(-inf, marks[0]), ops.between(marks[-1], inf)
    aside = min(_sum(before), _sum(after))
    if not 0 < aside <= _ASIDE * _sum(typical) or _alike(before + after, typical) < _WHOLE:
        return None
    if _sum(before) < _sum(after):
        begins = [ops.start_of(mark, -_sum(before)) for mark in marks]
        alike = [_alike(ops.between(a, b), before) for a, b in zip(begins, marks, strict=True)]
        edges = [*begins, inf]
    else:
        ends = [ops.start_of(mark, _sum(after)) for mark in marks]
        alike = [_alike(ops.between(a, b), after) for a, b in zip(marks, ends, strict=True)]
        edges = [-inf, *ends]
    return edges if min(alike) >= _ALIKE else None


def _edge(
    start: float, end: float, ops: _Ops, typical: NDArray[np.int64], strict: bool
) -> tuple[float, float, bool] | None:  # fmt: skip
    """What lies at the window's edge: a step, a part of one, nothing (of no length), or ``None``: something else."""
    count = ops.between(start, end)
    if _sum(count) <= _NEGLIGIBLE * _sum(typical):
        return end, end, False
    more = not strict and _inside(typical, count) >= _WHOLE and _sum(count) < 2 * _sum(typical)  # what came before it
    if more or (_alike(count, typical) >= _ALIKE and _sum(count) >= _WHOLE * _sum(typical)):
        return start, end, True
    return (start, end, False) if _inside(count, typical) >= _WHOLE else None


def _steps(by: str, marker: str, spans: list[StepSpan], events: Sequence[Event], *, cut: bool) -> Steps:
    begin, end = (spans[0].start_us, spans[-1].end_us) if spans else (0.0, 0.0)
    if begin == -inf:
        begin = min((event.start for event in events), default=0.0)
    if end == inf:
        end = max((event.end for event in events), default=begin)
    window = end - begin
    cuts = tuple(span.start_us for span in spans if span.start_us > -inf) if cut else ()
    return Steps(StepSpans(by, marker[:_LONGEST], tuple(spans)), cuts, window)


def _typical(counts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The step of median size."""
    sizes = [_sum(count) for count in counts]
    return counts[sizes.index(median_low(sizes))]


def _sum(count: NDArray[np.int64]) -> int:
    return int(count.sum())


def _alike(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Part of the ops of both that they have in common."""
    total = _sum(one) + _sum(other)
    return 2 * _sum(np.minimum(one, other)) / total if total else 1.0


def _inside(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Part of the ops of ``one`` that ``other`` has as well."""
    return _sum(np.minimum(one, other)) / _sum(one) if _sum(one) else 1.0
