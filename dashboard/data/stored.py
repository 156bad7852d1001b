"""Stored audits by reference, their documents kept while they fit."""

from __future__ import annotations

from auditor.document import Document
from auditor.store import StoredRun


def run_id(ref: str = "latest") -> str:
    """The id of the run that ``ref`` names. AuditError where there is none."""
    raise NotImplementedError


def stored(ref: str = "latest") -> StoredRun:
    """The run with its document. Shared between requests: nothing in it may be changed."""
    raise NotImplementedError


def document(ref: str = "latest") -> Document:
    """The document of a run. Shared between requests: nothing in it may be changed."""
    raise NotImplementedError
