"""Apply and re-measure: a job for one rule of one run, followed on the page of the finding."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State, callback, html
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
from dashboard.jobs.model import Job, Options


def apply_section(document: Document, finding: Finding) -> html.Section:
    """The button, why it can't be used where it can't, and the newest job that it started."""
    why = _why_not(document.run.id)
    job = _newest(document.run.id, finding.rule)
    button = html.Button(
        "Apply and re-measure", id="finding-apply", type="button", className="primary", disabled=bool(why)
    )
    note = why or (
        f"Runs the script again, puts the replacement at every {safe(finding.rule)} site of the model, verifies it, "
        "measures eager, patched and torch.compile in turns, and keeps what wins."
    )
    return section(
        "Apply",
        html.Div([button, html.Span(note, className="why", id="finding-why")], className="row"),
        *([_command(document, finding)] if why else []),
        html.Div(id="finding-problem"),
        html.Div(job_panel(job) if job else None, id="finding-job"),
    )


def _command(document: Document, finding: Finding) -> html.P:
    """What to type instead, where the script is."""
    if document.run.source == "trace":
        return html.P(["To apply it, audit the script itself: ", html.Code("fusion-audit run script.py")])
    line = f"fusion-audit fix {safe(document.run.id)} --select {safe(finding.rule)}"
    return html.P(["From the command line, where the script is: ", html.Code(line)])


def _why_not(run: str) -> str:
    """Why nothing can be applied now; "" where it can."""
    context = current()
    if context.jobs is None:
        return NO_WORKER
    if not context.may_change():
        return LOG_IN
    return safe(context.jobs.why_not("fix", run))


def _newest(run: str, rule: str) -> Job | None:
    """The newest job that applied this rule to this run."""
    jobs = current().jobs
    found = jobs.list(run=run, limit=50) if jobs else []
    return next((job for job in found if job.kind == "fix" and job.options.select in ([rule], [])), None)


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
        finding = find_finding(document_of(which["run"]), which["fingerprint"])
        job = the_jobs().submit("fix", which["run"], Options(select=[finding.rule]))
    except AuditError as error:
        return dash.no_update, failed(str(error))
    return job_panel(job, log_open=True), None
