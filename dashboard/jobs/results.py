"""What came of a job, as its result file and the way it ended say."""

from __future__ import annotations

from pathlib import Path

import msgspec

from auditor.document import Document
from auditor.fix_document import FixDocument
from auditor.store.jobs import JobRecord
from dashboard.jobs.model import State
from dashboard.jobs.place import Place


def outcome(job: JobRecord, place: Place, reason: str) -> tuple[State, str, str]:
    """State, reason and resulting run.

    A result is written when all is stored: with one the job is done, even where the script failed after that.
    """
    kind = FixDocument if job.kind == "fix" else Document
    found = _read(place.result(job.id), kind)
    if reason == "cancelled":
        if found is None:
            return "cancelled", "cancelled while it ran", ""
        reason = "cancelled when all was stored already"
    if found is None:
        return "failed", reason or "it ended well but left no result; see its log", ""
    run = found.after_run if isinstance(found, FixDocument) else found.run.id
    return "done", reason, run


def _read(path: Path, kind: type[FixDocument] | type[Document]) -> FixDocument | Document | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
