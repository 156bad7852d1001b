"""All kernels of a step by stream, over time: zoom, pan, and what stands behind each of them."""

from __future__ import annotations

import math
from typing import Any

import dash
from dash import ALL, ClientsideFunction, Input, Output, State, callback, clientside_callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.errors import AuditError
from auditor.report.format import clip, count, duration, share
from dashboard.components import links
from dashboard.components.aria import aria
from dashboard.components.facts import fact_list
from dashboard.components.page import run_page, section
from dashboard.components.states import failed, guarded, unexpected
from dashboard.components.tables import table as plain_table
from dashboard.data.kernel_query import to_text
from dashboard.data.kernel_table import KernelTable, kernel_table
from dashboard.data.kernels import Filter, Query
from dashboard.data.kinds import KINDS, MEANING
from dashboard.data.stored import head
from dashboard.data.timeline import Timeline, View, timeline
from dashboard.figures import timeline as figure

# Dash takes the first page that fits: this one has to come before /run/<run_id>, which would take it for an id.
dash.register_page(__name__, path_template="/run/<run_id>/timeline", title="Timeline · Fusion Auditor", order=1)

_LONGEST = 15
_CONFIG: Any = {"displayModeBar": False, "responsive": True, "scrollZoom": True, "doubleClick": False}
"""Double clicks are those of ``timeline.js``: the first click of one draws anew, which plotly does not get over."""
_EMPTY = {"layout": {"height": 240, "xaxis": {"visible": False}, "yaxis": {"visible": False}}}
_BUTTONS = (
    ("timeline-in", "Zoom in"), ("timeline-out", "Zoom out"), ("timeline-earlier", "Earlier"),
    ("timeline-later", "Later"), ("timeline-whole", "Whole run"),
)  # fmt: skip
_HINT = (
    "Drag over a span or turn the wheel to zoom, drag with Shift to move, double-click anywhere for the whole run; "
    "click a kernel for what stands behind it."
)


@guarded
def layout(run_id: str = "latest", t0: str = "", t1: str = "", kernel: str = "", **_: str) -> html.Div:
    """The page; times of the address are in microseconds from the first kernel."""
    found = head(run_id)
    document = found.document
    if "kernels" not in found.table_names:
        raise AuditError(f"run {document.run.id} has no table of kernels; record it again to see its timeline")
    view = {"run": document.run.id, "t0": _number(t0), "t1": _number(t1), "end": 0.0, "width": 1200}
    buttons = [html.Button(label, id=ident, type="button") for ident, label in _BUTTONS]
    graph = dcc.Graph(id="timeline-graph", figure=_EMPTY, config=_CONFIG, className="timeline")
    return run_page(
        document,
        "Timeline",
        html.Div(buttons, className="row", role="toolbar", **aria(label="Zoom and move", controls="timeline-graph")),
        html.P("Loading the kernels …", id="timeline-says", className="note", role="status"),
        html.Div(id="timeline-problem"),
        html.Div(graph, id="timeline-drawing", role="img", **aria(label="Kernels by stream over time")),
        html.P(_HINT, className="note"),
        html.Div(
            [
                section("Kernel", html.Div(_nothing_chosen(), id="timeline-panel", **aria(live="polite"))),
                section("Time in view", html.Div(id="timeline-kinds")),
            ],
            className="pair",
        ),
        section("Longest kernels in view", html.Div(id="timeline-longest")),
        dcc.Store(id="timeline-view", data=view),
        dcc.Store(id="timeline-kernel", data=_whole(kernel)),
        html.Div(id="timeline-address", hidden=True),
    )


