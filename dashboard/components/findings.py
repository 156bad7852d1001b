"""Findings as rows: what each rule found, where, and what it would save."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from auditor.document import Document, Finding
from auditor.report import facts
from auditor.report.format import count, percent, ratio, safe, share
from dashboard.components import badges, links
from dashboard.components.tables import table
from dashboard.data.severity import RuleSettings, rule_settings

_HEAD = ("finding", "where", "sites", "kernels", "memory traffic", "kernel time", "kernel time saved", "of the step")
_NUMBERS = (2, 3, 4, 5, 6, 7)


def findings_table(document: Document, findings: list[Finding], caption: str) -> html.Div:
    """``findings`` of ``document``, a row each, linked to their pages."""
    settings = rule_settings()
    return table(caption, _HEAD, (_row(document, f, settings) for f in findings), numbers=_NUMBERS)


def _row(document: Document, finding: Finding, settings: RuleSettings) -> list[Any]:
    known = document.totals.step_us and not facts.unpriced(finding)
    return [
        _name(document, finding, settings),
        [html.Code(facts.place(finding.source) or "no source line"), html.Div(facts.owner(finding), className="dim")],
        count(finding.sites),
        facts.kernels(finding),
        facts.traffic(finding),
        facts.kernel_time(finding),
        [facts.time_saved(finding), _meter(finding)],
        share(finding.saving.step_us, document.totals.step_us) if known else "–",
    ]


def _name(document: Document, finding: Finding, settings: RuleSettings) -> list[Any]:
    link = dcc.Link(safe(finding.name), href=links.finding(document.run.id, finding.fingerprint))
    marks: list[Any] = [
        badges.severity(settings.severity(finding.rule, finding.severity)),
        " ",
        html.Code(safe(finding.rule)),
        " ",
    ]
    return [link, html.Div([*marks, badges.provenance(finding.provenance)], className="marks")]


def _meter(finding: Finding) -> html.Span | None:
    """The part of the finding's own time that would go, as a bar; the words are its title."""
    part = ratio(finding.saving.likely_us, finding.device_us)
    if part is None or facts.unpriced(finding):
        return None
    width = f"{100 * min(max(part, 0.0), 1.0):.0f}%"
    return html.Span(html.Span(style={"width": width}), className="meter", title=f"{percent(part)} of its kernel time")
