"""What was measured when a finding's rule was applied: times with intervals, numerics, memory."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from auditor.document import Finding
from auditor.fix_document import NOT_SELECTED, FixDocument, FixedSite
from auditor.report import fix_facts
from auditor.report.format import safe
from dashboard.components import badges, links
from dashboard.components.code import commands, details
from dashboard.components.facts import fact_list
from dashboard.components.plot import plot
from dashboard.components.states import empty
from dashboard.components.tables import table
from dashboard.components.when import written
from dashboard.context import current

_HEAD = ("state", "module", "sites", "replacement", "provider", "calls", "error / eager's", "gain (95 %)", "why")


def fix_for(run: str, finding: Finding) -> FixDocument | None:
    """The newest fix of ``run`` that tried the finding's rule, else the newest of all; None where there is none."""
    fixes = [fix for fix in reversed(current().store.fixes(run)) if not fix.dry]
    tried = (fix for fix in fixes if any(site.replacement for site in sites_of(fix, finding)))
    return next(tried, fixes[0] if fixes else None)


def sites_of(fix: FixDocument, finding: Finding) -> list[FixedSite]:
    """The sites of a fix that are the finding's."""
    modules = {place.module for place in finding.places} | set(finding.modules)
    return [site for site in fix.sites if site.rule == finding.rule and site.module in modules]


def measured(finding: Finding, fix: FixDocument | None, scheme: str) -> list[Any]:
    """What became of the finding, and of the step as a whole."""
    if fix is None:
        return [empty("Not measured yet.", "Apply and re-measure runs the script again with the replacement in place.")]
    own = sites_of(fix, finding)
    if own and all(site.reason == NOT_SELECTED for site in own):
        return [
            empty(f"Not measured yet for {safe(finding.rule)}.", "The fixes of this run so far tried other rules."),
            details("What the newest of them measured", html.Div(_of_fix(fix, own, finding, scheme))),
        ]
    return _of_fix(fix, own, finding, scheme)


def _of_fix(fix: FixDocument, own: list[FixedSite], finding: Finding, scheme: str) -> list[Any]:
    return [
        html.P([html.Strong(fix_facts.verdict(fix)), html.Span(f" Measured {written(fix.created)}.", className="dim")]),
        _sites(own),
        html.H3("The step, taken in turns"),
        _bars(fix, scheme),
        _timing(fix),
        fact_list(fact for fact in fix_facts.headline(fix) if fact.label not in ("script", "audit after")),
        _predictions(fix, finding),
        *[html.P(safe(note), className="note") for note in fix.notes],
        _after(fix),
    ]


def _sites(own: list[FixedSite]) -> Any:
    if not own:
        return html.P("This fix tried none of the finding's sites.", className="dim")
    rows = [
        [badges.state(group.state), html.Code(group.where), group.cells[2], html.Code(group.replacement or "–"),
         group.provider or "–", *group.cells[6:9], group.reason or "–"]
        for state in fix_facts.STATES
        for group in fix_facts.groups(own, state)
    ]  # fmt: skip
    return table("What became of the finding's sites", _HEAD, rows, numbers=(2, 5, 6, 7))


def _timing(fix: FixDocument) -> Any:
    rows = fix_facts.timing_rows(fix)
    return table("One step of each version", fix_facts.TIMING_HEAD, rows, numbers=(1, 2, 3, 4)) if rows else None


def _bars(fix: FixDocument, scheme: str) -> Any:
    from dashboard.figures import bars

    rows = fix_facts.timing_rows(fix)
    if not rows:
        return None
    words = "; ".join(f"{name}: {step}, {against}" for name, step, against, *_ in rows)
    return plot(
        bars.draw(fix.timing, scheme), f"Time of one step. {words}", html.P(words), height=210, summary="In words"
    )


def _predictions(fix: FixDocument, finding: Finding) -> Any:
    rows = [row for row in fix_facts.prediction_rows(fix) if row[0] == finding.rule]
    if not rows:
        return None
    caption = fix_facts.PREDICTION_TITLE.capitalize()
    return table(caption, fix_facts.PREDICTION_HEAD, rows, numbers=(1, 2, 3, 4, 5), show_caption=True)


def _after(fix: FixDocument) -> Any:
    if not fix.after_run:
        return None
    parts: list[Any] = [
        dcc.Link("The audit after it", href=links.run(fix.after_run)), " · ",
        dcc.Link("Compare before and after", href=links.compare(fix.run, fix.after_run)), " · ",
        dcc.Link("Gate", href=links.gate(_name(fix), baseline=fix.run)),
    ]  # fmt: skip
    usage = fix_facts.usage(fix)
    return html.Div([html.P(parts), *([commands(usage)] if usage else [])])


def _name(fix: FixDocument) -> str:
    return current().store.summary(fix.after_run).name or fix.after_run
