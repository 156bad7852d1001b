"""Stored audits by reference, their documents kept while they fit."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.document import Document
from auditor.graph.garbage import collection_paused
from auditor.store import StoredRun
from dashboard.context import current
from dashboard.data.cache import CACHE

_SITE_BYTES, _FINDING_BYTES = 1500, 20_000
"""About what one takes in memory, its lists and texts with it."""


@dataclass(frozen=True)
class _Held:
    run: StoredRun
    nbytes: int


def run_id(ref: str = "latest") -> str:
    """The id of the run that ``ref`` names. AuditError where there is none."""
    return current().store.resolve(ref)


def stored(ref: str = "latest") -> StoredRun:
    """The run with its document. Shared between requests: nothing in it may be changed."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "document"), lambda: _load(run)).run


def document(ref: str = "latest") -> Document:
    """The document of a run. Shared between requests: nothing in it may be changed."""
    return stored(ref).document


def store_label() -> str:
    """What keeps the runs of two stores apart in the cache: tests use several in one process."""
    return current().store.location.url


def _load(run: str) -> _Held:
    with collection_paused():
        found = current().store.load(run)
    findings = found.document.findings
    return _Held(found, _FINDING_BYTES * (1 + len(findings)) + _SITE_BYTES * sum(len(f.places) for f in findings))
