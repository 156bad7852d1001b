"""An audit that is not stored, held to budgets: the gate's checks, without a baseline and without times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from auditor.audit import Audit
from auditor.engine.rules import Rule
from auditor.gate.budget import Demands
from auditor.gate.limits import check_limit
from auditor.gate.require import check_live, launches_in
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Check, GateDocument


def verdict_on(
    audit: Audit, demands: Demands, rules: Sequence[Rule], *, root: Path, then: Sequence[str] = ()
) -> GateDocument:
    """Hold ``audit`` to ``demands``.

    Args:
        audit: of one step.
        demands: of the marker, of the project, or both; an increase over a baseline is not held.
        rules: all that there are.
        root: folder from which files are named.
        then: commands to run where a limit is broken.
    """
    document, now = audit.document, snapshot_of(audit.document)
    checks = [check_limit(limit, document, now, None, []) for limit in demands.limits]
    if demands.required:
        launches = launches_in(audit.graph)
        checks += [check_live(demand, launches, document, now, rules) for demand in demands.required]
    passed = not any(check.status == "failed" for check in checks)
    return GateDocument(
        passed=passed, run=now.run, figures=now.figures, checks=[_timeless(check) for check in checks],
        next=[] if passed else list(then), root=str(root),
    )  # fmt: skip


def _timeless(check: Check) -> Check:
    """Less the times of a step in a test, which say little and would differ from run to run."""
    culprits = [msgspec.structs.replace(culprit, step_us=0.0, likely_us=0.0) for culprit in check.culprits]
    return msgspec.structs.replace(check, culprits=culprits)
