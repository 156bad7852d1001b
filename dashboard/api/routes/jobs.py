"""Jobs: queued, followed, cancelled, retried."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Response

from auditor.errors import AuditError
from auditor.store import Missing, Unavailable
from dashboard.api import models
from dashboard.api.errors import Refused, responses
from dashboard.api.parts import TheJobs
from dashboard.jobs.model import Job, Options, State

router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])


@router.get("", responses=responses())
def list_jobs(
    jobs: TheJobs, state: State | None = None, run: Annotated[str, Query(pattern="^([0-9a-z]{12})?$")] = "",
    limit: models.Limit = 100, offset: models.Offset = 0,
) -> models.JobList:  # fmt: skip
    """Jobs, the newest first."""
    found = jobs.list(state=state, run=run, limit=limit, offset=offset)
    return models.JobList(jobs=[_shown(job) for job in found])


@router.post("", status_code=201, responses=responses(404, 409))
def submit_job(new: models.NewJob, jobs: TheJobs) -> models.Job:
    """Queue work: `fix` and `audit` run a script again that the command line ran on this machine; `import` reads an
    upload.
    """
    try:
        return _shown(jobs.submit(new.kind, new.run, Options(**new.options.model_dump())))
    except (Missing, Unavailable):
        raise
    except AuditError as error:
        raise Refused(409, str(error)) from None


@router.get("/{job}", responses=responses(404))
def get_job(job: models.JobId, jobs: TheJobs) -> models.Job:
    return _shown(jobs.get(job))


@router.get("/{job}/log", responses=responses(404))
def get_log(
    job: models.JobId, jobs: TheJobs, after: Annotated[int, Query(ge=0, le=2**40, description="Byte to begin at")] = 0
) -> models.Log:
    """What the work printed, from a byte on."""
    text, following = jobs.log(job, after)
    return models.Log(text=text, next=following)


@router.get("/{job}/plan", responses=responses(404), response_model=None, response_class=Response)
def get_plan(job: models.JobId, jobs: TheJobs) -> Response:
    """The plan that a fix wrote, as YAML."""
    headers = {"content-disposition": 'attachment; filename="fusion-plan.yaml"'}
    return Response(jobs.plan(job), media_type="application/yaml", headers=headers)


@router.post("/{job}/cancel", responses=responses(404))
def cancel_job(job: models.JobId, jobs: TheJobs) -> models.Job:
    """End it: at once where it waits, with its processes where it runs. What has ended stays as it is."""
    return _shown(jobs.cancel(job))


@router.post("/{job}/retry", status_code=201, responses=responses(404, 409))
def retry_job(job: models.JobId, jobs: TheJobs) -> models.Job:
    """A new job like one that failed or was cancelled."""
    try:
        return _shown(jobs.retry(job))
    except (Missing, Unavailable):
        raise
    except AuditError as error:
        raise Refused(409, str(error)) from None


def _shown(job: Job) -> models.Job:
    return models.Job.model_validate(msgspec.to_builtins(job))
