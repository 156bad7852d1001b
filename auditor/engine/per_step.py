"""The figures of each step of a trace: what the host launched in it, how long it took, and the sites in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import median, median_low

from auditor.document import Finding, Site, StepFigures, Steps
from auditor.engine.census import is_bound
from auditor.engine.step_time import idle_within, union_us
from auditor.graph.model import Kernel, Op, OpGraph, StepSpan
from auditor.graph.traffic import Traffic

_COUNTS = ("kernels", "memory_bound_kernels", "unfused_kernels", "avoidable_kernels", "bytes")
_TIMES = ("device_us", "memory_bound_us", "step_us", "idle_us", "likely_us")


def per_step(graph: OpGraph, findings: Sequence[Finding], traffic: Callable[[Op], Traffic]) -> Steps | None:
    """The steps of ``graph``; ``None`` where it has none. Gives every site of ``findings`` its step."""
    spans = graph.steps.spans
    if not spans:
        return None
    held = [_Held() for _ in range(len(spans) + 1)]  # the last: in no step
    of_op = steps_of_ops(graph)
    for op, step in zip(graph.ops, of_op, strict=True):
        if op.kernels:
            held[step].take(op.name, op.kernels, traffic(op).total)
    of_unlinked = steps_of_unlinked(graph)
    for kernel, step in zip(graph.unlinked, of_unlinked, strict=True):
        held[step].take("", (kernel,), 0)
    for site in (site for finding in findings for site in finding.places):
        site.step = of_op[site.ops[0]] if site.ops else of_unlinked[site.unlinked[0]]
        held[site.step].sites.append(site)
    each = [_figures(span.name, span.complete, h) for span, h in zip(spans, held, strict=False)]
    _time(each, spans, held, serial=graph.device_kind == "cpu")
    outside = _figures("outside of any step", False, held[-1])
    return Steps(by=graph.steps.by, marker=graph.steps.marker, each=each, median=_median(each), outside=outside)


class _Places:
    """The step at a time on the host's clock, -1 for none."""

    def __init__(self, spans: Sequence[StepSpan]) -> None:
        self._starts = [span.start_us for span in spans]
        self._ends = [span.end_us for span in spans]

    def of(self, time_us: float) -> int:
        step = bisect_right(self._starts, time_us) - 1
        return step if step >= 0 and time_us < self._ends[step] else -1


def steps_of_ops(graph: OpGraph) -> list[int]:
    """The step of each op, -1 for none, by when the host called it.

    An op of which that is not known goes with the one before it.
    """
    place = _Places(graph.steps.spans)
    steps: list[int] = []
    for op in graph.ops:
        start = op.host.start_us if op.host else op.kernels[0].start_us if op.kernels else None
        steps.append(place.of(start) if start is not None else steps[-1] if steps else -1)
    return steps


@dataclass(slots=True)
class _Held:
    """What one step holds."""

    kernels: list[Kernel] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    bound: int = 0
    bound_us: float = 0.0
    bytes: int = 0

    def take(self, op: str, kernels: Sequence[Kernel], moved: int) -> None:
        """``kernels`` that an op of this name launched (empty: not known), which moved so many bytes."""
        self.kernels += kernels
        self.bytes += moved
        for kernel in kernels:
            if is_bound(op, kernel.name):
                self.bound += not kernel.is_transfer
                self.bound_us += kernel.dur_us


def steps_of_unlinked(graph: OpGraph) -> list[int]:
    """The step of each kernel that no op holds, -1 for none or not known."""
    place = _Places(graph.steps.spans)
    return [-1 if k.launched_us is None else place.of(k.launched_us) for k in graph.unlinked]


def _figures(name: str, complete: bool, held: _Held) -> StepFigures:
    return StepFigures(
        name=name,
        complete=complete,
        kernels=sum(not kernel.is_transfer for kernel in held.kernels),
        memory_bound_kernels=held.bound,
        unfused_kernels=sum(site.kernels for site in held.sites),
        avoidable_kernels=sum(site.kernels - site.kernels_after for site in held.sites),
        device_us=sum(kernel.dur_us for kernel in held.kernels),
        memory_bound_us=held.bound_us,
        bytes=held.bytes,
        likely_us=sum(site.saving.likely_us for site in held.sites),
    )


def _time(each: list[StepFigures], spans: Sequence[StepSpan], held: Sequence[_Held], *, serial: bool) -> None:
    """Wall and idle time: on the device's clock, as it runs behind the host and may take longer."""
    begins = [min((k.start_us for k in h.kernels), default=None) for h in held[: len(spans)]]
    for i, (figures, span) in enumerate(zip(each, spans, strict=True)):
        host = span.end_us - span.start_us if isfinite(span.end_us - span.start_us) else 0.0
        begin, kernels = begins[i], [k for k in held[i].kernels if k.dur_us > 0]
        if begin is None or (serial and host):
            figures.step_us = host
        else:
            following = next((later for later in begins[i + 1 :] if later is not None), None)
            end = max((k.start_us + k.dur_us for k in kernels), default=begin)
            figures.step_us = max(end - begin, host) if following is None else max(following - begin, 0.0)
        busy = union_us(sorted(kernels, key=lambda k: k.start_us))
        figures.idle_us = idle_within(figures.step_us, busy)


def _median(each: Sequence[StepFigures]) -> StepFigures:
    whole = [figures for figures in each if figures.complete]
    if not whole:
        return StepFigures(name="median", complete=False)
    made: dict[str, int | float] = {key: median_low([getattr(f, key) for f in whole]) for key in _COUNTS}
    made |= {key: median([getattr(f, key) for f in whole]) for key in _TIMES}
    return StepFigures(name="median", **made)  # type: ignore[arg-type]
