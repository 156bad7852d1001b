"""One rule: its text, what is set for it here, and what it found in the last runs."""

from __future__ import annotations

from typing import Any, get_args

import dash
from dash import Input, Output, State, callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.config import Severity
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.report.format import count, duration, plural, safe
from auditor.store.rule_settings import RuleSetting
from dashboard.components import badges, drawing, links
from dashboard.components.facts import fact_list
from dashboard.components.fields import Checkbox
from dashboard.components.filters import select
from dashboard.components.page import page, section
from dashboard.components.replacement import replacement_view
from dashboard.components.rule_docs import rule_docs
from dashboard.components.shell import LOG_IN
from dashboard.components.states import empty, failed, guarded, loading, unexpected
from dashboard.components.tables import table
from dashboard.components.when import when
from dashboard.context import current
from dashboard.data.hits import RuleHit, RunHits, last_hits
from dashboard.data.rules import all_rules, find_rule
from dashboard.data.severity import rule_settings

dash.register_page(__name__, path_template="/rules/<rule_id>", title="Rule · Fusion Auditor")

_SHOWN = 30


@guarded
def layout(rule_id: str = "", **_: str) -> html.Div:
    """The page of the rule with this id or name."""
    rule = find_rule(rule_id)
    if rule is None:
        known = ", ".join(r.id for r in all_rules())
        raise AuditError(f"No rule {rule_id!r} is loaded here; there are: {known}")
    return page(
        f"{safe(rule.id)} {safe(rule.name)}",
        dcc.Store(id="rule-which", data=rule.id),
        fact_list(_facts(rule)),
        html.Div([html.Section(rule_docs(rule, level=html.H2)), _aside(rule)], className="two docs"),
        section("What takes its place", *replacement_view(rule.replacement)),
        crumbs=[("Rules", "/rules")],
    )


def _facts(rule: Rule) -> list[tuple[str, Any]]:
    return [
        ("family", safe(rule.family)),
        ("severity", html.Span(badges.severity(rule_settings().severity_of(rule)), id="rule-severity-now")),
        ("status", f"{safe(rule.status)}, {plural(len(rule.tests), 'test')} in the rule file"),
        ("replacement", html.Code(safe(rule.replacement)) if rule.replacement else "the rule names none yet"),
        ("file", html.Code(safe(str(rule.path)))),
    ]


def _aside(rule: Rule) -> html.Div:
    return html.Div(
        [
            section("Here", _settings(rule), html.Div(id="rule-saved", role="status")),
            section("Hit history", loading(html.Div(id="rule-history"), "rule-history-wait", "the last runs")),
        ]
    )


def _settings(rule: Rule) -> html.Div:
    setting = current().store.rule_settings.get(rule.id)
    fixed = not current().may_change()
    severities = [{"value": "", "label": f"as set in the project ({rule.severity})"}]
    severities += [{"value": s, "label": s} for s in get_args(Severity)]
    return html.Div(
        [
            html.P(
                "Jobs of this dashboard skip a rule that is off, and its findings are folded away. Severity is how "
                "findings are shown here. Audits from the command line follow pyproject.toml.",
                className="note",
            ),
            Checkbox("rule-enabled", "Enabled", setting.enabled, fixed),
            html.Div(
                select("rule-severity", "Severity", severities, setting.severity or None, disabled=fixed,
                       css="broad"),
                className="filters",
            ),
            html.P(LOG_IN, className="why") if fixed else None,
        ]
    )  # fmt: skip


@callback(
    Output("rule-saved", "children"),
    Output("rule-severity-now", "children"),
    Input("rule-enabled", "checked"),
    Input("rule-severity", "value"),
    State("rule-which", "data"),
    prevent_initial_call=True,
)
def _save(enabled: bool | None, severity: str | None, rule: str) -> tuple[Any, Any]:
    """What became of it, and the badge at the top as it then is."""
    if not current().may_change():
        return failed(LOG_IN), dash.no_update
    known = find_rule(rule)
    if known is None or (severity or "") not in ("", *get_args(Severity)):
        raise PreventUpdate
    try:
        current().store.rule_settings.put(RuleSetting(known.id, bool(enabled), severity or ""))
    except AuditError as error:
        return failed(str(error)), dash.no_update
    return html.P("Saved.", className="good-text"), badges.severity(rule_settings().severity_of(known))


@callback(Output("rule-history", "children"), Input("rule-which", "data"))
def _history(rule: str | None) -> Any:
    if not rule:
        raise PreventUpdate
    try:
        return _hits(rule, last_hits())
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("history"))


def _hits(rule: str, runs: list[RunHits]) -> Any:
    hit = [run for run in runs if rule in run.hits]
    if not hit:
        return empty(f"It found nothing in the last {plural(len(runs), 'run')}." if runs else "No run is stored yet.")
    values = [float(run.hits.get(rule, RuleHit()).avoidable) for run in reversed(runs)]
    words = f"avoidable kernels in the last {plural(len(runs), 'run')}"
    line = drawing.sparkline(values, "rule-spark", words, width=260.0, height=34.0)
    head = ("run", "recorded", "sites", "avoidable", "kernel time saved")
    grid = table(
        f"Runs in which {rule} found something", head, (_hit(rule, run) for run in hit[:_SHOWN]), numbers=(2, 3, 4)
    )
    text = f"In {len(hit)} of the last {plural(len(runs), 'run')}; avoidable kernels, the newest to the right:"
    return [html.P(text, className="note"), line, grid]


def _hit(rule: str, run: RunHits) -> list[Any]:
    hit, summary = run.hits[rule], run.run
    return [
        dcc.Link(safe(summary.name or summary.id), href=links.run(summary.id)),
        when(summary.created),
        count(hit.sites),
        count(hit.avoidable),
        duration(hit.likely_us) if hit.likely_us else "–",
    ]
