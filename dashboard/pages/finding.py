"""One finding: what it is, why it saves what it saves, why it is legal, and what applying it measured."""

from __future__ import annotations

from typing import Any

import dash
from dash import ALL, Input, Output, State, callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.document import Document, Finding
from auditor.errors import AuditError
from auditor.report import facts
from auditor.report.format import count, duration, percent, ratio, safe, share, size
from dashboard.components import badges, links
from dashboard.components.downloads import diff_text, plan_text
from dashboard.components.facts import Tile, fact_list, tiles
from dashboard.components.filters import choice
from dashboard.components.job_panel import NO_WORKER, job_panel, the_jobs
from dashboard.components.measured import fix_for, measured
from dashboard.components.page import run_page, section
from dashboard.components.replacement import replacement_view
from dashboard.components.rule_docs import rule_docs
from dashboard.components.savings import savings
from dashboard.components.shell import LOG_IN
from dashboard.components.site_view import site_views
from dashboard.components.source import source_view
from dashboard.components.states import failed, guarded, loading, unexpected
from dashboard.context import current
from dashboard.data.rules import find_rule
from dashboard.data.severity import rule_settings
from dashboard.data.stored import document as document_of
from dashboard.jobs.model import Job, Options

dash.register_page(__name__, path_template="/run/<run_id>/finding/<fingerprint>", title="Finding · Fusion Auditor")

_OFFERED = 200
"""Sites that can be chosen."""
_IN_TILES = {"kernels", "memory", "device", "step"}


@guarded
def layout(run_id: str = "latest", fingerprint: str = "", site: str = "0", **_: str) -> html.Div:
    """The page of the finding with this fingerprint."""
    document = document_of(run_id)
    finding = _find(document, fingerprint)
    return run_page(
        document,
        "",
        dcc.Store(id="finding-which", data={"run": document.run.id, "fingerprint": finding.fingerprint}),
        _what(finding),
        tiles(_tiles(document, finding)),
        fact_list(fact for fact in facts.particulars(document, finding) if fact.label not in _IN_TILES),
        _apply(document, finding),
        section("Measured", loading(html.Div(id="finding-measured"), "finding-wait", "the figures"), _downloads()),
        section(
            "Before and after",
            _sites(finding, site),
            loading(html.Div(id="finding-drawn"), "finding-drawn-wait", "the drawing"),
            html.Div(id="finding-site-facts"),
        ),
        savings(document, finding),
        section("Source", *source_view(document, finding.source)),
        section("What takes its place", *replacement_view(finding.replacement)),
        _docs(finding),
        html.Div(id="finding-address", hidden=True),
        title=finding.name,
    )  # fmt: skip


def _find(document: Document, fingerprint: str) -> Finding:
    for finding in document.findings:
        if finding.fingerprint == fingerprint:
            return finding
    raise AuditError(f"Run {document.run.id} has no finding {fingerprint!r}; its overview lists those that it has.")


def _what(finding: Finding) -> html.P:
    severity = badges.severity(rule_settings().severity(finding.rule, finding.severity))
    doubt = badges.provenance(finding.provenance)
    parts: list[Any] = [severity, " ", _rule_link(finding), " · ", facts.owner(finding), " ", doubt]
    return html.P(parts)


def _tiles(document: Document, finding: Finding) -> list[Tile]:
    saving, step = finding.saving, document.totals.step_us
    timed = finding.device_us > 0
    less = ratio(finding.bytes_now - finding.bytes_fused, finding.bytes_now)
    return [
        Tile(
            "Likely saved",
            duration(saving.likely_us) if timed else "not timed",
            f"of {duration(finding.device_us)} kernel time; ideal {duration(saving.ideal_us)}" if timed else "",
        ),
        Tile(
            "Of the step", share(saving.step_us, step) if step else "not known", f"of {duration(step)}" if step else ""
        ),
        Tile(
            "Kernels",
            f"{count(finding.kernels)} → {count(finding.kernels_after)}",
            f"{count(facts.avoidable(finding))} avoidable, at {count(finding.sites)} sites",
        ),
        Tile(
            "Memory traffic",
            f"{size(finding.bytes_now)} → {size(finding.bytes_fused)}",
            f"{percent(less)} less" if less and less > 0 else "",
        ),
    ]


