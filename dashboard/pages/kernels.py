"""Every kernel of a run in a grid: sorted, filtered, grouped, and as CSV.

The server holds them all; the grid asks for a page at a time.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import dash
from dash import ClientsideFunction, Input, Output, State, callback, clientside_callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.errors import AuditError
from auditor.report.format import clip, count, duration, percent, plural
from dashboard.components import grid, links
from dashboard.components.filters import select
from dashboard.components.page import run_page
from dashboard.components.states import empty, failed, guarded, unexpected
from dashboard.data.kernel_groups import MEASURES, grouped
from dashboard.data.kernel_query import LONGEST_FIRST, from_grid, from_text, to_grid, to_text
from dashboard.data.kernel_table import KernelTable, kernel_table, noun
from dashboard.data.kernels import GROUPS, Filter, Query, page
from dashboard.data.stored import head

dash.register_page(__name__, path_template="/run/<run_id>/kernels", title="Kernels · Fusion Auditor")

_LABELS = {
    "name": "kernel", "dur_us": "time, µs", "kind": "kind", "op_name": "op", "module": "module",
    "module_class": "module class", "rule": "finding", "source": "source", "start_us": "start, µs", "phase": "phase",
    "stream": "stream", "device": "device",
}  # fmt: skip
_WIDTHS = {"name": 360, "kind": 110, "op_name": 150, "module": 220, "module_class": 140, "rule": 210, "source": 160,
           "phase": 100, "dur_us": 120, "start_us": 130, "stream": 90, "device": 90}  # fmt: skip
_NUMBERS = ("dur_us", "start_us", "stream", "device")
_TIMES = ("dur_us", "start_us")
_HINT = (
    "The longest kernels come first; click a head for another order. What is typed under a head narrows the list: "
    "under a time it is the least."
)
_NAME, _GROUP_NAME = 40, 52
"""Characters of a name: its middle is left out, since many differ at their ends alone."""
_GROUP_ROWS = 5000
"""Groups that are shown: no reader looks at more, and a grid of all would be slow."""
_PAGE_ROWS = 100


@guarded
def layout(
    run_id: str = "latest", filter: str = "", sort: str = "", group: str = "", group_sort: str = "", **_: str
) -> html.Div:
    """The page; the parameters are those of the address (see :mod:`dashboard.data.kernel_query`)."""
    found = head(run_id)
    document = found.document
    if not {"kernels", "ops"} <= set(found.table_names):
        return run_page(document, "Kernels", empty("This run has no table of kernels.", "Record it again to see them."))
    query, problem = _asked(filter, sort)
    by = group if group in GROUPS else ""
    order, _problem = _asked("", group_sort)
    models, _order = to_grid(query)
    says = html.Span("Loading the kernels …", id="kernels-says", className="why", role="status")
    return run_page(
        document,
        "Kernels",
        html.Div([_choice(by), html.Div(id="kernels-csv"), says], className="filters"),
        html.Div(problem, id="kernels-problem"),
        html.Div([html.P(_HINT, className="note"), _grid(query, models)], id="kernels-one-by-one", hidden=bool(by)),
        html.Div(id="kernels-groups", hidden=not by),
        dcc.Store(id="kernels-run", data=document.run.id),
        dcc.Store(id="kernels-query", data=dict(zip(("filter", "sort"), to_text(query), strict=True))),
        dcc.Store(id="kernels-group-order", data=_order_text(order.sort)),
        dcc.Store(id="kernels-shown"),
        html.Div(id="kernels-address", hidden=True),
    )  # fmt: skip


def _asked(filters: str, sort: str) -> tuple[Query, Any]:
    """The query of the address, and what is wrong with it; then all kernels are shown."""
    try:
        return from_text(filters, sort), None
    except AuditError as error:
        return Query(sort=LONGEST_FIRST), failed(str(error), "The address can't be read; all kernels are shown")


def _order_text(sort: tuple[tuple[str, bool], ...]) -> str:
    """Of the groups, for an address: those of most time come first by themselves."""
    return to_text(Query(sort=sort))[1]


def _choice(by: str) -> html.Div:
    options = [{"value": "", "label": "no group"}, *({"value": column, "label": _LABELS[column]} for column in GROUPS)]
    return select("kernels-group", "Group by", options, by or None)


def _grid(query: Query, models: dict[str, Any]) -> Any:
    return grid.grid(
        "kernels-grid", _columns(query), None, height="min(640px, 72vh)",
        rowModelType="infinite", filterModel=models,
        options={
            "cacheBlockSize": _PAGE_ROWS, "maxBlocksInCache": 20, "rowBuffer": 0, "infiniteInitialRowCount": 1,
            "maxConcurrentDatasourceRequests": 1, "blockLoadDebounceMillis": 10, "multiSortKey": "ctrl",
        },
    )  # fmt: skip


def _columns(query: Query) -> list[dict[str, Any]]:
    order = {column: (i, "desc" if down else "asc") for i, (column, down) in enumerate(query.sort)}
    columns = []
    for field, label in _LABELS.items():
        column: dict[str, Any] = {"field": field, "headerName": label, "width": _WIDTHS[field], **_filter(field)}
        if field in order:
            column |= {"sortIndex": order[field][0], "sort": order[field][1]}
        if field in _TIMES:
            column |= {
                "sortingOrder": ["desc", "asc", None],
                "cellRenderer": "FusionText",
                "cellRendererParams": {"from": f"{field}_text"},
                "cellClass": "num",
            }
        elif field == "name":
            column |= {"cellRenderer": "FusionLink", "cellRendererParams": {"href": "at", "from": "name_text"}}
        elif field == "rule":
            column |= {"cellRenderer": "FusionLink", "cellRendererParams": {"href": "finding"}}
        columns.append(column)
    return columns


def _filter(field: str) -> dict[str, Any]:
    kind = "agNumberColumnFilter" if field in _NUMBERS else "agTextColumnFilter"
    settings: dict[str, Any] = {"maxNumConditions": 1, "debounceMs": 120, "buttons": []}
    if field in _TIMES:  # nobody knows one to the digit
        settings["defaultOption"] = "greaterThanOrEqual"
    return {
        "filter": kind,
        "floatingFilter": True,
        "filterParams": settings,
        "suppressFloatingFilterButton": True,
        "suppressHeaderFilterButton": True,
    }


@callback(
    Output("kernels-grid", "getRowsResponse"),
    Output("kernels-query", "data"),
    Output("kernels-problem", "children"),
    Input("kernels-grid", "getRowsRequest"),
    State("kernels-run", "data"),
    prevent_initial_call=True,
)
def _rows(request: dict[str, Any] | None, run: str | None) -> tuple[Any, Any, Any]:
    if not request or not run:
        raise PreventUpdate
    nothing = {"rowData": [], "rowCount": 0}
    try:
        query = from_grid(request.get("filterModel"), request.get("sortModel"))
        return _answer(run, query, request), dict(zip(("filter", "sort"), to_text(query), strict=True)), None
    except AuditError as error:
        return nothing, dash.no_update, failed(str(error))
    except Exception:
        return nothing, dash.no_update, failed(unexpected("list of kernels"))


def _answer(run: str, query: Query, request: dict[str, Any]) -> dict[str, Any]:
    start = max(int(request.get("startRow") or 0), 0)
    stop = min(int(request.get("endRow") or 0) or start + _PAGE_ROWS, start + 10 * _PAGE_ROWS)
    found = page(kernel_table(run), query, start, stop)
    return {"rowData": [_row(run, row) for row in found.rows], "rowCount": found.total}


def _row(run: str, row: dict[str, Any]) -> dict[str, Any]:
    at = f"{links.run(run, 'timeline')}?kernel={row['kernel']}"
    finding = links.finding(run, row["fingerprint"]) if row["fingerprint"] else ""
    texts = {f"{column}_text": f"{row[column]:,.2f}" for column in _TIMES} | {"name_text": clip(row["name"], _NAME)}
    return {**row, **texts, "id": f"k{row['kernel']}", "at": at, "finding": finding}


@callback(
    Output("kernels-says", "children"),
    Output("kernels-groups", "children"),
    Output("kernels-groups", "hidden"),
    Output("kernels-one-by-one", "hidden"),
    Input("kernels-query", "data"),
    Input("kernels-group", "value"),
    State("kernels-group-order", "data"),
    State("kernels-run", "data"),
)
def _show(asked: dict[str, str] | None, by: str | None, order: str | None, run: str | None) -> tuple[Any, ...]:
    if not run:
        raise PreventUpdate
    asked, by = asked or {}, by if by in GROUPS else ""
    try:
        table, query = kernel_table(run), from_text(asked.get("filter", ""), asked.get("sort", ""))
        found = page(table, query, 0, 0)
        groups = _groups(table, query, by, from_text("", order or "").sort) if by else None
    except AuditError as error:
        return "", failed(str(error)), False, True
    except Exception:
        return "", failed(unexpected("list of kernels")), False, True
    return _says(table, found.total, found.dur_us), groups, not by, bool(by)


@callback(
    Output("kernels-csv", "children"),
    Output("kernels-shown", "data"),
    Input("kernels-query", "data"),
    Input("kernels-group", "value"),
    Input("kernels-group-order", "data"),
    State("kernels-run", "data"),
)
def _addresses(
    asked: dict[str, str] | None, by: str | None, order: str | None, run: str | None
) -> tuple[Any, dict[str, str]]:
    """What is shown, as the CSV's address and the page's hold it. Apart, since it follows each click on a head."""
    if not run:
        raise PreventUpdate
    grouped_by = {"group": by or "", "group_sort": order or ""} if by in GROUPS else {"group": "", "group_sort": ""}
    shown = {**(asked or {}), **grouped_by}
    return _csv(run, shown), shown


def _says(table: KernelTable, total: int, dur_us: float) -> str:
    of = f" of {count(len(table))}" if total < len(table) else ""
    return f"{count(total)}{of} {noun(table, len(table))} · {duration(dur_us)}"


def _csv(run: str, shown: dict[str, str]) -> Any:
    given = {key: value for key, value in shown.items() if value}
    address = f"{links.run(run, 'kernels.csv')}{'?' + urlencode(given) if given else ''}"
    return html.A("Download CSV", href=address, className="button", download="")


def _groups(table: KernelTable, query: Query, by: str, order: tuple[tuple[str, bool], ...]) -> Any:
    found = grouped(table, Query(query.filters), by)
    if not found:
        return empty("No kernel passes these filters.")
    rows = [_group(table.run, query, by, i, row) for i, row in enumerate(found[:_GROUP_ROWS])]
    left = len(found) - len(rows)
    note = f"{plural(len(found), 'group')}" + (f", the {count(_GROUP_ROWS)} of most time shown" if left else "")
    return [html.P(f"{note}. The name of a group shows its kernels.", className="note"), _group_grid(rows, by, order)]


def _group(run: str, query: Query, by: str, index: int, row: dict[str, Any]) -> dict[str, Any]:
    name = str(row["group"])
    only = Filter(by, "equals", name) if name else Filter(by, "blank")
    filters, sort = to_text(Query((*(each for each in query.filters if each.column != by), only), query.sort))
    texts = {
        "kernels": count(row["kernels"]), "dur_us": duration(row["dur_us"]), "mean_us": duration(row["mean_us"]),
        "max_us": duration(row["max_us"]), "share": percent(row["share"]), "in_findings": count(row["in_findings"]),
    }  # fmt: skip
    return {
        **row, **{f"{key}_text": text for key, text in texts.items()}, "id": f"g{index}", "group": name or "(none)",
        "group_text": clip(name, _GROUP_NAME) or "(none)",
        "href": links.kernels(run, filter=filters, sort=sort),
    }  # fmt: skip


def _group_grid(rows: list[dict[str, Any]], by: str, order: tuple[tuple[str, bool], ...]) -> Any:
    heads = {"kernels": "kernels", "dur_us": "total time", "mean_us": "mean", "max_us": "longest",
             "share": "of the time", "in_findings": "in findings"}  # fmt: skip
    columns = [grid.link("group", _LABELS[by], "href", "group_text", minWidth=440, flex=1)]
    columns += [grid.number(key, heads[key], f"{key}_text", width=118) for key in MEASURES]
    places = {column: (i, "desc" if down else "asc") for i, (column, down) in enumerate(order)}
    for column in columns:
        if column["field"] in places:
            column["sortIndex"], column["sort"] = places[column["field"]]
        if column["field"] == "share":
            column |= {"cellRenderer": "FusionShare"}
    return grid.grid("kernels-group-grid", columns, rows, height="min(640px, 72vh)")


clientside_callback(
    ClientsideFunction("kernels", "order"),
    Output("kernels-group-order", "data"),
    Input("kernels-group-grid", "columnState"),
    State("kernels-group-order", "data"),
    prevent_initial_call=True,
)
clientside_callback(
    ClientsideFunction("kernels", "address"),
    Output("kernels-address", "title"),
    Input("kernels-shown", "data"),
    prevent_initial_call=True,
)
