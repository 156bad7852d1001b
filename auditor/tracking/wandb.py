"""To Weights & Biases: metrics of the run, a table of findings, and the report as media and as an artefact."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import wandb

from auditor.audit import Audit
from auditor.errors import AuditError
from auditor.tracking.metrics import COLUMNS, PREFIX, metrics, page, rows


def write(audit: Audit, target: Any, step: int | None) -> None:
    """Write to ``target``, a run, or to the active one.

    The step of the training goes in as a metric of its own: the run's step is a counter of what was logged to it, and
    what comes with an earlier one is dropped.
    """
    run = wandb.run if target == "wandb" else target
    if run is None:
        raise AuditError("no run of Weights & Biases is active: call wandb.init() first, or give the run itself")
    html = page(audit)
    at = {} if step is None else {f"{PREFIX}step": step}
    table = wandb.Table(columns=list(COLUMNS), data=rows(audit))
    run.log(metrics(audit) | at | {f"{PREFIX}findings_table": table, f"{PREFIX}report": wandb.Html(html, inject=False)})
    with tempfile.TemporaryDirectory(prefix="fusion-audit-") as folder:
        run.log_artifact(_artefact(audit, html, Path(folder)))


def _artefact(audit: Audit, html: str, folder: Path) -> Any:
    """The report, and the audit document beside it. The files are copied when they are added."""
    from auditor.report import render

    name = re.sub(r"[^\w.-]+", "-", audit.document.run.name, flags=re.ASCII)[:100].strip("-.")
    artefact = wandb.Artifact(f"fusion-audit-{name or 'run'}", type="fusion-audit")
    for file, text in (("report.html", html), ("audit.json", render(audit.document, audit.graph, "json"))):
        (folder / file).write_text(text, encoding="utf-8")
        artefact.add_file(str(folder / file))
    return artefact
