"""What a gate measures of a run: how each figure is called, in what unit, and when a difference says something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from auditor.document import Document, Totals
from auditor.gate.whole_steps import of_whole_steps
from auditor.gate_document import Figures, Measure, Spread, Unit, Verdict

Spreads = Mapping[str, Spread]
"""Of measured figures, by key."""

SHARE_NOISE = 0.02
"""A share of time that moved by less (absolute) says nothing: times are noisy, counts are not."""
TIME_NOISE = 0.05
"""Relative; a machine's pace varies by as much."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure. ``counted``: it may fail a build; what is measured only warns."""

    key: str
    label: str
    unit: Unit
    counted: bool = True


KINDS = {
    kind.key: kind
    for kind in (
        Kind("unfused_kernels", "unfused kernels", "count"),
        Kind("avoidable_kernels", "avoidable kernels", "count"),
        Kind("kernels", "kernels", "count"),
        Kind("bytes", "bytes moved by kernels", "bytes"),
        Kind("peak_memory", "peak memory", "bytes"),
        Kind("memory_bound_share", "memory-bound share of kernel time", "share", counted=False),
        Kind("step_us", "step time", "us", counted=False),
    )
}
"""By key, which is the field of :class:`~auditor.gate_document.Figures`."""


def figures_of(document: Document) -> Figures:
    """What the run adds up to, a step: a trace's are over all the whole steps that it holds."""
    return figures_from(of_whole_steps(document).totals, steps_of(document))


def figures_from(totals: Totals, steps: int) -> Figures:
    """Totals over ``steps`` steps, a step."""
    return Figures(
        unfused_kernels=a_step(totals.unfused_kernels, steps),
        avoidable_kernels=a_step(totals.avoidable_kernels, steps),
        kernels=a_step(totals.kernels, steps),
        bytes=a_step(totals.bytes, steps),
        peak_memory=totals.peak_bytes or None,  # of audits made before it was computed it is not known
        memory_bound_share=totals.memory_bound_us / totals.device_us if totals.device_us > 0 else None,
        step_us=totals.step_us / steps if totals.step_us > 0 else None,
    )


def steps_of(document: Document) -> int:
    """Steps that the counts of a document are over."""
    return max(document.coverage.steps, 1)


def a_step(total: float, steps: int) -> float:
    """``total`` a step; a whole number stays one, as files are written with it."""
    return total if steps == 1 else total / steps


def measured(before: Figures, after: Figures, spreads: tuple[Spreads, Spreads] = ({}, {})) -> list[Measure]:
    """Every figure of two runs, with the spreads of what is measured, and whether it got worse."""
    made = []
    for kind in KINDS.values():
        was, now = getattr(before, kind.key), getattr(after, kind.key)
        made.append(
            Measure(
                key=kind.key, label=kind.label, unit=kind.unit, counted=kind.counted, before=was, after=now,
                verdict=verdict(kind, was, now), spreads=(spreads[0].get(kind.key), spreads[1].get(kind.key)),
            )
        )  # fmt: skip
    return made


def verdict(kind: Kind, before: float | None, after: float | None) -> Verdict:
    """Less is better; a time or share that moved within its noise is the same."""
    if before is None or after is None:
        return "unknown"
    noise = 0.0 if kind.counted else SHARE_NOISE if kind.unit == "share" else TIME_NOISE * before
    if abs(after - before) <= noise:
        return "same"
    return "worse" if after > before else "better"
