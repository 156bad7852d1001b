"""Every stored audit: what it found, how models develop, two of them to compare."""

from __future__ import annotations

from typing import Any

import dash
from dash import ClientsideFunction, Input, Output, callback, clientside_callback, dcc, html

from auditor.errors import AuditError
from auditor.report.format import count, duration, percent, plural, safe, share
from dashboard.components import drawing, grid, links
from dashboard.components.aria import aria
from dashboard.components.filters import choice, search
from dashboard.components.page import page, section
from dashboard.components.states import empty, failed, guarded
from dashboard.components.upload import upload
from dashboard.components.when import written
from dashboard.context import current
from dashboard.data import runs as run_lines
from dashboard.data.runs import RunLine, Trend

dash.register_page(__name__, path="/", title="Runs · Fusion Auditor")

_TRENDS = 12
"""Models whose trend is drawn."""
_POINTS = 60
"""Runs of one trend that are drawn, the newest."""
_SORTABLE = {
    "name", "created", "device", "step_us", "memory_bound", "kernels", "unfused_kernels", "avoidable_kernels",
    "step_saving_us", "findings",
}  # fmt: skip


@guarded
def layout(q: str = "", model: str = "", device: str = "", source: str = "", sort: str = "", **_: str) -> html.Div:
    """The list; the parameters are those of the address."""
    store = current().store
    if not store.count_runs():
        return page("Runs", empty("No audits yet.", *_first_steps()), upload())
    filters = html.Div(
        [
            search("runs-text", "Find", q, "name, id, script, device"),
            choice("runs-model", "Model", store.values_of("name"), model),
            choice("runs-device", "Device", store.values_of("device"), device),
            choice("runs-source", "Source", store.values_of("source"), source),
        ],
        className="filters",
        role="search",
        **aria(label="Runs"),
    )
    return page(
        "Runs",
        filters,
        html.Div(
            [
                html.Div(html.Button("Compare", disabled=True, type="button"), id="runs-compare"),
                html.Span("Select two runs to compare them.", id="runs-hint", className="why", role="status"),
                html.Span(id="runs-count", className="why", role="status"),
            ],
            className="row",
        ),
        html.Div(id="runs-problem"),
        grid.grid(
            "runs-grid", _columns(sort), [], height="min(620px, 70vh)",
            options={
                "rowSelection": {"mode": "multiRow", "enableClickSelection": False, "headerCheckbox": False},
                "selectionColumnDef": {"pinned": "left", "width": 62, "resizable": False, "headerName": "pick"},
            },
        ),
        section("Trends", html.Div(id="runs-trends"), note="Runs of one model on one device, the oldest to the left."),
        upload(),
        html.Div(id="runs-address", hidden=True),
    )  # fmt: skip


def _first_steps() -> list[Any]:
    return [
        html.Code("fusion-audit run script.py"),
        html.Code("fusion-audit import trace.json.gz"),
    ]


def _columns(sort: str) -> list[dict[str, Any]]:
    columns = [
        grid.link("name", "run", "href", pinned="left", width=200),
        grid.number("created", "recorded", "created_text", width=140, type="", cellClass=""),
        {"field": "device", "headerName": "device", "width": 138, "tooltipField": "device"},
        grid.number("step_us", "step", "step_text", width=82),
        grid.number("memory_bound", "memory-bound", "memory_bound_text", width=120, cellRenderer="FusionShare"),
        grid.number("kernels", "kernels", "kernels_text", width=84),
        grid.number("unfused_kernels", "unfused", "unfused_text", width=84),
        grid.number("avoidable_kernels", "avoidable", "avoidable_text", width=90),
        grid.number("step_saving_us", "step time saved", "saving_text", width=138),
        grid.number("findings", "findings", "findings_text", width=88),
        {"field": "source", "headerName": "source", "width": 90},
        {"field": "id", "headerName": "id", "width": 130, "cellClass": "mono"},
    ]
    field, _, way = sort.partition(".")
    if field in _SORTABLE:
        for column in columns:
            if column["field"] == field:
                column["sort"] = "asc" if way == "asc" else "desc"
    return columns


