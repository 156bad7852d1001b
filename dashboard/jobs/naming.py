"""The files of an import by the names that their sender knows, in place of the paths that only this machine has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from auditor.report.format import clip, safe
from auditor.store import Store
from auditor.store.jobs import JobRecord
from dashboard.jobs.place import Place

_LONGEST = 80
Names = Mapping[str, str]
"""Path → what it is called; the trace before its execution trace."""


def names_of(jobs: Iterable[JobRecord], store: Store, place: Place) -> dict[str, Names]:
    """Job id → its files, for each import among ``jobs``; an upload that was deleted has none any more."""
    wanted = {job.id: job.run for job in jobs if job.kind == "import"}
    uploads = store.uploads.find(set(wanted.values()))
    uploads |= store.uploads.find({u.execution_trace for u in uploads.values() if u.execution_trace})
    found: dict[str, Names] = {}
    for job, run in wanted.items():
        own = [uploads[run], uploads.get(uploads[run].execution_trace)] if run in uploads else []
        found[job] = {str(place.upload(u.id, u.kind)): clip(safe(u.name), _LONGEST) for u in own if u is not None}
    return found


def told(text: str, names: Names) -> str:
    """``text`` with names for paths."""
    for path, name in names.items():
        text = text.replace(path, name)
    return text
