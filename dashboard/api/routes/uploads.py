"""Traces that are sent in: streamed to the disk, listed when they are whole, read by a job."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from auditor.collect.file_kind import archive
from auditor.report.format import clip, safe
from auditor.store import Missing
from auditor.store.ids import new_id
from auditor.store.machine import machine_id
from auditor.store.uploads import Upload
from dashboard.api import models
from dashboard.api.errors import Refused, responses
from dashboard.api.parts import TheService, TheStore
from dashboard.api.receive import Received, received
from dashboard.api.service import Service
from dashboard.jobs.stored import MOST_WAITING

router = APIRouter(prefix="/api/v1/uploads", tags=["uploads"])


@router.post(
    "", status_code=201, responses=responses(404, 408, 413),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        }
    },
)  # fmt: skip
async def receive_upload(
    request: Request, service: TheService,
    name: Annotated[str, Query(min_length=1, max_length=255, description="What the file is called")],
    sha256: Annotated[str, Query(pattern="^([0-9a-fA-F]{64})?$", description="Of the body")] = "",
    execution_trace: Annotated[
        str, Query(pattern="^([0-9a-z]{12})?$", description="The upload with the execution trace of the same run")
    ] = "",
) -> models.Upload:  # fmt: skip
    """Send a trace of torch.profiler, `.json` or `.json.gz`, as the body. A job of kind `import` then reads it."""
    if execution_trace:
        await run_in_threadpool(service.store.uploads.get, execution_trace)
    async with received(request, service.place.uploads, service.settings.max_upload_bytes, sha256) as found:
        kept = await run_in_threadpool(_keep, service, found, name, execution_trace)
    service.metrics.uploaded_bytes.inc(kept.nbytes)
    return models.Upload.model_validate(kept)


@router.get("", responses=responses())
def list_uploads(store: TheStore, limit: models.Limit = 100, offset: models.Offset = 0) -> models.Uploads:
    """Uploads, the newest first."""
    found = store.uploads.list(limit=limit, offset=offset)
    return models.Uploads(uploads=[models.Upload.model_validate(upload) for upload in found])


@router.get("/{upload}", responses=responses(404))
def get_upload(upload: models.UploadId, store: TheStore) -> models.Upload:
    return models.Upload.model_validate(store.uploads.get(upload))


@router.delete("/{upload}", status_code=204, responses=responses(404, 409))
def delete_upload(upload: models.UploadId, service: TheService) -> None:
    """Remove an uploaded file; runs that were read from it stay."""
    known = service.store.uploads.get(upload)
    jobs = [job for state in ("queued", "running") for job in service.store.jobs.find(state=state, limit=MOST_WAITING)]
    busy = [job for job in jobs if job.kind == "import" and known.id in _read_by(service, job.run)]
    if busy:
        raise Refused(409, f"job {busy[0].id} reads upload {upload}; cancel it first")
    service.store.uploads.delete(known.id)
    service.place.upload(known.id, known.kind).unlink(missing_ok=True)


def _read_by(service: Service, upload: str) -> tuple[str, ...]:
    """The uploads that the import of ``upload`` reads."""
    try:
        return upload, service.store.uploads.get(upload).execution_trace
    except Missing:
        return (upload,)


def _keep(service: Service, found: Received, name: str, execution_trace: str) -> Upload:
    """First the file, then its row: what is listed is whole."""
    kind = _kind(found.head)
    upload = Upload(
        id=new_id(), name=clip(safe(Path(name).name or "trace"), 200), kind=kind, nbytes=found.nbytes,
        sha256=found.sha256, execution_trace=execution_trace, machine=machine_id(), created="",
    )  # fmt: skip
    final = service.place.upload(upload.id, kind)
    with final.open("xb"):  # fails where the id is taken, as a rename alone would not
        pass
    try:
        os.replace(found.path, final)
        _sync(final.parent)
        service.store.uploads.add(upload)
    except BaseException:
        final.unlink(missing_ok=True)
        raise
    return service.store.uploads.get(upload.id)


def _kind(head: bytes) -> str:
    if head.startswith(b"\x1f\x8b"):
        return "json.gz"
    if head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] in (b"{", b"["):
        return "json"
    found = archive(head)
    known = f" but {found}" if found else "" if head else ": it is empty"
    raise Refused(422, f"the upload is neither JSON nor gzip{known}; send a trace of torch.profiler, .json or .json.gz")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
