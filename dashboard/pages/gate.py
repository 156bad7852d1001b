"""The gate: what a budget would hold, over the last runs of a model, and whether the last one is worse."""

from __future__ import annotations

from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, clientside_callback, dcc, html

from auditor.errors import AuditError
from auditor.gate_document import Comparison, FindingChange, Measure
from auditor.report.format import count, duration, percent, plural, ratio, safe, share
from auditor.report.gate_words import amount, line_of, number, signed
from auditor.store import RunFilter, RunSummary
from dashboard.components import badges, drawing, links
from dashboard.components.filters import choice
from dashboard.components.page import page, section
from dashboard.components.states import empty, failed, guarded, unexpected
from dashboard.components.tables import table
from dashboard.components.when import when, written
from dashboard.context import current
from dashboard.data.gate import against

dash.register_page(__name__, path="/gate", title="Gate · Fusion Auditor")

_RUNS = 30
"""Runs of the model that are listed, the newest."""
_TONES = {"worse": "error", "better": "good", "same": "dim", "unknown": "dim"}


@guarded
def layout(model: str = "", baseline: str = "", **_: str) -> html.Div:
    """The newest run of ``model`` against ``baseline``, which is the run before it where none is given."""
    store = current().store
    names = [name for name in store.values_of("name") if name]
    note = (
        "The counts that a budget would hold. They are the same in every run of one program, so a change is a change "
        "of the program; times are shown beside them, for they are noisy."
    )
    if not names:
        return page("Gate", empty("No audits yet.", html.Code("fusion-audit run script.py")), note=note)
    model = model or store.list_runs(limit=1)[0].name
    runs = store.list_runs(RunFilter(name=model), limit=_RUNS)
    return page("Gate", _choices(names, model, baseline, runs), *_body(model, baseline, runs), note=note)


def _choices(names: list[str], model: str, baseline: str, runs: list[RunSummary]) -> html.Div:
    labels = [_label(run) for run in runs[1:]]
    chosen = _label(current().store.summary(baseline)) if baseline else ""
    return html.Div(
        [
            choice("gate-model", "Model", names, model, everything="Newest run's"),
            choice("gate-baseline", "Baseline", labels, chosen, everything="The run before", css="broad"),
            html.Div(id="gate-address", hidden=True),
        ],
        className="filters",
    )


def _label(run: RunSummary) -> str:
    return f"{written(run.created)} · {run.id}"


def _body(model: str, baseline: str, runs: list[RunSummary]) -> list[Any]:
    if not runs:
        return [empty(f"No run is called {safe(model)}.")]
    if not baseline and len(runs) < 2:
        only = dcc.Link(safe(runs[0].id), href=links.run(runs[0].id))
        return [
            empty("One run has nothing to be compared with.", html.Span(["The only run is ", only, "."])),
            _history(runs),
        ]
    try:
        gate = against(baseline or runs[1].id, runs[0].id)
    except AuditError as error:
        return [failed(str(error)), _history(runs)]
    except Exception:
        return [failed(unexpected("gate")), _history(runs)]
    return [_verdict(gate), _measures(gate), _findings(gate), _history(runs)]


def _verdict(gate: Comparison) -> html.Div:
    worse = [m.label for m in gate.measures if m.counted and m.verdict == "worse"]
    new = sum(change.change in ("new", "more") for change in gate.findings)
    if worse:
        text, tone = f"Worse: {', '.join(worse)}.", "error"
    elif any(m.counted and m.verdict == "better" for m in gate.measures):
        text, tone = "Better, and worse in nothing that is counted.", "good"
    else:
        text, tone = "No change in what is counted.", "good"
    found = f" {plural(new, 'finding')} {'is' if new == 1 else 'are'} new or larger." if new else ""
    before, after = gate.before, gate.after
    line: list[Any] = [
        "Run ", dcc.Link(safe(after.id), href=links.run(after.id)), " of ", when(after.created), " against ",
        dcc.Link(safe(before.id), href=links.run(before.id)), " of ", when(before.created), " · ",
        dcc.Link("Compare in detail", href=links.compare(before.id, after.id)),
    ]  # fmt: skip
    return html.Div(
        [
            html.P(html.Strong(text + found)),
            html.P(line),
            *[html.P(remark, className="dim") for remark in gate.remarks],
        ],
        className=f"callout {tone}",
    )


