"""The limits that a run is held to: what became of each, where it is set, and what to do about the broken ones."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from auditor.gate_document import Check, Culprit, GateDocument
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_words import amount
from auditor.store import RunSummary
from dashboard.components import badges, links
from dashboard.components.page import section
from dashboard.components.tables import table
from dashboard.data.gate import Judged

_RANK = {"failed": 0, "warned": 1, "passed": 2, "skipped": 3}


def limits(gate: GateDocument) -> html.Section:
    """Every limit that the run is held to, the broken ones first, each with the findings that break it."""
    head = ("limit", "verdict", "this run", "at most", "what that means", "set in")
    checks = sorted(gate.checks, key=lambda check: _RANK[check.status])
    rows = [_limit(gate, check) for check in checks]
    return section("Limits", table("What the run is held to", head, rows, numbers=(2, 3)))


def _limit(gate: GateDocument, check: Check) -> list[Any]:
    least = check.key == "require"
    most = "–" if check.limit is None else f"{'at least ' if least else ''}{amount(check.limit, check.unit)}"
    culprits = check.culprits if check.file else []  # what holds by default is about the findings that are listed below
    return [
        check.title,
        badges.badge(facts.WORDS[check.status], facts.MARKS[check.status]),
        "–" if check.value is None else amount(check.value, check.unit),
        most,
        [check.message, *(_culprit(gate, culprit) for culprit in culprits)],
        html.Code(facts.set_at(check)) if check.file else html.Span("held by default", className="dim"),
    ]


def _culprit(gate: GateDocument, culprit: Culprit) -> html.Div:
    where = facts.shown(culprit.source, gate.root) or safe(culprit.module)
    cost = facts.cost(culprit)
    parts: list[Any] = [
            dcc.Link(safe(culprit.name), href=links.finding(gate.run.id, culprit.fingerprint)),
            " ", html.Code(safe(culprit.rule)),
            f", {culprit.what}",
            *([" at ", html.Code(where)] if where else []),
            f": {cost}" if cost else "",
        ]  # fmt: skip
    return html.Div(parts)


def next_steps(gate: GateDocument) -> html.Section | None:
    """What to type now."""
    if not gate.next:
        return None
    return section("What next", html.Ul([html.Li(html.Code(step)) for step in gate.next]))


def budget_of(judgement: Judged, run: RunSummary) -> html.P:
    """Which file the limits are of, and how to set one."""
    if judgement.demands:
        return html.P(["The budget is that of ", html.Code(safe(judgement.file)), "."], className="dim")
    if judgement.problems:
        return html.P("Without a budget no count may grow.", className="dim")
    if judgement.file:
        where: list[Any] = [html.Code(safe(judgement.file)), " sets no limit"]
    elif run.project:
        where = [f"No settings of the project {safe(run.project)} are on this machine"]
    else:
        where = ["There is no pyproject.toml where this service was started"]
    hint: list[Any] = [
        "; a limit is set under ", html.Code("[tool.fusion-audit]"), ", such as ", html.Code("max_unfused_kernels = 0"),
        ". Without one no count may grow.",
    ]  # fmt: skip
    return html.P([*where, *hint], className="dim")
