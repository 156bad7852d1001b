"""Apply and re-measure: a job for one rule of one run, followed on the page of the finding."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State, callback, html
from dash.exceptions import PreventUpdate

from auditor.document import Document, Finding
from auditor.errors import AuditError
from auditor.report.format import safe
from dashboard.components.job_panel import NO_WORKER, job_panel, the_jobs
from dashboard.components.page import section
from dashboard.components.shell import LOG_IN
from dashboard.components.states import failed
from dashboard.context import current
from dashboard.data.findings import find_finding
from dashboard.data.stored import document as document_of
from dashboard.jobs.model import ENDED, Job, Options


def apply_section(document: Document, finding: Finding) -> html.Section:
    """The button, why it can't be used where it can't, and the job that it started: one at work, else the newest."""
    run, rule = document.run.id, finding.rule
    why, job = _why_not(run, finding), _job(run, rule)
    disabled, note = _button(why, job, rule)
    button = html.Button("Apply and re-measure", id="finding-apply", type="button", className="primary",
                         disabled=disabled)  # fmt: skip
    return section(
        "Apply",
        html.Div([button, html.Span(note, className="why", id="finding-why")], className="row"),
        *([_command(document, finding)] if why and not finding.instead else []),
        html.Div(id="finding-problem"),
        html.Div(job_panel(job) if job else None, id="finding-job"),
    )


def _command(document: Document, finding: Finding) -> html.P:
    """What to type instead, where the script is."""
    if document.run.source == "trace":
        return html.P(["To apply it, audit the script itself: ", html.Code("fusion-audit run script.py")])
    line = f"fusion-audit fix {safe(document.run.id)} --select {safe(finding.rule)}"
    return html.P(["From the command line, where the script is: ", html.Code(line)])


def _button(why: str, job: Job | None, rule: str) -> tuple[bool, str]:
    """Whether the button is disabled, and what is said beside it."""
    if why:
        return True, why
    if job := _alive(job):
        return True, f"Job {safe(job.id)} applies it already: it is {job.state}, as shown below."
    return False, (
        f"Runs the script again, puts the replacement at every {safe(rule)} site of the model, verifies it, "
        "measures eager, patched and torch.compile in turns, and keeps what wins."
    )


def _why_not(run: str, finding: Finding) -> str:
    """Why nothing can be applied now; "" where it can."""
    if finding.instead:
        return f"No kernel of the model is replaced: write {safe(finding.instead)} in the script, and run it again."
    context = current()
    if context.jobs is None:
        return NO_WORKER
    if not context.may_change():
        return LOG_IN
    return safe(context.jobs.why_not("fix", run, Options(select=[finding.rule])))


def _job(run: str, rule: str) -> Job | None:
    """The job that applies this rule to this run: the one that waits or runs, else the newest."""
    jobs = current().jobs
    found = jobs.list(run=run, limit=50) if jobs else []
    own = [job for job in found if job.kind == "fix" and (rule in job.options.select or not job.options.select)]
    return next((job for job in own if job.state not in ENDED), own[0] if own else None)


def _alive(job: Job | None) -> Job | None:
    return None if job is None or job.state in ENDED else job


@callback(
    Output("finding-job", "children"),
    Output("finding-problem", "children"),
    Input("finding-apply", "n_clicks"),
    State("finding-which", "data"),
    prevent_initial_call=True,
)
def _submit(clicks: int | None, which: dict[str, str]) -> tuple[Any, Any]:
    if not clicks:
        raise PreventUpdate
    if not current().may_change():
        return dash.no_update, failed(LOG_IN)
    try:
        rule = find_finding(document_of(which["run"]), which["fingerprint"]).rule
        alive = _alive(_job(which["run"], rule))  # of another window, or of a click before this one
        job = alive or the_jobs().submit("fix", which["run"], Options(select=[rule]))
    except AuditError as error:
        return dash.no_update, failed(str(error))
    return job_panel(job, log_open=True), None


@callback(
    Output("finding-apply", "disabled"),
    Output("finding-why", "children"),
    Input({"type": "job-state", "job": ALL}, "data"),
    State("finding-which", "data"),
    prevent_initial_call=True,
)
def _follow(_: list[str], which: dict[str, str]) -> tuple[Any, Any]:
    """A job that is at work holds the button until it ends."""
    try:
        finding = find_finding(document_of(which["run"]), which["fingerprint"])
        return _button(_why_not(which["run"], finding), _job(which["run"], finding.rule), finding.rule)
    except AuditError:
        return dash.no_update, dash.no_update  # the panel of the job says what is wrong