def _measures(gate: Comparison) -> html.Section:
    head = ("a step", "baseline", "last run", "change", "verdict")
    return section("Counts", table("What a budget would hold", head, map(_measure, gate.measures), numbers=(1, 2, 3)))


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


def _findings(gate: Comparison) -> html.Section | None:
    changed = [change for change in gate.findings if change.change in _SHOWN]
    if not changed:
        return section("Findings", html.P("The same findings, none of them larger."))
    head = ("finding", "change", "where", "avoidable before", "avoidable now")
    rows = [_finding(change, gate) for change in changed]
    return section("Findings", table("Findings that came, grew, shrank or went", head, rows, numbers=(3, 4)))


def _finding(change: FindingChange, gate: Comparison) -> list[Any]:
    word, tone = _SHOWN[change.change]
    run = gate.before.id if change.change == "fixed" else gate.after.id
    return [
        [dcc.Link(safe(change.name), href=links.finding(run, change.fingerprint)), " ", html.Code(safe(change.rule))],
        badges.badge(word, tone),
        html.Code(line_of(change.source) or safe(change.module_class)),
        "–" if change.change == "new" else number(change.avoidable[0]),
        "–" if change.change == "fixed" else number(change.avoidable[1]),
    ]


def _history(runs: list[RunSummary]) -> html.Section:
    head = ("run", "recorded", "unfused", "avoidable", "kernels", "memory-bound", "step", "gate")
    rows = [_run(run, runs[0].name, newest=i == 0) for i, run in enumerate(runs)]
    oldest_first = runs[::-1]
    lines = [
        _line("unfused", [float(r.unfused_kernels) for r in oldest_first], count(runs[0].unfused_kernels)),
        _line("avoidable", [float(r.avoidable_kernels) for r in oldest_first], count(runs[0].avoidable_kernels)),
        _line("kernels", [float(r.kernels) for r in oldest_first], count(runs[0].kernels)),
        _line("step", [r.step_us for r in oldest_first], duration(runs[0].step_us)),
    ]
    trend = html.Div(html.Div(html.Dl(lines), className="trend"), className="trends one") if len(runs) > 1 else None
    title = f"The last {plural(len(runs), 'run')}" if len(runs) > 1 else "The run"
    return section(title, trend, table("Runs of the model, the newest first", head, rows, numbers=(2, 3, 4, 5, 6)))


def _line(label: str, values: list[float], last: str) -> html.Div:
    words = f"{label} over {plural(len(values), 'run')}, {last} at last"
    spark = drawing.sparkline(values, f"gate-spark-{label}", words)
    return html.Div([html.Dt(label), html.Dd(spark), html.Dd(last)])


def _run(run: RunSummary, model: str, *, newest: bool) -> list[Any]:
    baseline = "last run" if newest else dcc.Link("as baseline", href=links.gate(model, baseline=run.id))
    return [
        dcc.Link(html.Code(safe(run.id)), href=links.run(run.id)),
        when(run.created),
        count(run.unfused_kernels),
        count(run.avoidable_kernels),
        count(run.kernels),
        share(run.memory_bound_us, run.device_us) if run.device_us else "–",
        duration(run.step_us) if run.step_us else "–",
        baseline,
    ]


clientside_callback(
    ClientsideFunction("gate", "choose"),
    Output("gate-address", "title"),
    Input("gate-model", "value"),
    Input("gate-baseline", "value"),
    prevent_initial_call=True,
)
