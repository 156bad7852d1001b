"""Stored audits by reference, their documents kept while they fit."""

from __future__ import annotations

from dataclasses import dataclass

from auditor.document import Document
from auditor.graph.garbage import collection_paused
from auditor.store import StoredRun
from dashboard.context import current
from dashboard.data.cache import CACHE
from dashboard.data.heads import HeadDocument, OpsDocument

_SITE_BYTES, _SKIPPED_BYTES, _FINDING_BYTES = 1500, 32, 20_000
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


def head(ref: str = "latest") -> StoredRun:
    """The run with its document less the sites, whose ``places`` can only be counted: what needs them asks for all.

    It is there in a third of the time, and takes next to no memory. Shared: nothing in it may be changed.
    """
    run = run_id(ref)
    return CACHE.get((store_label(), run, "head"), lambda: _load(run, HeadDocument)).run


def with_ops(ref: str = "latest") -> StoredRun:
    """The run with its document, of whose sites only the ops are there. Not kept."""
    with collection_paused():
        return current().store.load(run_id(ref), OpsDocument)


def store_label() -> str:
    """What keeps the runs of two stores apart in the cache: tests use several in one process."""
    return current().store.location.url


def _load(run: str, kind: type[Document] = Document) -> _Held:
    with collection_paused():
        found = current().store.load(run, kind)
    findings = found.document.findings
    each = _SITE_BYTES if kind is Document else _SKIPPED_BYTES
    return _Held(found, _FINDING_BYTES * (1 + len(findings)) + each * sum(len(f.places) for f in findings))
