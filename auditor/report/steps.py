"""What a report says of the steps of a trace, in words and in order, before any format dresses it.

Names of steps come from the trace: they are made safe here, and tables hold text only.
"""

from __future__ import annotations

from collections import Counter

from auditor.document import Document, Finding, StepFigures, Steps
from auditor.report.format import clip, count, duration, plural, safe

HEAD = ("step", "kernels", "unfused", "avoidable", "kernel time", "wall", "idle", "saves likely", "remark")
NUMBERS = (1, 2, 3, 4, 5, 6, 7)
"""Columns of the table that are numbers."""
MOST = 64
"""Rows shown; the median and what is in no step come after them."""
_NAME = 60
_BY = {
    "profiler": "told by the profiler's schedule",
    "annotation": "told by the range {}",
    "optimizer": "told by {}",
    "data loader": "told by the data loader",
    "modules": "told by the calls of {}",
    "repetition": "told by {} that repeat exactly",
    "likeness": "told by {} that repeat, but for a few",
}


def shown(document: Document) -> Steps | None:
    """The steps, where there is more to say than that there is one."""
    steps = document.steps
    return steps if steps is not None and len(steps.each) > 1 else None


def sentence(document: Document) -> str:
    """``5 steps, told by the data loader · 866 kernels each · median 242 ms, idle 127 ms``; empty for one step."""
    steps = shown(document)
    if steps is None:
        return ""
    whole = [figures for figures in steps.each if figures.complete]
    cut = len(steps.each) - len(whole)
    how = _BY.get(steps.by, "").format(clip(safe(steps.marker), _NAME).removeprefix("nn.Module: "))
    parts = [
        f"{plural(len(whole), 'step')}{f' and {count(cut)} cut by the window' if cut else ''}, {how}",
        _each(whole),
        f"median {duration(steps.median.step_us)}, idle {duration(steps.median.idle_us)}" if whole else "",
        f"{plural(steps.outside.kernels, 'kernel')} in no step" if steps.outside.kernels else "",
    ]
    return " · ".join(part for part in parts if part)


def _each(whole: list[StepFigures]) -> str:
    if not whole:
        return ""
    parts = [(key, [getattr(f, f"{key}_kernels" if key else "kernels") for f in whole]) for key in ("", "unfused")]
    return " with ".join(f"{_range(values)} {key or 'kernels'}" for key, values in parts) + (
        " each" if len(whole) > 1 else ""
    )


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return count(low) if low == high else f"{count(low)} to {count(high)}"


def title(steps: Steps) -> str:
    """``5 steps``."""
    return plural(len(steps.each), "step")


def rows(steps: Steps) -> list[tuple[str, ...]]:
    """Cells of the table, under :data:`HEAD`: each step, then the median, then what is in none."""
    made = [_row(figures, "" if figures.complete else "cut by the window") for figures in steps.each[:MOST]]
    if any(figures.complete for figures in steps.each):
        made.append(_row(steps.median, "of the whole ones"))
    if steps.outside.kernels:
        made.append(_row(steps.outside, "launched before the window or between steps"))
    return made


def left_out(steps: Steps) -> str:
    """How many steps the table does not show, a sentence; empty where it shows all."""
    more = len(steps.each) - MOST
    return f"The table leaves out {plural(more, 'step')}; the JSON has all." if more > 0 else ""


def _row(figures: StepFigures, remark: str) -> tuple[str, ...]:
    counts = (figures.kernels, figures.unfused_kernels, figures.avoidable_kernels)
    times = (figures.device_us, figures.step_us, figures.idle_us, figures.likely_us)
    name = clip(safe(figures.name), _NAME)
    timed = (duration(time) if time or i != 1 else "–" for i, time in enumerate(times))
    return (name, *map(count, counts), *timed, remark or "–")


def of_finding(document: Document, finding: Finding) -> str:
    """How the sites of a finding spread over the steps: ``24 sites in each of 5 steps``; empty for one step."""
    steps = shown(document)
    if steps is None or len(finding.places) != finding.sites:
        return ""
    sites = Counter(place.step for place in finding.places if place.step >= 0)
    if not sites:
        return "in no step"
    whole = [i for i, figures in enumerate(steps.each) if figures.complete]
    held = [sites[i] for i in sites]
    several = f"{_range(held)} {'site' if set(held) == {1} else 'sites'}"
    if whole and all(sites[i] for i in whole):
        held = [sites[i] for i in whole]
        several = f"{_range(held)} {'site' if set(held) == {1} else 'sites'}"
        return f"{several} in each of {plural(len(whole), 'step')}{_elsewhere(finding, whole)}"
    if len(sites) == 1:
        only = next(iter(sites))
        which = "the first" if only == 0 else "the last" if only == len(steps.each) - 1 else f"number {only + 1}"
        return f"{several}, only in {which} of {plural(len(steps.each), 'step')}"
    return f"{several} in {count(len(sites))} of {plural(len(steps.each), 'step')}"


def _elsewhere(finding: Finding, whole: list[int]) -> str:
    inside = set(whole)
    left = sum(place.step not in inside for place in finding.places)
    return f", {count(left)} in what the window cut" if left else ""
