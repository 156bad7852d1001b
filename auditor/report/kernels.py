"""What a report says of fusions that are live and of kernels that nobody knows, before any format dresses it.

Names come from the run; they are made safe here. Tables hold text only.
"""

from __future__ import annotations

from auditor.document import Document, FamilyTotal, LiveFusion, Unplaced
from auditor.report.format import count, duration, plural, safe, share

LIVE = ("from", "what one kernel does", "kernels", "time")
OTHER = ("kernel", "kernels", "time")
FAMILIES = ("family", "kernels", "time", "of the kernel time")


def live_title(document: Document) -> str:
    """``fusion is live here: 290 kernels, 68.8 ms (14 % of the kernel time)``; empty where none is."""
    kernels = sum(each.kernels for each in document.live)
    time = sum(each.device_us for each in document.live)
    return f"fusion is live here: {plural(kernels, 'kernel')}{_time(document, time)}" if document.live else ""


def live_rows(document: Document, most: int) -> list[tuple[str, ...]]:
    """Cells under :data:`LIVE`, the longest time first; a last row counts those beyond ``most``."""
    rows: list[tuple[str, ...]] = [
        (safe(each.library) or "by its name", safe(each.what), *_amount(each)) for each in document.live[:most]
    ]
    left = document.live[most:]
    return [*rows, ("…", plural(len(left), "other fusion"), *_sum(left))] if left else rows


def other_title(document: Document) -> str:
    """``2 kernels of no known family, 12.0 µs (0.1 % of the kernel time)``; empty where all are known."""
    for total in document.families:
        if total.family == "other":
            return f"{plural(total.kernels, 'kernel')} of no known family{_time(document, total.device_us)}"
    return ""


def other_rows(document: Document, most: int) -> list[tuple[str, ...]]:
    """Cells under :data:`OTHER`, the longest time first; a last row counts the names beyond ``most``."""
    shown = document.unplaced[:most]
    rows: list[tuple[str, ...]] = [(safe(each.name) or "(no name)", *_amount(each)) for each in shown]
    total = next((each for each in document.families if each.family == "other"), None)
    if total is None:
        return rows
    kernels = total.kernels - sum(each.kernels for each in shown)
    time = total.device_us - sum(each.device_us for each in shown)
    return [*rows, ("… of other names", count(kernels), duration(max(time, 0.0)))] if kernels > 0 else rows


def family_rows(document: Document) -> list[tuple[str, ...]]:
    """Cells under :data:`FAMILIES`, the longest time first."""
    whole = document.totals.device_us
    held = sorted(document.families, key=lambda each: (-each.device_us, -each.kernels))
    return [(safe(each.family), *_amount(each), share(each.device_us, whole)) for each in held]


def _time(document: Document, us: float) -> str:
    return f", {duration(us)} ({share(us, document.totals.device_us)} of the kernel time)" if us > 0 else ""


def _amount(total: LiveFusion | Unplaced | FamilyTotal) -> tuple[str, str]:
    return count(total.kernels), duration(total.device_us) if total.device_us > 0 else "–"


def _sum(left: list[LiveFusion]) -> tuple[str, str]:
    kernels, time = sum(each.kernels for each in left), sum(each.device_us for each in left)
    return _amount(LiveFusion(kernels=kernels, device_us=time))
