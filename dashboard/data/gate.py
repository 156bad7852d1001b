"""A stored run against another: the comparison of ``fusion-audit gate``, without the sites, which it does not need."""

from __future__ import annotations

from auditor.gate.compare import compare
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Comparison
from dashboard.data.stored import head


def against(baseline: str, run: str) -> Comparison:
    """``run`` against ``baseline``. AuditError where one of them is not there."""
    before, after = (snapshot_of(head(ref).document) for ref in (baseline, run))
    return compare(before, after)
