"""An audit in one line, for a log: the run, its counts, what they cost, and what to type to see more."""

from __future__ import annotations

import shlex

from auditor.document import Document
from auditor.report.format import duration, safe
from auditor.report.headline import brief


def announcement(document: Document, place: str = "") -> str:
    """``train: 14 of 40 kernels unfused, … · stored as ID · next: fusion-audit show ID``.

    ``place`` is the store's, where it isn't the one that commands take by themselves. Without an id it is not stored.
    """
    run = document.run
    database = f" --db {shlex.quote(place)}" if place else ""
    parts = [
        brief(document),
        _saving(document),
        f"next: fusion-audit show {run.id}{safe(database)}" if run.id else "not stored",
    ]
    return " · ".join(part for part in parts if part)


def _saving(document: Document) -> str:
    totals = document.totals
    if not document.findings or not totals.saving.likely_us:
        return ""
    kernels = f"likely saving {duration(totals.saving.likely_us)} of kernel time"
    if not totals.step_us or not totals.saving.step_us:
        return kernels
    return f"{kernels}, {duration(totals.saving.step_us)} of {duration(totals.step_us)} wall time"
