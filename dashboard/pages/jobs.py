"""The jobs: what waits, what runs, what came of the others."""

from __future__ import annotations

from typing import Any, get_args

import dash
from dash import ClientsideFunction, Input, Output, callback, clientside_callback, dcc, html

from auditor.errors import AuditError
from auditor.report.format import safe
from dashboard.components import badges, links
from dashboard.components.filters import choice
from dashboard.components.job_panel import KINDS, NO_WORKER, about, sentence, the_jobs
from dashboard.components.page import page
from dashboard.components.states import empty, failed, guarded
from dashboard.components.tables import table
from dashboard.components.when import lasted, when
from dashboard.context import current
from dashboard.jobs.model import Job, State

dash.register_page(__name__, path="/jobs", title="Jobs · Fusion Auditor")

_STATES = get_args(State)
_PAGE = 50
_HEAD = ("job", "about", "state", "queued", "took", "progress or reason")


@guarded
def layout(state: str = "", **_: str) -> html.Div:
    """The newest jobs; ``state`` narrows them to one state."""
    note = "One job runs at a time, so that timings are not disturbed. Jobs survive a restart of the service."
    if current().jobs is None:
        return page("Jobs", empty(NO_WORKER, "Jobs are kept in the store: they are shown where one runs."), note=note)
    chosen = state if state in _STATES else ""
    return page(
        "Jobs",
        html.Div(choice("jobs-state", "State", _STATES, chosen), className="filters"),
        html.Div(_list(chosen, 0), id="jobs-list"),
        html.Div(
            html.Button("Older jobs", id="jobs-more", type="button", className="quiet", hidden=True), className="row"
        ),
        html.Div(id="jobs-older"),
        dcc.Interval(id="jobs-clock", interval=2000),
        html.Div(id="jobs-address", hidden=True),
        note=note,
    )


@callback(Output("jobs-list", "children"), Input("jobs-clock", "n_intervals"), Input("jobs-state", "value"))
def _refresh(_: int | None, state: str | None) -> Any:
    return _list(state or "", 0)


@callback(
    Output("jobs-older", "children"),
    Output("jobs-more", "hidden"),
    Input("jobs-more", "n_clicks"),
    Input("jobs-state", "value"),
)
def _older(clicks: int | None, state: str | None) -> tuple[Any, bool]:
    """Further pages under the first: as many as the button was clicked."""
    if not clicks or dash.ctx.triggered_id == "jobs-state":
        return None, len(_found(state or "", 0)) < _PAGE
    pages = [_found(state or "", _PAGE * (i + 1)) for i in range(min(clicks, 20))]
    return [_table(jobs) for jobs in pages if jobs], len(pages[-1]) < _PAGE


def _found(state: str, offset: int) -> list[Job]:
    return the_jobs().list(state=state if state in _STATES else None, limit=_PAGE, offset=offset)  # type: ignore[arg-type]


def _list(state: str, offset: int) -> Any:
    try:
        jobs = _found(state, offset)
    except AuditError as error:
        return failed(str(error))
    if jobs:
        return _table(jobs)
    if state:
        return empty(f"No job is {state}.")
    return empty(
        "No jobs yet.",
        "Apply and re-measure on the page of a finding starts one, and so does dropping a trace on Runs.",
    )


def _table(jobs: list[Job]) -> html.Div:
    return table("Jobs, the newest first", _HEAD, map(_row, jobs), numbers=(4,))


def _row(job: Job) -> list[Any]:
    return [
        [
            dcc.Link(KINDS.get(job.kind, safe(job.kind)), href=links.job(job.id)),
            html.Div(html.Code(safe(job.id)), className="dim"),
        ],
        _about(job),
        badges.state(job.state),
        when(job.created) if job.created else "–",
        lasted(job.started, job.ended) or "–",
        safe(sentence(job)) or "–",
    ]


def _about(job: Job) -> Any:
    what = about(job)
    what += [f" · {', '.join(map(safe, job.options.select))}"] if job.options.select else []
    return [*what, " → ", dcc.Link(safe(job.result_run), href=links.run(job.result_run))] if job.result_run else what


clientside_callback(
    ClientsideFunction("jobs", "address"),
    Output("jobs-address", "title"),
    Input("jobs-state", "value"),
    prevent_initial_call=True,
)
