"""The gate: a run held to its project's budget and to a run before it, and the last runs of the model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, clientside_callback, dcc, html

from auditor.gate.budget import Demands
from auditor.gate_document import Comparison, FindingChange, GateDocument, Measure
from auditor.report import gate_facts as facts
from auditor.report.format import count, duration, percent, plural, ratio, safe, share
from auditor.report.gate_words import amount, number, signed
from auditor.store import RunFilter, RunSummary
from dashboard.components import badges, budget, drawing, links
from dashboard.components.filters import choice
from dashboard.components.page import page, section
from dashboard.components.states import empty, failed, guarded
from dashboard.components.tables import table
from dashboard.components.when import when, written
from dashboard.context import current
from dashboard.data.gate import Judged, judged

dash.register_page(__name__, path="/gate", title="Gate · Fusion Auditor")

_RUNS = 30
"""Runs of the model that are listed, the newest."""
_COUNTS = (("unfused_kernels", "unfused"), ("avoidable_kernels", "avoidable"), ("kernels", "kernels"))
_TONES = {"worse": "error", "better": "good", "same": "dim", "unknown": "dim"}


@guarded
def layout(model: str = "", baseline: str = "", run: str = "", **_: str) -> html.Div:
    """``run``, or the newest of ``model``, against its project's budget and ``baseline`` (the run before it)."""
    store = current().store
    names = [name for name in store.values_of("name") if name]
    note = (
        "What fusion-audit gate says: counts are the same in every run of one program, so that a change is a change "
        "of the program, and fails; times are noisy, and warn."
    )
    if not names:
        return page("Gate", empty("No audits yet.", html.Code("fusion-audit run script.py")), note=note)
    model = model or store.list_runs(limit=1)[0].name
    runs = store.list_runs(RunFilter(name=model), limit=_RUNS)
    if not runs:
        empty_list = empty(f"No run is called {safe(model)}.")
        return page("Gate", _choices(names, model, runs, "", ""), empty_list, note=note)
    held = store.summary(run) if run else runs[0]
    return page("Gate", _choices(names, model, runs, run, baseline), *_body(held, baseline, runs), note=note)


def _choices(names: list[str], model: str, runs: list[RunSummary], run: str, baseline: str) -> html.Div:
    labels = [_label(each) for each in runs]
    held, against = (_label(current().store.summary(ref)) if ref else "" for ref in (run, baseline))
    return html.Div(
        [
            choice("gate-model", "Model", names, model, everything="Newest run's"),
            choice("gate-run", "Run", labels, held, everything="The newest", css="broad"),
            choice("gate-baseline", "Baseline", labels, against, everything="The run before", css="broad"),
            html.Div(id="gate-address", hidden=True),
        ],
        className="filters",
    )


def _label(run: RunSummary) -> str:
    return f"{written(run.created)} · {run.id}"


def _body(run: RunSummary, baseline: str, runs: list[RunSummary]) -> list[Any]:
    before = [each.id for each in runs if (each.created, each.id) < (run.created, run.id)]
    judgement = judged(run, baseline or (before[0] if before else ""))
    gate = judgement.gate
    shown = [] if gate is None else [_verdict(gate), budget.limits(gate), *_compared(gate), budget.next_steps(gate)]
    if gate is None and not judgement.problems:
        only = dcc.Link(safe(run.id), href=links.run(run.id))
        shown = [
            empty("Nothing to hold this run to.", html.Span(["There is no run before ", only, ", and no budget."]))
        ]
    return [*map(failed, judgement.problems), *shown, budget.budget_of(judgement, run), _history(run, runs, judgement)]


def _compared(gate: GateDocument) -> list[Any]:
    found = gate.comparison
    return [] if found is None else [_measures(found), _findings(found, gate.root)]


def _verdict(gate: GateDocument) -> html.Div:
    outcome = facts.outcome(gate)
    found = gate.comparison
    line: list[Any] = ["Run ", dcc.Link(safe(gate.run.id), href=links.run(gate.run.id)), " of ", when(gate.run.created)]
    if found is not None:
        before, after = found.before, found.after
        line += [
            " against ", dcc.Link(safe(before.id), href=links.run(before.id)), " of ", when(before.created), " · ",
            dcc.Link("Compare in detail", href=links.compare(before.id, after.id)),
        ]  # fmt: skip
    warned = any(check.status == "warned" for check in gate.checks)
    return html.Div(
        [
            html.P(html.Strong(f"{outcome[0].upper()}{outcome[1:]}.{_came(found)}")),
            html.P(line),
            *[html.P(remark, className="dim") for remark in gate.remarks],
        ],
        className=f"callout {'error' if not gate.passed else 'warning' if warned else 'good'}",
    )


def _came(found: Comparison | None) -> str:
    new = sum(change.change in ("new", "more") for change in found.findings) if found else 0
    return f" {plural(new, 'finding')} {'is' if new == 1 else 'are'} new or larger." if new else ""


