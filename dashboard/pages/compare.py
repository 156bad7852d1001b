"""Two runs side by side, a step each: what is gone, new, slower, faster, by finding and by kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import dash
from dash import ClientsideFunction, Input, Output, State, callback, clientside_callback, dcc, html

from auditor.errors import AuditError
from auditor.report.format import clip, count, duration, percent, plural, safe
from dashboard.components import grid, links
from dashboard.components.aria import aria
from dashboard.components.filters import select
from dashboard.components.page import page, section
from dashboard.components.states import empty, failed, guarded, unexpected
from dashboard.components.tables import table
from dashboard.components.when import written
from dashboard.context import current
from dashboard.data.compare import Change, Comparison, FindingChange, KernelChange, RunFacts, compare
from dashboard.data.runs import RunLine, list_runs
from dashboard.data.stored import run_id

dash.register_page(__name__, path="/compare", title="Compare · Fusion Auditor")

_CHANGES: tuple[Change, ...] = ("gone", "new", "slower", "faster", "same")
_TONE = {"gone": "good", "faster": "good", "new": "error", "slower": "error", "same": ""}
_SIGN = {"gone": "−", "new": "+", "slower": "▲", "faster": "▼", "same": "="}
_RUNS = 1000
"""Runs that are offered; others can be named in the address."""
_KERNELS = 3000


@guarded
def layout(a: str = "", b: str = "", **_: str) -> html.Div:
    """The page; ``a`` is before, ``b`` is after. Without them the two newest runs of one name are taken."""
    runs = list_runs(limit=_RUNS)
    if not runs:
        return page("Compare", empty("No audits yet.", html.Code("fusion-audit run script.py")))
    before, after = _picked(a, runs, 1), _picked(b, runs, 0)
    return page(
        "Compare",
        html.Div(
            [
                _choice("compare-a", "Before", runs, before),
                html.Button("Swap", id="compare-swap", type="button", **aria(label="Swap before and after")),
                _choice("compare-b", "After", runs, after),
            ],
            className="filters",
            role="group",
            **aria(label="The two runs"),
        ),
        dcc.Loading(
            html.Div(id="compare-result", **aria(live="polite")), delay_show=300, overlay_style={"opacity": 0.4},
            custom_spinner=html.Div("Comparing …", className="waiting", role="status"),
        ),
        html.Div(id="compare-address", hidden=True),
    )  # fmt: skip


def _picked(ref: str, runs: Sequence[RunLine], otherwise: int) -> str:
    """The id of the run that an address names; where it names none, the newest or the one of its name before it."""
    if ref:
        return run_id(ref)
    same = [run for run in runs if run.name == runs[0].name]
    return same[min(otherwise, len(same) - 1)].id


def _choice(ident: str, label: str, runs: Sequence[RunLine], value: str) -> html.Div:
    options = [{"value": run.id, "label": _label(run)} for run in runs]
    if value not in {run.id for run in runs}:
        options.append({"value": value, "label": _label(current().store.summary(value))})
    return select(ident, label, options, value, css="grow")


def _label(run: Any) -> str:
    return " · ".join(part for part in (clip(safe(run.name), 40), written(run.created), run.id) if part)


clientside_callback(
    ClientsideFunction("compare", "swap"),
    Output("compare-a", "value"),
    Output("compare-b", "value"),
    Input("compare-swap", "n_clicks"),
    State("compare-a", "value"),
    State("compare-b", "value"),
    prevent_initial_call=True,
)
clientside_callback(
    ClientsideFunction("compare", "address"),
    Output("compare-address", "title"),
    Input("compare-a", "value"),
    Input("compare-b", "value"),
)


@callback(Output("compare-result", "children"), Input("compare-a", "value"), Input("compare-b", "value"))
def _compare(before: str | None, after: str | None) -> Any:
    if not before or not after:
        return empty("Choose two runs.", "The first is taken as before, the second as after.")
    try:
        return _result(compare(before, after))
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("comparison"))


def _result(found: Comparison) -> list[Any]:
    notes = [html.Li(remark) for remark in found.remarks]
    return [
        *([html.Ul(notes, className="callout warning")] if notes else []),
        section("One step", _steps(found.before, found.after)),
        section("Findings", *_findings(found)),
        section("Kernels", *_kernels(found.kernels), note="By name, a step each; the largest difference first."),
    ]


def _steps(before: RunFacts, after: RunFacts) -> Any:
    rows: list[list[Any]] = [["run", _link(before), _link(after), ""]]
    for label, measure, unit in (
        ("step time", "step_us", "us"), ("kernel time", "device_us", "us"), ("memory-bound", "memory_bound_us", "us"),
        ("likely saving of kernel time", "likely_us", "us"), ("kernels", "kernels", "n"),
        ("unfused kernels", "unfused_kernels", "n"), ("avoidable kernels", "avoidable_kernels", "n"),
        ("findings", "findings", "n"),
    ):  # fmt: skip
        pair = float(getattr(before, measure)), float(getattr(after, measure))
        rows.append([label, *(_figure(value, unit) for value in pair), _difference(pair, unit)])
    return table("The two runs, one step each", ("figure", "before", "after", "difference"), rows, numbers=(1, 2, 3))


def _link(run: RunFacts) -> Any:
    return dcc.Link(run.name or run.id, href=links.run(run.id), title=f"{run.id} · {run.device}")


def _figure(value: float, unit: str) -> str:
    if unit == "us":
        return duration(value) if value else "–"
    return count(round(value)) if value >= 10 or value == round(value) else f"{value:.1f}"


def _difference(pair: tuple[float, float], unit: str, *, exists: bool = False) -> Any:
    """What it became more or less: the sign tells, the colour only helps.

    A time of 0 is one that is not known, unless ``exists`` says that the other run does not have the thing at all.
    """
    before, after = pair
    if before == after or (unit == "us" and not (before and after) and not exists):
        return "–"
    sign = "+" if after > before else "−"
    part = f" ({sign}{percent(abs(after - before) / before)})" if before else ""
    return html.Span(
        f"{sign}{_figure(abs(after - before), unit)}{part}", className="bad-text" if after > before else "good-text"
    )


def _mark(change: Change) -> html.Span:
    return html.Span(
        [html.Span(_SIGN[change], **aria(hidden="true")), f" {change}"], className=f"badge {_TONE[change]}"
    )


def _tally(changes: Sequence[Any], noun: str) -> html.P:
    found = Counter(each.change for each in changes)
    parts: list[Any] = [plural(len(changes), noun), ": "]
    for change in _CHANGES:
        if found[change]:
            parts += [_mark(change), f" {count(found[change])}  "]
    return html.P(parts, className="note")


def _findings(found: Comparison) -> list[Any]:
    changes = found.findings
    if not changes:
        return [empty("Neither run has a finding.")]
    rows = [
        [
            _finding(each, found), _mark(each.change), each.module_class or "–", _source(each.source),
            _both(each.sites, "n"), _both(each.kernels, "n"), _both(each.device_us, "us"),
            _difference(each.device_us, "us", exists=max(each.device_us) > 0), _both(each.likely_us, "us"),
        ]
        for each in changes
    ]  # fmt: skip
    head = ("finding", "change", "module class", "source", "sites", "kernels", "time", "difference", "likely saving")
    shown = table("Findings of both runs, before and after", head, rows, numbers=(4, 5, 6, 7, 8))
    return [_tally(changes, "finding"), shown]


def _finding(each: FindingChange, found: Comparison) -> Any:
    """Its page in the run that has it, the later where both do."""
    there = (found.before.id, each.fingerprint) if each.change == "gone" else (found.after.id, each.after)
    label: list[Any] = [html.Strong(each.rule), f" {each.name}"]
    return dcc.Link(label, href=links.finding(*there), style={"whiteSpace": "nowrap"})


def _source(source: str) -> Any:
    return html.Code(clip(source, 34), title=source, style={"whiteSpace": "nowrap"}) if source else "–"


def _both(pair: tuple[float, float], unit: Literal["n", "us"]) -> str:
    before, after = (_figure(value, unit) for value in pair)
    return before if before == after else f"{before} → {after}"


def _kernels(changes: Sequence[KernelChange]) -> list[Any]:
    if not changes:
        return [empty("No kernels to compare.", "One of the runs has no table of kernels, or both are empty.")]
    rows = [_row(i, each) for i, each in enumerate(changes[:_KERNELS])]
    columns = [
        {"field": "name", "headerName": "kernel", "flex": 1, "minWidth": 260},
        {"field": "change", "headerName": "change", "width": 110, "cellRenderer": "FusionText",
         "cellRendererParams": {"from": "change_text"}},
        {"field": "kind", "headerName": "kind", "width": 110},
        grid.number("count_after", "kernels", "count_text", width=150),
        grid.number("before_us", "time before", "before_text", width=120),
        grid.number("after_us", "time after", "after_text", width=120),
        grid.number("difference_us", "difference", "difference_text", width=170),
    ]  # fmt: skip
    left = len(changes) - len(rows)
    more = (
        [html.P(f"{plural(left, 'further name')} with smaller differences: not shown.", className="note")]
        if left
        else []
    )
    shown = grid.grid("compare-kernels", columns, rows, height="min(560px, 70vh)")
    return [_tally(changes, "name"), shown, *more]


def _row(index: int, each: KernelChange) -> dict[str, Any]:
    before, after = each.dur_us
    by = after - before
    part = f" ({'+' if by > 0 else '−'}{percent(abs(by) / before)})" if before and by else ""
    return {
        "id": f"c{index}", "name": each.name, "change": each.change, "kind": each.kind,
        "change_text": f"{_SIGN[each.change]} {each.change}", "count_after": each.kernels[1],
        "count_text": _both(each.kernels, "n"), "before_us": before, "before_text": _figure(before, "us"),
        "after_us": after, "after_text": _figure(after, "us"), "difference_us": by,
        "difference_text": f"{'+' if by > 0 else '−'}{duration(abs(by))}{part}" if by else "–",
    }  # fmt: skip