clientside_callback(
    ClientsideFunction("timeline", "move"),
    Output("timeline-view", "data", allow_duplicate=True),
    *(Input(ident, "n_clicks") for ident, _ in _BUTTONS),
    Input("timeline-graph", "relayoutData"),
    Input("timeline-graph", "clickData"),
    State("timeline-view", "data"),
    prevent_initial_call=True,
)
clientside_callback(
    ClientsideFunction("timeline", "pick"),
    Output("timeline-kernel", "data"),
    Input("timeline-graph", "clickData"),
    Input({"type": "timeline-pick", "kernel": ALL, "at": ALL}, "n_clicks"),
    State("timeline-kernel", "data"),
    prevent_initial_call=True,
)
clientside_callback(
    ClientsideFunction("timeline", "address"),
    Output("timeline-address", "title"),
    Input("timeline-view", "data"),
    Input("timeline-kernel", "data"),
    prevent_initial_call=True,
)


@callback(
    Output("timeline-graph", "figure"),
    Output("timeline-says", "children"),
    Output("timeline-problem", "children"),
    Output("timeline-view", "data"),
    Output("timeline-drawing", "aria-label"),
    Input("timeline-view", "data"),
    Input("timeline-kernel", "data"),
    Input("shell-scheme", "data"),
)
def _draw(view: dict[str, Any] | None, kernel: int | None, scheme: str | None) -> tuple[Any, ...]:
    if not view or not scheme:
        raise PreventUpdate
    keep = dash.no_update
    try:
        return _drawn(view, kernel, scheme)
    except AuditError as error:
        return keep, "", failed(str(error)), keep, keep
    except Exception:
        return keep, "", failed(unexpected("timeline")), keep, keep


def _drawn(asked: dict[str, Any], kernel: int | None, scheme: str) -> tuple[Any, ...]:
    known, table, view = _seen(asked, kernel)
    seen = {**asked, "t0": view.t0_us, "t1": view.t1_us, "end": view.end_us}
    words = figure.says(view, known.left_out)
    drawn = figure.draw(view, table, scheme, kernel)
    return drawn, words, None, dash.no_update if seen == asked else seen, f"Kernels by stream over time: {words}"


@callback(
    Output("timeline-kinds", "children"),
    Output("timeline-longest", "children"),
    Input("timeline-view", "data"),
    State("timeline-kernel", "data"),
)
def _describe(view: dict[str, Any] | None, kernel: int | None) -> tuple[Any, Any]:
    """The same in words. Apart from the drawing, which is not to wait for it; errors are told there."""
    if not view:
        raise PreventUpdate
    try:
        known, table, seen = _seen(view, kernel)
        return _kinds(seen), _longest(known, seen, table)
    except AuditError:
        return None, None


def _seen(asked: dict[str, Any], kernel: int | None) -> tuple[Timeline, KernelTable, View]:
    """The timeline, its kernels, and what of them is asked for."""
    run = str(asked["run"])
    known, table = timeline(run), kernel_table(run)
    t0, t1 = _number(asked.get("t0")), _number(asked.get("t1"))
    if t0 is None and t1 is None and kernel is not None and 0 <= kernel < len(table):
        t0, t1 = _around(table, kernel)
    return known, table, known.view(t0, t1, int(_number(asked.get("width")) or 1200))


def _around(table: KernelTable, kernel: int) -> tuple[float, float]:
    """A span in which a kernel can be seen, where an address names a kernel and no times."""
    start, dur = float(table.start_us[kernel]), float(table.dur_us[kernel])
    margin = max(20 * dur, 200.0)
    return start - margin, start + dur + margin


def _kinds(view: View) -> Any:
    """What the time in view goes to: the same as the colours, in figures."""
    busy = float(view.kind_us.sum())
    order = sorted((i for i in range(len(KINDS)) if view.kind_us[i] > 0), key=lambda i: -view.kind_us[i])
    rows = [
        [html.Span(KINDS[i], title=MEANING[KINDS[i]]), duration(view.kind_us[i]), share(view.kind_us[i], busy)]
        for i in order
    ]
    if not rows:
        return html.P("No kernel runs in this span.", className="note")
    return plain_table("Kernel time in view by kind", ("kind", "time", "of the kernel time"), rows, numbers=(1, 2))


