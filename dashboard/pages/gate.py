"""The gate: what a budget would hold, over the last runs of a model, and whether the last one is worse."""

from __future__ import annotations

from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, clientside_callback, dcc, html

from auditor.document import Finding
from auditor.errors import AuditError
from auditor.report import facts
from auditor.report.format import count, duration, percent, plural, ratio, safe, share
from auditor.store import RunFilter, RunSummary
from dashboard.components import badges, drawing, links
from dashboard.components.filters import choice
from dashboard.components.page import page, section
from dashboard.components.states import empty, failed, guarded, unexpected
from dashboard.components.tables import table
from dashboard.components.when import when, written
from dashboard.context import current
from dashboard.data.gate import Gate, Measure, against

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


def _verdict(gate: Gate) -> html.Div:
    worse = [m.label for m in gate.worse]
    new = len(gate.new) + len(gate.grown)
    if worse:
        text, tone = f"Worse: {', '.join(worse)}.", "error"
    elif any(m.counted and m.verdict == "better" for m in gate.measures):
        text, tone = "Better, and worse in nothing that is counted.", "good"
    else:
        text, tone = "No change in what is counted.", "good"
    found = f" {plural(new, 'finding')} {'is' if new == 1 else 'are'} new or larger." if new else ""
    before, after = gate.before.run, gate.after.run
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


def _measures(gate: Gate) -> html.Section:
    head = ("a step", "baseline", "last run", "change", "verdict")
    return section("Counts", table("What a budget would hold", head, map(_measure, gate.measures), numbers=(1, 2, 3)))


def _measure(measure: Measure) -> list[Any]:
    kind = [] if measure.counted else [html.Span(" measured", className="dim")]
    return [
        [measure.label, *kind],
        "–" if measure.before is None else measure.written(measure.before),
        "–" if measure.after is None else measure.written(measure.after),
        _change(measure),
        badges.badge(measure.verdict, _TONES[measure.verdict]),
    ]


def _change(measure: Measure) -> str:
    if measure.before is None or measure.after is None:
        return "–"
    moved = measure.after - measure.before
    if not moved:
        return "0"
    sign = "+" if moved > 0 else "−"
    if measure.written is percent:
        return f"{sign}{100 * abs(moved):.1f} points"
    part = ratio(abs(moved), measure.before)
    return f"{sign}{measure.written(abs(moved))}" + (f" ({sign}{percent(part)})" if part else "")


def _findings(gate: Gate) -> html.Section | None:
    if not (gate.new or gate.gone or gate.grown):
        return section("Findings", html.P("The same findings, none of them larger."))
    rows = [_finding("new", "error", None, f, gate.after.run.id) for f in gate.new]
    rows += [_finding("larger", "error", was, now, gate.after.run.id) for was, now in gate.grown]
    rows += [_finding("gone", "good", f, None, gate.before.run.id) for f in gate.gone]
    head = ("finding", "change", "where", "avoidable before", "avoidable now")
    return section("Findings", table("Findings that came, grew or went", head, rows, numbers=(3, 4)))


def _finding(word: str, tone: str, was: Finding | None, now: Finding | None, run: str) -> list[Any]:
    shown = now or was
    assert shown is not None
    return [
        [dcc.Link(safe(shown.name), href=links.finding(run, shown.fingerprint)), " ", html.Code(safe(shown.rule))],
        badges.badge(word, tone),
        html.Code(facts.place(shown.source) or facts.owner(shown)),
        "–" if was is None else count(facts.avoidable(was)),
        "–" if now is None else count(facts.avoidable(now)),
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