def _rule_link(finding: Finding) -> dcc.Link:
    return dcc.Link(safe(finding.rule), href=links.rule(finding.rule))


def _sites(finding: Finding, site: str) -> Any:
    """Which site is drawn; the field is there even where there is one, for callbacks."""
    places = finding.places[:_OFFERED]
    index = int(site) if site.isdecimal() and int(site) < len(places) else 0
    labels = [f"{i + 1}. {safe(p.module) or facts.place(p.source) or 'site'}" for i, p in enumerate(places)]
    field = choice(
        "finding-site", "Site", labels, labels[index] if labels else "", everything="The first site", css="broad"
    )
    return html.Div(field, className="filters", hidden=len(places) < 2)


def _docs(finding: Finding) -> html.Section:
    rule = find_rule(finding.rule)
    if rule is None:
        return section(
            "The rule", html.P([html.Code(safe(finding.rule)), " is not among the rules that are loaded here."])
        )
    return section(f"The rule: {safe(rule.id)}", *rule_docs(rule))


# --- applying --------------------------------------------------------------------------------------


def _apply(document: Document, finding: Finding) -> html.Section:
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
        finding = _find(document_of(which["run"]), which["fingerprint"])
        job = the_jobs().submit("fix", which["run"], Options(select=[finding.rule]))
    except AuditError as error:
        return dash.no_update, failed(str(error))
    return job_panel(job, log_open=True), None


# --- what is drawn and measured --------------------------------------------------------------------


@callback(
    Output("finding-drawn", "children"),
    Output("finding-site-facts", "children"),
    Input("finding-site", "value"),
    State("finding-which", "data"),
)
def _draw(chosen: str | None, which: dict[str, str] | None) -> tuple[Any, Any]:
    if not which:
        raise PreventUpdate
    number = (chosen or "").partition(".")[0]
    index = int(number) - 1 if number.isdecimal() else 0
    try:
        return site_views(which["run"], _find(document_of(which["run"]), which["fingerprint"]), index)
    except AuditError as error:
        return failed(str(error)), None
    except Exception:
        return failed(unexpected("drawing")), None


@callback(
    Output("finding-measured", "children"),
    Input("shell-scheme", "data"),
    Input({"type": "job-state", "job": ALL}, "data"),
    State("finding-which", "data"),
)
def _measured(scheme: str | None, _: list[str], which: dict[str, str] | None) -> Any:
    if not scheme or not which:
        raise PreventUpdate
    try:
        finding = _find(document_of(which["run"]), which["fingerprint"])
        return measured(finding, fix_for(which["run"], finding), scheme)
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("measurement"))


def _downloads() -> html.Div:
    return html.Div(
        [
            html.Div(
                [
                    html.Button("Download the plan", id="finding-plan", type="button"),
                    html.Button("Download the source diff", id="finding-diff", type="button"),
                    dcc.Download(id="finding-file"),
                ],
                className="row",
            ),
            html.Div(id="finding-file-problem"),
        ]
    )


@callback(
    Output("finding-file", "data"),
    Output("finding-file-problem", "children"),
    Input("finding-plan", "n_clicks"),
    Input("finding-diff", "n_clicks"),
    State("finding-which", "data"),
    prevent_initial_call=True,
)
def _download(plan: int | None, diff: int | None, which: dict[str, str]) -> tuple[Any, Any]:
    if not (plan or diff):
        raise PreventUpdate
    run = which["run"]
    try:
        if dash.ctx.triggered_id == "finding-diff":
            return {"content": diff_text(run), "filename": f"fusion-{run}.diff", "type": "text/x-diff"}, None
        fix = fix_for(run, _find(document_of(run), which["fingerprint"]))
        if fix is None:
            return dash.no_update, failed("No fix of this run is stored yet.", "No plan yet")
        return {"content": plan_text(fix), "filename": f"fusion-plan-{run}.yaml", "type": "application/yaml"}, None
    except AuditError as error:
        return dash.no_update, failed(str(error), "Nothing to download")
