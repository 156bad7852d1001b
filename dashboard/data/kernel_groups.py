"""The kernels of a run added up by name, module, kind or finding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.errors import AuditError
from dashboard.data.kernel_table import KernelTable
from dashboard.data.kernels import GROUPS, Query, select, words

MEASURES = ("kernels", "dur_us", "mean_us", "max_us", "share", "in_findings")


def grouped(table: KernelTable, query: Query, by: str) -> list[dict[str, Any]]:
    """One row a group of the kernels that pass the filters, the most time first, or as ``query`` sorts by a measure.

    ``group``, ``kernels``, ``dur_us``, ``mean_us``, ``max_us``, ``share`` (of the time of all these kernels),
    ``in_findings`` (kernels). AuditError where there is no such group.
    """
    if by not in GROUPS:
        raise AuditError(f"kernels can't be grouped by {by!r}; choose one of {', '.join(GROUPS)}")
    rows = select(table, Query(query.filters))
    column = words(table, by)
    codes, dur = column.codes[rows], table.dur_us[rows]
    size = len(column.words)
    count, time = np.bincount(codes, minlength=size), np.bincount(codes, dur, size)
    found = np.bincount(codes[table.rule.codes[rows] != _no_rule(table)], minlength=size)
    present = np.flatnonzero(count)
    largest = _largest(codes, dur, size)
    whole = float(dur.sum()) or 1.0
    made = [
        {
            "group": column.words[i], "kernels": int(count[i]), "dur_us": float(time[i]),
            "mean_us": float(time[i] / count[i]), "max_us": float(largest[i]), "share": float(time[i] / whole),
            "in_findings": int(found[i]),
        }
        for i in present[np.argsort(-time[present], kind="stable")].tolist()
    ]  # fmt: skip
    for measure, descending in reversed(query.sort):
        if measure in (*MEASURES, "group"):
            made.sort(key=lambda row: row[measure], reverse=descending)
    return made


def _largest(codes: NDArray[np.int32], dur: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    largest = np.zeros(size)
    np.maximum.at(largest, codes, dur)
    return largest


def _no_rule(table: KernelTable) -> int:
    """Code of the kernels that are in no finding; -1 where all are in one."""
    return 0 if table.rule.words[:1] == ("",) else -1
