"""The counts that a budget would hold, of a run against a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from auditor.document import Document, Finding
from auditor.report.facts import avoidable
from auditor.report.format import count, duration, percent, size
from dashboard.data.stored import document

Verdict = Literal["worse", "better", "same", "unknown"]
_SHARE_NOISE = 0.02
"""A share of time that moved by less (absolute) says nothing: times are noisy, counts are not."""
_TIME_NOISE = 0.05
"""Relative; a machine's pace varies by as much."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One count or share in two runs, a step each; less is better. None where a run does not have it."""

    label: str
    before: float | None
    after: float | None
    written: Callable[[float], str]
    noise: float = 0.0
    """Difference that says nothing, in the measure's own unit."""
    counted: bool = True
    """A count, which is the same in every run of one program; a time is not."""

    @property
    def verdict(self) -> Verdict:
        if self.before is None or self.after is None:
            return "unknown"
        if abs(self.after - self.before) <= self.noise:
            return "same"
        return "worse" if self.after > self.before else "better"


@dataclass(frozen=True, slots=True)
class Gate:
    """A run against its baseline."""

    before: Document
    after: Document
    measures: tuple[Measure, ...]
    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    grown: tuple[tuple[Finding, Finding], ...]
    """Findings with more avoidable kernels than before: before, after."""
    remarks: tuple[str, ...]

    @property
    def worse(self) -> tuple[Measure, ...]:
        """Counts that a budget would refuse."""
        return tuple(m for m in self.measures if m.counted and m.verdict == "worse")


def against(baseline: str, run: str) -> Gate:
    """``run`` against ``baseline``. AuditError where one of them is not there."""
    before, after = document(baseline), document(run)
    was, now = _by_fingerprint(before), _by_fingerprint(after)
    return Gate(
        before,
        after,
        _measures(before, after),
        tuple(f for key, f in now.items() if key not in was),
        tuple(f for key, f in was.items() if key not in now),
        tuple((was[k], now[k]) for k in now if k in was and _more(before, was[k], after, now[k])),
        _remarks(before, after),
    )


def _by_fingerprint(of: Document) -> dict[str, Finding]:
    return {finding.fingerprint: finding for finding in of.findings}


def _more(before: Document, was: Finding, after: Document, now: Finding) -> bool:
    return avoidable(now) / _steps(after) > avoidable(was) / _steps(before)


def _measures(before: Document, after: Document) -> tuple[Measure, ...]:
    step = _step_us(before)
    return (
        Measure("unfused kernels", _count(before, "unfused_kernels"), _count(after, "unfused_kernels"), _whole),
        Measure("avoidable kernels", _count(before, "avoidable_kernels"), _count(after, "avoidable_kernels"), _whole),
        Measure("kernels", _count(before, "kernels"), _count(after, "kernels"), _whole),
        Measure("bytes moved by kernels", _count(before, "bytes"), _count(after, "bytes"), size),
        Measure(
            "memory-bound share of kernel time", _bound(before), _bound(after), percent, _SHARE_NOISE, counted=False
        ),
        Measure("step time", step, _step_us(after), duration, (step or 0.0) * _TIME_NOISE, counted=False),
    )


def _whole(value: float) -> str:
    return count(round(value))


def _steps(of: Document) -> int:
    """Steps that the counts are over: a profile's are of one step, a trace's of all that it holds."""
    return max(of.coverage.steps, 1) if of.run.source == "trace" else 1


def _count(of: Document, field: str) -> float:
    return float(getattr(of.totals, field)) / _steps(of)


def _bound(of: Document) -> float | None:
    return of.totals.memory_bound_us / of.totals.device_us if of.totals.device_us > 0 else None


def _step_us(of: Document) -> float | None:
    return of.totals.step_us / _steps(of) if of.totals.step_us > 0 else None


def _remarks(before: Document, after: Document) -> tuple[str, ...]:
    remarks = []
    if before.run.device.name != after.run.device.name:
        remarks.append("The two runs are of different devices: counts compare, times do not.")
    if (before.run.select, before.run.ignore) != (after.run.select, after.run.ignore):
        remarks.append("The two runs were audited with different rules chosen.")
    if before.coverage.edges != after.coverage.edges:
        remarks.append(
            f"Edges are {before.coverage.edges} in one and {after.coverage.edges} in the other: "
            "inferred ones can be wrong."
        )
    return tuple(remarks)
