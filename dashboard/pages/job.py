"""One job: its state, progress and log, and what came of it."""

from __future__ import annotations

from typing import Any

import dash
from dash import dcc, html

from auditor.report.format import percent, safe
from dashboard.components import links
from dashboard.components.facts import fact_list
from dashboard.components.job_panel import KINDS, about, job_panel, the_jobs
from dashboard.components.page import page
from dashboard.components.states import guarded
from dashboard.components.when import when
from dashboard.jobs.model import Job

dash.register_page(__name__, path_template="/jobs/<job_id>", title="Job · Fusion Auditor")


@guarded
def layout(job_id: str = "", **_: str) -> html.Div:
    """The page of the job with this id."""
    job = the_jobs().get(job_id)
    return page(
        KINDS.get(job.kind, safe(job.kind)),
        job_panel(job, log_open=True),
        fact_list(_facts(job)),
        crumbs=[("Jobs", "/jobs")],
        note=html.Code(safe(job.id)),
    )


def _facts(job: Job) -> list[tuple[str, Any]]:
    what = "upload" if job.kind == "import" else "run"
    facts: list[tuple[str, Any]] = [(what, html.Span(about(job))), ("options", _options(job))]
    facts += [("tried again after", dcc.Link(safe(job.retry_of), href=links.job(job.retry_of)))] if job.retry_of else []
    times = (("queued", job.created), ("started", job.started), ("ended", job.ended))
    return facts + [(label, when(time)) for label, time in times if time]


def _options(job: Job) -> str:
    options = job.options
    if job.kind == "import":
        return "none"
    parts = [f"rules {', '.join(map(safe, options.select))}" if options.select else "every rule"]
    if job.kind == "fix":
        parts += ["keeps what is right even where it does not win"] if options.keep_all else []
        parts += [f"gain of at least {percent(options.min_gain)}"] if options.min_gain else []
        parts += [f"the first {options.limit} sites only"] if options.limit is not None else []
    else:
        parts.append(f"{options.steps} steps")
    return " · ".join(parts)