def _row(run: RunLine) -> dict[str, Any]:
    bound = run.memory_bound_share
    saved = f"{duration(run.step_saving_us)} · {share(run.step_saving_us, run.step_us)}" if run.step_us else "–"
    return {
        "id": run.id, "name": safe(run.name or run.id), "href": links.run(run.id), "device": safe(run.device),
        "source": safe(run.source), "created": run.created, "created_text": written(run.created).removesuffix(" UTC"),
        "step_us": run.step_us, "step_text": duration(run.step_us) if run.step_us else "–",
        "memory_bound": bound, "memory_bound_text": "–" if bound is None else percent(bound),
        "kernels": run.kernels, "kernels_text": count(run.kernels),
        "unfused_kernels": run.unfused_kernels, "unfused_text": count(run.unfused_kernels),
        "avoidable_kernels": run.avoidable_kernels, "avoidable_text": count(run.avoidable_kernels),
        "step_saving_us": run.step_saving_us, "saving_text": saved,
        "findings": run.findings, "findings_text": count(run.findings),
    }  # fmt: skip


@callback(
    Output("runs-grid", "rowData"),
    Output("runs-grid", "style"),
    Output("runs-count", "children"),
    Output("runs-trends", "children"),
    Output("runs-problem", "children"),
    Input("runs-text", "value"),
    Input("runs-model", "value"),
    Input("runs-device", "value"),
    Input("runs-source", "value"),
)
def _list(text: str | None, name: str | None, device: str | None, source: str | None) -> tuple[Any, ...]:
    try:
        found = run_lines.list_runs(text=text or "", name=name or "", device=device or "", source=source or "")
    except AuditError as error:
        return [], _height(0), "", None, failed(str(error))
    return (
        [_row(run) for run in found],
        _height(len(found)),
        plural(len(found), "run"),
        _trends(run_lines.trends(found)),
        None,
    )


def _height(rows: int) -> dict[str, str]:
    """As high as its rows, up to most of the window."""
    return {"height": f"min({46 + 34 * max(rows, 2)}px, 68vh)", "width": "100%"}


def _trends(found: list[Trend]) -> Any:
    if not found:
        return empty("No model has two runs on one device yet.", "A second audit of the same script starts its trend.")
    cells = [_trend(trend, i) for i, trend in enumerate(found[:_TRENDS])]
    left = len(found) - _TRENDS
    more = (
        html.P(f"{plural(left, 'further model')}: narrow the list to see it.", className="note") if left > 0 else None
    )
    return [html.Div(cells, className="trends"), more]


def _trend(trend: Trend, index: int) -> html.Div:
    runs = trend.runs[-_POINTS:]
    measures = (
        ("step", [r.step_us for r in runs], duration),
        ("avoidable", [float(r.avoidable_kernels) for r in runs], lambda n: count(round(n))),
        ("step time saved", [r.step_saving_us for r in runs], duration),
    )
    lines = []
    for kind, (label, values, written_as) in enumerate(measures):
        first, last = written_as(values[0]), written_as(values[-1])
        words = f"{label} over {plural(len(runs), 'run')}: {first} at first, {last} at last"
        line = drawing.sparkline(values, f"runs-spark-{index}-{kind}", words)
        lines.append(html.Div([html.Dt(label), html.Dd(line), html.Dd(last)]))
    head = dcc.Link(safe(trend.name) or "unnamed", href=links.gate(trend.name))
    return html.Div(
        [
            html.H3(head),
            html.Div(f"{safe(trend.device)} · {plural(len(trend.runs), 'run')}", className="dim"),
            html.Dl(lines),
        ],
        className="trend",
    )


@callback(Output("runs-compare", "children"), Output("runs-hint", "children"), Input("runs-grid", "selectedRows"))
def _selected(rows: list[dict[str, Any]] | None) -> tuple[Any, str]:
    chosen = sorted(rows or [], key=lambda row: str(row["created"]))
    if len(chosen) != 2:
        text = (
            f"{plural(len(chosen), 'run')} selected: two can be compared."
            if chosen
            else "Select two runs to compare them."
        )
        return html.Button("Compare", disabled=True, type="button"), text
    before, after = chosen
    link = dcc.Link("Compare", href=links.compare(before["id"], after["id"]), className="button")
    return link, f"{before['name']} of {before['created_text']} with {after['name']} of {after['created_text']}"


clientside_callback(
    ClientsideFunction("runs", "address"),
    Output("runs-address", "title"),
    Input("runs-text", "value"),
    Input("runs-model", "value"),
    Input("runs-device", "value"),
    Input("runs-source", "value"),
    Input("runs-grid", "columnState"),
    prevent_initial_call=True,
)