def _measures(found: Comparison) -> html.Section:
    head = ("a step", "baseline", "this run", "change", "verdict")
    return section("Counts", table("What a budget can hold", head, map(_measure, found.measures), numbers=(1, 2, 3)))


def _measure(measure: Measure) -> list[Any]:
    kind = [] if measure.counted else [html.Span(" measured", className="dim")]
    return [
        [measure.label, *kind],
        *("–" if value is None else amount(value, measure.unit) for value in (measure.before, measure.after)),
        _change(measure),
        badges.badge(measure.verdict, _TONES[measure.verdict]),
    ]


def _change(measure: Measure) -> str:
    before, after = measure.before, measure.after
    if before is None or after is None:
        return "–"
    words = signed(before, after, measure.unit)
    part = ratio(abs(after - before), before) if measure.unit != "share" else None
    return f"{words} ({words[0]}{percent(part)})" if part else words


_SHOWN = {"new": ("new", "error"), "more": ("larger", "error"), "fewer": ("smaller", "good"), "fixed": ("gone", "good")}


def _findings(found: Comparison, root: str) -> html.Section | None:
    changed = [change for change in found.findings if change.change in _SHOWN]
    if not changed:
        return section("Findings", html.P("The same findings, none of them larger."))
    head = ("finding", "change", "where", "avoidable before", "avoidable now")
    rows = [_finding(change, found, root) for change in changed]
    return section("Findings", table("Findings that came, grew, shrank or went", head, rows, numbers=(3, 4)))


def _finding(change: FindingChange, found: Comparison, root: str) -> list[Any]:
    word, tone = _SHOWN[change.change]
    there = (found.before.id, change.fingerprint) if change.change == "fixed" else (found.after.id, change.after)
    return [
        [dcc.Link(safe(change.name), href=links.finding(*there)), " ", html.Code(safe(change.rule))],
        badges.badge(word, tone),
        html.Code(facts.change_place(change, root)),
        "–" if change.change == "new" else number(change.avoidable[0]),
        "–" if change.change == "fixed" else number(change.avoidable[1]),
    ]


def _history(held: RunSummary, runs: list[RunSummary], judgement: Judged) -> html.Section:
    limits = _plain_limits(held.name, judgement.demands) if all(run.source == "profile" for run in runs) else {}
    columns = [(key, label + (f", at most {number(limits[key])}" if key in limits else "")) for key, label in _COUNTS]
    head = ("run", "recorded", *(label for _, label in columns), "memory-bound", "step", "gate")
    rows = [_run(run, held, limits) for run in runs]
    oldest_first = runs[::-1]
    lines = [
        *[
            _line(label, [float(getattr(r, key)) for r in oldest_first], count(getattr(runs[0], key)))
            for key, label in _COUNTS
        ],
        _line("step", [r.step_us for r in oldest_first], duration(runs[0].step_us)),
    ]
    trend = html.Div(html.Div(html.Dl(lines), className="trend"), className="trends one") if len(runs) > 1 else None
    title = f"The last {plural(len(runs), 'run')}" if len(runs) > 1 else "The run"
    return section(title, trend, table("Runs of the model, the newest first", head, rows, numbers=(2, 3, 4, 5, 6)))


def _plain_limits(model: str, demands: Demands) -> dict[str, float]:
    """The lowest limit of each count that is about whole runs of ``model``, by the count's key."""
    found: dict[str, float] = {}
    for limit in demands.limits:
        key, scope = limit.kind.key, limit.scope
        whole = not scope.rule and not scope.modules and (not scope.model or fnmatchcase(model, scope.model))
        if limit.most is not None and whole and key in dict(_COUNTS):
            found[key] = min(limit.most, found.get(key, limit.most))
    return found


def _line(label: str, values: list[float], last: str) -> html.Div:
    words = f"{label} over {plural(len(values), 'run')}, {last} at last"
    spark = drawing.sparkline(values, f"gate-spark-{label}", words)
    return html.Div([html.Dt(label), html.Dd(spark), html.Dd(last)])


def _run(run: RunSummary, held: RunSummary, limits: dict[str, float]) -> list[Any]:
    judge = dcc.Link("hold this", href=links.gate(held.name, run=run.id))
    before = dcc.Link("as baseline", href=links.gate(held.name, run=held.id, baseline=run.id))
    return [
        dcc.Link(html.Code(safe(run.id)), href=links.run(run.id)),
        when(run.created),
        *(_counted(getattr(run, key), limits.get(key)) for key, _ in _COUNTS),
        share(run.memory_bound_us, run.device_us) if run.device_us else "–",
        duration(run.step_us) if run.step_us else "–",
        "this run" if run.id == held.id else [judge, " · ", before],
    ]


def _counted(value: int, most: float | None) -> Any:
    if most is None or value <= most:
        return count(value)
    return [count(value), " ", badges.badge("over", "error")]


clientside_callback(
    ClientsideFunction("gate", "choose"),
    Output("gate-address", "title"),
    Input("gate-model", "value"),
    Input("gate-run", "value"),
    Input("gate-baseline", "value"),
    prevent_initial_call=True,
)
