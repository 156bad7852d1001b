"""Runs: the list, one of them, its findings, its fix; and runs that come from elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from auditor.errors import AuditError
from auditor.store import Missing, RunFilter, Store
from auditor.store.bundle import Bundle, read_bundle
from auditor.store.listing import Column
from auditor.store.registering import recorded_here, why_not
from dashboard.api.errors import Refused, responses
from dashboard.api.models import (
    Finding,
    FindingDetail,
    Findings,
    Limit,
    Offset,
    Ref,
    Run,
    RunDetail,
    Runs,
    Stored,
    Text,
)
from dashboard.api.parts import TheService, TheStore
from dashboard.api.receive import Received, received
from dashboard.data.cache import CACHE
from dashboard.data.stored import document

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])
BUNDLE = "application/vnd.fusion-audit.run+tar"


@router.get("", responses=responses())
def list_runs(
    store: TheStore, limit: Limit = 100, offset: Offset = 0, text: Text = "", name: Text = "", project: Text = "",
    source: Text = "", device: Text = "", since: Text = "", until: Text = "", sort: Column = "created",
    order: Literal["desc", "asc"] = "desc",
) -> Runs:  # fmt: skip
    """Stored runs, the newest first."""
    wanted = RunFilter(
        text=text, name=name, project=project, source=source, device=device, since=since, until=until
    )  # fmt: skip
    found = store.list_runs(wanted, sort=sort, descending=order == "desc", limit=limit, offset=offset)
    return Runs(total=store.count_runs(wanted), runs=[Run.model_validate(run) for run in found])


@router.post(
    "", status_code=201,
    responses={200: {"model": Stored, "description": "It was here already"}, **responses(408, 409, 413)},
    openapi_extra={
        "requestBody": {"required": True, "content": {BUNDLE: {"schema": {"type": "string", "format": "binary"}}}}
    },
)  # fmt: skip
async def receive_run(
    request: Request, response: Response, service: TheService,
    sha256: Annotated[str, Query(pattern="^([0-9a-fA-F]{64})?$", description="Of the body")] = "",
) -> Stored:  # fmt: skip
    """Store a run that another machine recorded, as `fusion-audit push` sends it. Sending it twice does no harm."""
    limit = service.settings.max_upload_bytes
    async with received(request, service.place.uploads, limit, sha256) as upload, service.bundles:
        stored = await run_in_threadpool(_store_bundle, service.store, upload)
    service.metrics.uploaded_bytes.inc(upload.nbytes)
    response.status_code = 201 if stored.new else 200
    return stored


@router.get("/{run}", responses=responses(404))
def get_run(run: Ref, store: TheStore) -> RunDetail:
    """One run's line, its tables, and whether it can be run again here."""
    summary = store.summary(run)
    facts = Run.model_validate(summary).model_dump()
    return RunDetail(**facts, tables=list(store.table_names(summary.id)), rerun=why_not(store, summary.id))


@router.delete("/{run}", status_code=204, responses=responses(404, 409))
def delete_run(run: Ref, store: TheStore) -> None:
    """Remove a run, its fixes and its files."""
    known = store.resolve(run)
    busy = [job for state in ("queued", "running") for job in store.jobs.find(state=state, run=known)]
    if busy:
        raise Refused(409, f"job {busy[0].id} works on run {known}; cancel it first")
    store.delete(known)
    CACHE.clear()  # it may be sent again, changed, under the same id


@router.get("/{run}/document", responses=responses(404), response_model=None, response_class=Response)
def get_document(run: Ref, store: TheStore) -> Response:
    """The audit document, schema `fusion-audit/1`."""
    return Response(store.document_text(run), media_type="application/json")


@router.get("/{run}/fix", responses=responses(404), response_model=None, response_class=Response)
def get_fix(run: Ref, store: TheStore) -> Response:
    """The newest fix document of the run, schema `fusion-fix/1`."""
    import msgspec

    return Response(msgspec.json.encode(store.load_fix(run)), media_type="application/json")


@router.get("/{run}/findings", responses=responses(404))
def list_findings(
    run: Ref, limit: Limit = 100, offset: Offset = 0, rule: Text = "", severity: Text = ""
) -> Findings:  # fmt: skip
    """Findings, the largest likely saving first."""
    found = [
        finding for finding in document(run).findings
        if rule in ("", finding.rule, finding.name) and severity in ("", finding.severity)
    ]  # fmt: skip
    shown = [Finding.model_validate(finding) for finding in found[offset : offset + limit]]
    return Findings(total=len(found), findings=shown)


@router.get("/{run}/findings/{fingerprint}", responses=responses(404))
def get_finding(run: Ref, fingerprint: str) -> FindingDetail:
    """One finding with all of its sites."""
    for finding in document(run).findings:
        if finding.fingerprint == fingerprint:
            return FindingDetail.model_validate(finding)
    raise Missing(f"run {run} has no finding {fingerprint!r}; see its list of findings")


def _store_bundle(store: Store, upload: Received) -> Stored:
    try:
        bundle = read_bundle(upload.path)
    except AuditError as error:
        raise Refused(422, str(error)) from None
    run, before = bundle.document.run.id, bundle.document.run.patched_from
    if before and recorded_here(store, before) and not _is_stored(store, run):
        raise Refused(409, f"run {before} was recorded here, so that only a fix made here can store an audit after it")
    new = store.put(bundle.document, bundle.tables, bundle.fixes)
    if not new:
        _check_same(store, bundle)
        store.put_fixes(run, bundle.fixes)
    return Stored(id=run, new=new)


def _is_stored(store: Store, run: str) -> bool:
    try:
        return store.resolve(run) == run
    except Missing:
        return False


def _check_same(store: Store, bundle: Bundle) -> None:
    run = bundle.document.run.id
    if store.load(run).document != bundle.document:
        raise Refused(409, f"another run has the id {run} here; delete that one, or record yours again")