def _longest(known: Timeline, view: View, table: KernelTable) -> Any:
    """The way to the kernels without a mouse."""
    rows = [
        [
            _pick(row, "table", clip(table.name.at(row), 80)), duration(float(table.dur_us[row])),
            figure.moment(float(table.start_us[row]), view.t1_us - view.t0_us), table.kind.at(row),
            table.op_name.at(row) or "–", clip(table.module.at(row), 60) or "–",
        ]
        for row in known.longest(view, _LONGEST).tolist()
    ]  # fmt: skip
    if not rows:
        return html.P("No kernel runs in this span.", className="note")
    head = ("kernel", "time", "start", "kind", "op", "module")
    return plain_table("Longest kernels in view", head, rows, numbers=(1, 2))


def _pick(kernel: int, at: str, label: str) -> html.Button:
    """What chooses a kernel; ``at`` tells apart two that choose the same one."""
    css = "timeline-pick" if at == "table" else "quiet"
    return html.Button(label, id={"type": "timeline-pick", "kernel": kernel, "at": at}, type="button", className=css)


@callback(Output("timeline-panel", "children"), Input("timeline-kernel", "data"), State("timeline-view", "data"))
def _panel(kernel: int | None, view: dict[str, Any] | None) -> Any:
    if kernel is None or not view:
        return _nothing_chosen()
    try:
        return _facts(str(view["run"]), kernel)
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("kernel"))


def _facts(run: str, kernel: int) -> Any:
    table, known = kernel_table(run), timeline(run)
    if not 0 <= kernel < len(table):
        raise AuditError(f"run {run} has no kernel {kernel}: it holds {count(len(table))}, counted from 0")
    kind, name = table.kind.at(kernel), table.name.at(kernel)
    start, dur = float(table.start_us[kernel]), float(table.dur_us[kernel])
    facts: list[tuple[str, Any]] = [
        ("kernel", html.Code(name)),
        ("op", html.Code(table.op_name.at(kernel) or "none that the recording knows")),
        ("module", _place(table, kernel)),
        ("source", html.Code(table.source.at(kernel)) if table.source.at(kernel) else "not recorded"),
        ("finding", _finding(table, kernel)),
        ("kind", f"{kind}: {MEANING[kind]}"),
        ("time", f"{duration(dur)}, from {figure.moment(start, dur)} on"),
        ("stream", f"{table.stream[kernel]} of device {table.device[kernel]}"),
        ("phase", table.phase.at(kernel) or "not known"),
        ("same name", _same(table, kernel)),
    ]
    before, after = known.beside(kernel)
    steps = [_pick(row, at, label) for row, at, label in ((before, "before", "Before"), (after, "after", "After"))
             if row is not None]  # fmt: skip
    return [fact_list(facts), html.Div(steps, className="row", role="group", **aria(label="On the same stream"))]


def _place(table: KernelTable, kernel: int) -> Any:
    module, owner = table.module.at(kernel), table.module_class.at(kernel)
    if not module and not owner:
        return "outside of any module"
    return [html.Code(module or "–"), f" ({owner})" if owner else ""]


def _finding(table: KernelTable, kernel: int) -> Any:
    rule = table.rule.at(kernel)
    if not rule:
        return "in none"
    return dcc.Link(rule, href=links.finding(table.run, table.fingerprint.at(kernel)))


def _same(table: KernelTable, kernel: int) -> Any:
    same = table.name.codes == table.name.codes[kernel]
    total, number = float(table.dur_us[same].sum()), int(same.sum())
    text = f"{count(number)} in the run, {duration(total)} together"
    name = table.name.at(kernel)
    filters, _ = to_text(Query((Filter("name", "equals", name),)))
    return dcc.Link(text, href=links.kernels(table.run, filter=filters)) if len(name) < 1500 else text


def _nothing_chosen() -> Any:
    return html.P("No kernel chosen yet: click one, or choose one from the table below.", className="note")


def _number(text: Any) -> float | None:
    """A finite number of an address; None for everything else."""
    try:
        number = float(text)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None
