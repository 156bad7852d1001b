"""A finding of a run, by the fingerprint that its address names."""

from __future__ import annotations

from auditor.document import Document, Finding
from auditor.errors import AuditError


def find_finding(document: Document, fingerprint: str) -> Finding:
    """The first finding with this fingerprint. AuditError where the run has none."""
    for finding in document.findings:
        if finding.fingerprint == fingerprint:
            return finding
    raise AuditError(f"Run {document.run.id} has no finding {fingerprint!r}; its overview lists those that it has.")
