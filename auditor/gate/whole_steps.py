"""The whole steps of a trace: parts of others, and what no step launched, would make a step look larger than it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from auditor.document import Document, Finding, Saving, Site, StepFigures, Totals
from auditor.engine.sums import sums_of


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Kernels of a document that are in no whole step of it."""

    kernels: int = 0
    device_us: float = 0.0


def whole_steps(document: Document) -> frozenset[int] | None:
    """Indices of the steps that count; ``None`` where everything does."""
    steps = document.steps
    if steps is None or not any(figures.complete for figures in steps.each):
        return None
    whole = frozenset(i for i, figures in enumerate(steps.each) if figures.complete)
    return (
        None if len(whole) == len(steps.each) and not steps.outside.device_us and not steps.outside.kernels else whole
    )


def left_out(document: Document) -> LeftOut:
    """What :func:`of_whole_steps` leaves out."""
    whole, steps = whole_steps(document), document.steps
    if whole is None or steps is None:
        return LeftOut()
    parts = [steps.outside, *(figures for i, figures in enumerate(steps.each) if i not in whole)]
    return LeftOut(sum(part.kernels for part in parts), sum(part.device_us for part in parts))


def of_whole_steps(document: Document) -> Document:
    """``document`` over its whole steps only; the same where it holds nothing else.

    Collectives and fused kernels, which are not told by step, stay those of the file.
    """
    whole, steps = whole_steps(document), document.steps
    if whole is None or steps is None:
        return document
    kept = [steps.each[i] for i in sorted(whole)]
    findings = [found for f in document.findings if (found := _finding(f, whole)) is not None]
    inside = replace(steps, each=kept, outside=StepFigures(name=steps.outside.name, complete=False))
    return replace(document, steps=inside, findings=findings, totals=_totals(document.totals, kept, findings))


def _finding(finding: Finding, whole: frozenset[int]) -> Finding | None:
    """``finding`` with its sites in ``whole`` steps; ``None`` where it has none there."""
    places = [place for place in finding.places if place.step in whole]
    if not places:
        return None
    saving = _saving(places)
    saving.step_us = finding.saving.step_us * _share(places, finding.places)
    return replace(
        finding,
        saving=saving,
        **sums_of([replace(place, step=-1) for place in places]),
    )


def _share(some: Sequence[Site], every: Sequence[Site]) -> float:
    """Part of the wall time that sites are worth: each alone is worth more or less than among all of them."""
    whole = sum(place.saving.step_us for place in every)
    return sum(place.saving.step_us for place in some) / whole if whole > 0 else 0.0


def _saving(places: Sequence[Site]) -> Saving:
    return Saving(
        ideal_us=sum(place.saving.ideal_us for place in places),
        likely_us=sum(place.saving.likely_us for place in places),
    )


def _totals(totals: Totals, kept: Sequence[StepFigures], findings: Sequence[Finding]) -> Totals:
    saving = replace(
        totals.saving,
        ideal_us=sum(f.saving.ideal_us for f in findings),
        likely_us=sum(f.saving.likely_us for f in findings),
        step_us=min(sum(f.saving.step_us for f in findings), totals.saving.step_us),
        bytes=sum(f.bytes_now - f.bytes_fused for f in findings),
    )
    return replace(
        totals,
        kernels=sum(step.kernels for step in kept),
        memory_bound_kernels=sum(step.memory_bound_kernels for step in kept),
        unfused_kernels=sum(step.unfused_kernels for step in kept),
        avoidable_kernels=sum(step.avoidable_kernels for step in kept),
        device_us=sum(step.device_us for step in kept),
        memory_bound_us=sum(step.memory_bound_us for step in kept),
        step_us=sum(step.step_us for step in kept),
        idle_us=sum(step.idle_us for step in kept),
        bytes=sum(step.bytes for step in kept),
        saving=saving,
    )
