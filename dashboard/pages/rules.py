"""The rules: what each looks for, and what it found in the last runs."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, callback, dcc, html

from auditor.cli.rules import summary
from auditor.engine.rules import Rule
from auditor.report.format import count, duration, plural, safe
from dashboard.components import badges, links
from dashboard.components.page import page, section
from dashboard.components.states import failed, guarded, loading, unexpected
from dashboard.components.tables import table
from dashboard.context import current
from dashboard.data.hits import RUNS, last_hits
from dashboard.data.rules import all_rules
from dashboard.data.severity import RuleSettings, rule_settings

dash.register_page(__name__, path="/rules", title="Rules · Fusion Auditor")

_HEAD = ("rule", "what it finds", "family", "severity", "here", "runs", "sites", "avoidable", "kernel time saved")


@guarded
def layout(**_: str) -> html.Div:
    """All rules; what they found follows, for it is read from the last runs."""
    waiting = html.Div(_table(None), id="rules-list")
    return page(
        "Rules",
        loading(waiting, "rules-wait", "what the rules found"),
        section("Where they come from", *_sources()),
        dcc.Interval(id="rules-once", interval=1, max_intervals=1),
        note=f"What each found in the last {RUNS} runs.",
    )


def _sources() -> list[Any]:
    folders = current().config.rules
    own = [html.Code(safe(folder)) for folder in folders]
    return [
        html.P(f"{plural(len(all_rules()), 'rule')}: those of the package{', and those in' if own else '.'}"),
        html.Ul([html.Li(folder) for folder in own]) if own else None,
        html.P(["A project's own rules are named in its ", html.Code("pyproject.toml"), " under ",
                html.Code("[tool.fusion-audit]"), "; start one with ", html.Code("fusion-audit rules new NAME"), "."]),
    ]  # fmt: skip


@callback(Output("rules-list", "children"), Input("rules-once", "n_intervals"), prevent_initial_call=True)
def _fill(_: int | None) -> Any:
    try:
        return _table(_totals())
    except Exception:
        return failed(unexpected("list of hits"))


def _totals() -> dict[str, tuple[int, int, int, float]]:
    """By rule: runs, sites, avoidable kernels, likely saving."""
    totals: dict[str, tuple[int, int, int, float]] = {}
    for run in last_hits():
        for rule, hit in run.hits.items():
            runs, sites, avoidable, likely = totals.get(rule, (0, 0, 0, 0.0))
            totals[rule] = (runs + 1, sites + hit.sites, avoidable + hit.avoidable, likely + hit.likely_us)
    return totals


def _table(totals: dict[str, tuple[int, int, int, float]] | None) -> html.Div:
    settings, nothing = rule_settings(), (0, 0, 0, 0.0)
    rows = (_row(rule, settings, totals.get(rule.id, nothing) if totals is not None else None) for rule in all_rules())
    return table("Rules, and what they found in the last runs", _HEAD, rows, numbers=(5, 6, 7, 8), css="rules")


def _row(rule: Rule, settings: RuleSettings, found: tuple[int, int, int, float] | None) -> list[Any]:
    numbers = ["…"] * 4 if found is None else [count(n) for n in found[:3]] + [duration(found[3]) if found[3] else "–"]
    return [
        [dcc.Link(safe(rule.id), href=links.rule(rule.id)), html.Div(safe(rule.name), className="dim nowrap")],
        safe(summary(rule)),
        safe(rule.family),
        badges.severity(settings.severity_of(rule)),
        "on" if settings.is_on(rule.id) else badges.badge("off", "warning"),
        *numbers,
    ]
