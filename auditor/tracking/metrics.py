"""What a tracker of experiments gets of an audit: metrics by stable names, and a row for each finding."""

from __future__ import annotations

from auditor.audit import Audit
from auditor.report.format import safe

PREFIX = "fusion_audit/"
COLUMNS = (
    "run", "rule", "name", "severity", "sites", "kernels", "kernels_after", "bytes_now", "bytes_fused",
    "saving_likely_us", "saving_step_us", "module_class", "phase", "dtype", "source", "replacement", "fingerprint",
)  # fmt: skip
"""Columns of the table of findings; times in microseconds, sizes in bytes. A tracker may hold several audits in one."""


def metrics(audit: Audit) -> dict[str, float]:
    """Counts, bytes and microseconds of one step (of a trace: of the whole file), by names that stay."""
    totals, saving = audit.document.totals, audit.document.totals.saving
    values = {
        "kernels": totals.kernels,
        "memory_bound_kernels": totals.memory_bound_kernels,
        "unfused_kernels": totals.unfused_kernels,
        "avoidable_kernels": totals.avoidable_kernels,
        "already_fused_kernels": totals.already_fused_kernels,
        "findings": len(audit.findings),
        "bytes": totals.bytes,
        "peak_bytes": totals.peak_bytes,
        "device_us": totals.device_us,
        "step_us": totals.step_us,
        "saving_likely_us": saving.likely_us,
        "saving_step_us": saving.step_us,
        "saving_bytes": saving.bytes,
    }
    return {PREFIX + name: float(value) for name, value in values.items()}


def rows(audit: Audit) -> list[list[str | int | float]]:
    """The findings in the order of :data:`COLUMNS`, the largest likely saving first. No name can break a table."""
    found, run = audit.to_pandas().to_dict("records"), audit.document.run.id
    return [[run, *(_cell(row[column]) for column in COLUMNS[1:])] for row in found]


def _cell(value: object) -> str | int | float:
    if isinstance(value, (int, float)):
        return value
    return safe(str(value)) if isinstance(value, str) else ""


def page(audit: Audit) -> str:
    """The HTML report: one file that loads nothing."""
    from auditor.report import render

    return render(audit.document, audit.graph, "html")
