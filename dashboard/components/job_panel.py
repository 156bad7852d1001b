"""A job as it goes: its state, what it says, its log, and how to end it or try it again.

The panel asks once a second while the job lives. Its log comes in parts, which the browser puts together.
"""

from __future__ import annotations

import re
from typing import Any

import dash
from dash import MATCH, ClientsideFunction, Input, Output, State, callback, clientside_callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.errors import AuditError
from auditor.report.format import clip, safe
from dashboard.components import badges, links
from dashboard.components.aria import aria
from dashboard.components.code import details
from dashboard.components.shell import LOG_IN
from dashboard.components.states import failed
from dashboard.components.when import lasted
from dashboard.context import current
from dashboard.jobs.model import ENDED, Job, Jobs, is_bad_file

NO_WORKER = "No worker runs here; start one with `fusion-audit serve`."
KINDS = {"fix": "Apply and re-measure", "audit": "Audit again", "import": "Import"}
DONE = {"fix": "Applied and measured.", "audit": "Audited.", "import": "Imported."}
_POLL_MS = 1000
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]")


def the_jobs() -> Jobs:
    """The queue of this application. AuditError where none runs."""
    jobs = current().jobs
    if jobs is None:
        raise AuditError(NO_WORKER)
    return jobs


def job_panel(job: Job, *, retry: bool = True, log_open: bool = False) -> html.Div:
    """The panel of ``job``. ``retry``: whether it offers another try, which shows the new job's own page."""
    ident = job.id
    return html.Div(
        [
            html.Div(status(job), id=_id("status", ident), role="status", **aria(live="polite")),
            html.Div(controls(job, retry), id=_id("controls", ident), className="row"),
            html.Div(id=_id("problem", ident)),
            details("Log", html.Pre("", id=_id("log", ident), className="code log text", tabIndex=0, role="region",
                                    **aria(label="Log of the job")), is_open=log_open),
            dcc.Store(id=_id("part", ident), data={"text": "", "after": 0}),
            dcc.Store(id=_id("state", ident), data=job.state),
            dcc.Store(id=_id("retry", ident), data=retry),
            dcc.Location(id=_id("goto", ident), refresh="callback-nav"),
            dcc.Interval(id=_id("clock", ident), interval=_POLL_MS, max_intervals=-1),
        ],
        className="job-panel",
    )  # fmt: skip


def _id(part: str, job: str) -> dict[str, str]:
    return {"type": f"job-{part}", "job": job}


def status(job: Job) -> list[Any]:
    """What there is to say of a job, as lines."""
    took = lasted(job.started, job.ended)
    head: list[Any] = [badges.state(job.state), " ", html.Span(safe(sentence(job)))]
    head += [html.Span(f" · took {took}", className="dim")] if took else []
    lines: list[Any] = [html.P(head)]
    if job.result_run:
        lines.append(html.P([dcc.Link("What came of it", href=links.run(job.result_run)), *_compared(job)]))
    return lines


def about(job: Job) -> list[Any]:
    """The run that a job is about, or the file that it imports, beside its id."""
    if job.kind != "import":
        return [dcc.Link(safe(job.run), href=links.run(job.run))]
    ident = html.Code(safe(job.run))
    return [clip(safe(job.files[0]), 60), " ", html.Span(ident, className="dim")] if job.files else [ident]


def sentence(job: Job) -> str:
    """Where a job is, or why it ended as it did."""
    if job.state == "queued":
        return "Waits for the worker: one job runs at a time, so that timings are not disturbed."
    if job.state in ("failed", "cancelled"):
        return job.reason or "No reason was given."
    return DONE.get(job.kind, "Done.") if job.state == "done" else job.progress


def _compared(job: Job) -> list[Any]:
    if job.kind == "import" or not job.run:
        return []
    return [" · ", dcc.Link("Compare with the run before", href=links.compare(job.run, job.result_run))]


def controls(job: Job, retry: bool) -> list[Any]:
    """Cancel while it lives; try again after it failed, but for a file that can't be read. Both are always there, so
    that callbacks find them.
    """
    allowed = current().may_change()
    title = "" if allowed else LOG_IN
    alive = job.state not in ENDED
    again = retry and job.state in ("failed", "cancelled") and not is_bad_file(job)
    return [
        html.Button(
            "Cancel", id=_id("cancel", job.id), type="button", disabled=not allowed, hidden=not alive, title=title
        ),
        html.Button(
            "Try again", id=_id("again", job.id), type="button", disabled=not allowed, hidden=not again, title=title
        ),
    ]


@callback(
    Output({"type": "job-status", "job": MATCH}, "children"),
    Output({"type": "job-controls", "job": MATCH}, "children"),
    Output({"type": "job-part", "job": MATCH}, "data"),
    Output({"type": "job-state", "job": MATCH}, "data"),
    Output({"type": "job-clock", "job": MATCH}, "disabled"),
    Input({"type": "job-clock", "job": MATCH}, "n_intervals"),
    State({"type": "job-part", "job": MATCH}, "data"),
    State({"type": "job-state", "job": MATCH}, "data"),
    State({"type": "job-retry", "job": MATCH}, "data"),
    State({"type": "job-clock", "job": MATCH}, "id"),
)
def _poll(_: int | None, part: dict[str, Any], was: str, retry: bool, ident: dict[str, str]) -> tuple[Any, ...]:
    jobs = the_jobs()
    job = jobs.get(ident["job"])
    text, after = jobs.log(job.id, int(part["after"]))
    buttons = dash.no_update if job.state == was and part.get("polled") else controls(job, retry)
    state = dash.no_update if job.state == was else job.state
    through = job.state in ENDED and after == part["after"]  # a long log comes in parts after the end, too
    return status(job), buttons, {"text": log_text(text), "after": after, "polled": True}, state, through


def log_text(text: str) -> str:
    """A part of a log for a page: colours left out, what could steer or reorder text made visible."""
    plain = _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(safe(line.expandtabs(4)) for line in plain.split("\n"))


@callback(
    Output({"type": "job-problem", "job": MATCH}, "children"),
    Output({"type": "job-goto", "job": MATCH}, "href"),
    Input({"type": "job-cancel", "job": MATCH}, "n_clicks"),
    Input({"type": "job-again", "job": MATCH}, "n_clicks"),
    State({"type": "job-clock", "job": MATCH}, "id"),
    prevent_initial_call=True,
)
def _act(cancel: int | None, again: int | None, ident: dict[str, str]) -> tuple[Any, Any]:
    """Cancel the job, or show the page of the one that tries again."""
    if not (cancel or again):
        raise PreventUpdate
    if not current().may_change():
        return failed(LOG_IN), dash.no_update
    asked = (dash.ctx.triggered_id or {}).get("type")
    try:
        if asked == "job-cancel":
            the_jobs().cancel(ident["job"])
            return None, dash.no_update
        retried = the_jobs().retry(ident["job"])
    except AuditError as error:
        return failed(str(error)), dash.no_update
    return None, links.job(retried.id)


clientside_callback(
    ClientsideFunction("jobs", "log"),
    Output({"type": "job-log", "job": MATCH}, "children"),
    Input({"type": "job-part", "job": MATCH}, "data"),
    State({"type": "job-log", "job": MATCH}, "children"),
)
