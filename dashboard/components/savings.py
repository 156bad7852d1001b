"""Why these microseconds: the formula of each site with its numbers, and what of it reaches the step."""

from __future__ import annotations

from typing import Any

from dash import html

from auditor.document import Document, Finding, Site
from auditor.report import facts
from auditor.report.format import count, duration, from_to, plural, ratio, safe
from dashboard.components.code import details
from dashboard.components.facts import fact_list
from dashboard.components.tables import table

_PLACES = 100
_LIKELY = "at the bandwidth that these very kernels achieved, and with the arithmetic that a fused kernel does not hide"
_STEP = "device time counts where the device is the bottleneck, a launch where launches are"


def savings(document: Document, finding: Finding) -> html.Section:
    """The three figures and where they come from."""
    saving, step = finding.saving, document.totals.step_us
    lines = [
        ("ideal", f"{duration(saving.ideal_us)}: the bytes that still have to move, at the device's bandwidth"),
        ("likely", f"{duration(saving.likely_us)}: {_LIKELY}"),
        ("step", _of_step(saving.step_us, step, finding.amdahl_cap)),
    ]  # fmt: skip
    if facts.unpriced(finding):
        lines = [("saved", facts.NO_SHAPES)]
    elif not finding.device_us:
        lines = [("time", "Nothing was timed, so no time saved is claimed."), lines[2]] if step else [lines[0]]
    return html.Section(
        [
            html.H2("Why these microseconds", id="savings"),
            fact_list(lines),
            _formula(finding),
            _sites(finding),
        ]
    )


def _of_step(saved: float, step: float, cap: float) -> str:
    if ratio(saved, step) is None:
        return "The wall time of the step is not known."
    if not saved:
        return f"nothing of {duration(step)}: the step does not wait for these kernels"
    return f"{facts.of_step(saved, step, cap)}: {_STEP}"


def _formula(finding: Finding) -> Any:
    site = next((s for s in finding.places if s.formula), None)
    if site is None:
        return None
    at = f" ({safe(site.module)})" if site.module else ""
    return html.Div([html.P(f"The first site{at}:"), html.Pre(html.Code(safe(site.formula)), className="code wrap")])


def _sites(finding: Finding) -> Any:
    if not finding.places:
        return None
    places = finding.places[:_PLACES]
    head = ("module", "kernels", "memory traffic", "kernel time", "ideal", "likely", "formula")
    caption = plural(len(finding.places), "site")
    if len(finding.places) > _PLACES:
        caption += f", the first {_PLACES} shown"
    return details(
        f"{caption}, each with its formula", table(caption, head, map(_site, places), numbers=(1, 2, 3, 4, 5))
    )


def _site(site: Site) -> list[Any]:
    return [
        html.Code(safe(site.module) or facts.place(site.source)),
        f"{count(site.kernels)} → {count(site.kernels_after)}",
        from_to(site.bytes_now, site.bytes_fused),
        duration(site.device_us),
        duration(site.saving.ideal_us),
        duration(site.saving.likely_us),
        html.Code(safe(site.formula)),
    ]
