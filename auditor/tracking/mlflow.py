"""To MLflow: metrics of the run, a table of findings, and the report and the audit document as artefacts."""

from __future__ import annotations

import warnings
from typing import Any

import mlflow

from auditor.audit import Audit
from auditor.errors import AuditError
from auditor.report import render
from auditor.tracking.metrics import COLUMNS, metrics, page, rows

FOLDER = "fusion_audit"
"""Where a run's artefacts have them."""


def write(audit: Audit, target: Any, step: int | None) -> None:
    """Write to ``target``, a run or a client with the id of one, or to the active run."""
    client, run = _run(target)
    at = 0 if step is None else step
    for name, value in metrics(audit).items():
        client.log_metric(run, name, value, step=at)
    table = rows(audit)
    columns = {column: [row[index] for row in table] for index, column in enumerate(COLUMNS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reads a table with words that pandas 3 warns of
        client.log_table(run, columns, f"{FOLDER}/findings.json")
    client.log_text(run, page(audit), f"{FOLDER}/report.html")
    client.log_text(run, render(audit.document, audit.graph, "json"), f"{FOLDER}/audit.json")


def _run(target: Any) -> tuple[Any, str]:
    if isinstance(target, tuple):
        client, run = target
        return client, str(run)
    found = mlflow.active_run() if target == "mlflow" else target
    if found is None:
        raise AuditError("no run of MLflow is active: call mlflow.start_run() first, or give the run itself")
    return mlflow.MlflowClient(), str(found.info.run_id)
