"""Documents as rows: what lists and searches need of them, beside their text."""

from __future__ import annotations

import msgspec

from auditor.document import Document
from auditor.fix_document import FixDocument
from auditor.store.ids import new_id
from auditor.store.models import FixRow, RunRow


def run_row(document: Document, tables: list[str]) -> RunRow:
    run, totals = document.run, document.totals
    return RunRow(
        id=run.id, name=_column(run.name), source=run.source, created=run.created, script=run.script,
        device=_column(run.device.name), exit_code=run.exit_code, findings=len(document.findings),
        kernels=totals.kernels, unfused_kernels=totals.unfused_kernels, avoidable_kernels=totals.avoidable_kernels,
        step_us=totals.step_us, step_saving_us=totals.saving.step_us, memory_bound_us=totals.memory_bound_us,
        device_us=totals.device_us, likely_us=totals.saving.likely_us, project=_column(run.project),
        patched_from=run.patched_from, artefacts=tables, document=msgspec.json.encode(document).decode(),
    )  # fmt: skip


def fix_row(fix: FixDocument) -> FixRow:
    return FixRow(
        id=new_id(), run=fix.run, after_run=fix.after_run, created=fix.created,
        kept=sum(site.state == "kept" for site in fix.sites), predicted_us=fix.predicted_us,
        measured_us=fix.measured_us, document=msgspec.json.encode(fix).decode(),
    )  # fmt: skip


def _column(text: str) -> str:
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")[:255]  # PostgreSQL has no text with a zero in it
