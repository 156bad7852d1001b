"""To TensorBoard: metrics as scalars, the report as text. It keeps no files and has no tables."""

from __future__ import annotations

from typing import Any

from auditor.audit import Audit
from auditor.report import render
from auditor.tracking.metrics import PREFIX, metrics


def write(audit: Audit, target: Any, step: int | None) -> None:
    """Write to ``target``, a ``SummaryWriter``."""
    for name, value in metrics(audit).items():
        target.add_scalar(name, value, step)
    target.add_text(f"{PREFIX}report", render(audit.document, audit.graph, "markdown"), step)
    target.flush()
