"""What a comparison says of kernels, in words and in order, before any format dresses it.

Names come from the runs: they are made safe here.
"""

from __future__ import annotations

from auditor.gate_document import Comparison, KernelChange, KernelTable
from auditor.report.format import count, duration, plural, safe, speedup
from auditor.report.gate_words import number

HEAD = ("OP", "KERNELS", "AFTER", "TIME", "AFTER", "RATIO", "PAIRED BY")
NUMBERS = (1, 2, 3, 4, 5)
"""Columns of the table that are numbers: before and after of both, and after to before of the time."""
_ALONE = ("only after", "only before")


def shown(table: KernelTable, most: int) -> list[KernelChange]:
    """The rows that a report lists: those with the largest difference in time."""
    return table.rows[:most]


def row(change: KernelChange) -> tuple[str, ...]:
    """Cells under :data:`HEAD`."""
    return (
        named(change),
        *(number(value) if value else "–" for value in change.kernels),
        *(duration(value) if value else "–" for value in change.device_us),
        "–" if change.ratio is None else speedup(change.ratio),
        paired(change),
    )


def named(change: KernelChange) -> str:
    """``aten.batch_norm [8, 64] (backward)``; what has no op of one name goes by its family."""
    name = safe(change.op) or "without an op"
    if not change.op and change.paired_by == "family" and change.family != "without an op":
        name = f"other {safe(change.family)} ops"
    phase = f" ({change.phase})" if change.phase not in ("", "forward") else ""
    return f"{name}{phase}"


def paired(change: KernelChange) -> str:
    """What the two have in common beside their op, or which run alone has it."""
    return safe(change.paired_by) if change.paired_by else _ALONE[bool(change.ops[0])]


def where(change: KernelChange) -> str:
    """Module and shapes of a row, as far as they are one."""
    return " · ".join(safe(part) for part in (change.module, change.shapes) if part)


def kernels(change: KernelChange) -> list[tuple[str, str]]:
    """Names of the kernels before and after; one line where they are called the same."""
    before, after = (", ".join(map(safe, names)) for names in change.names)
    if before == after:
        return [("both", before)]
    return [pair for pair in (("before", before), ("after", after)) if pair[1]]


def rest(table: KernelTable, most: int) -> tuple[str, ...] | None:
    """One row of what is not listed."""
    left = table.rows[most:]
    if not left:
        return None
    sums = [[sum(pair[i] for pair in pairs) for i in (0, 1)] for pairs in
            ([r.kernels for r in left], [r.device_us for r in left])]  # fmt: skip
    return (f"{count(len(left))} more", *map(number, sums[0]), *map(duration, sums[1]), "", "")


def total(table: KernelTable) -> tuple[str, ...]:
    """The sums of all rows."""
    return ("all", *row(table.total)[1:6], "")


def sentences(found: Comparison) -> list[str]:
    """What the table can't say."""
    table = found.kernels
    if table is None:
        return []
    told = []
    for side, left in zip(("before", "after"), table.left_out, strict=True):
        if left:
            told.append(f"{plural(left, 'kernel')} {side} belong to no whole step of the recording: not counted here.")
    alone = [sum(not r.paired_by and r.ops[i] > 0 for r in table.rows) for i in (0, 1)]
    if any(alone):
        told.append(f"Rows that one run alone has: {alone[0]} before, {alone[1]} after.")
    return told
