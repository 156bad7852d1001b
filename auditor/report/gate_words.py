"""Figures of the gate in words. A trace of several steps has parts of a kernel a step: such keep one decimal."""

from __future__ import annotations

from auditor.gate_document import Place, Spread, Unit
from auditor.report.facts import short_path
from auditor.report.format import count, duration, percent, safe, size


def number(value: float) -> str:
    """A count a step: ``1,204``, ``12.3``."""
    return count(round(value)) if value == round(value) else f"{value:,.1f}"


def several(value: float, noun: str) -> str:
    """``1 kernel``, ``12.3 kernels``."""
    return f"{number(value)} {noun if value == 1 else noun + 's'}"


def amount(value: float, unit: Unit) -> str:
    """A figure in its unit."""
    return {"count": number, "bytes": size, "share": percent, "us": duration}[unit](value)


def with_spread(value: float, unit: Unit, over: Spread | None) -> str:
    """What is measured says of how many runs: ``62 % (median of 5 runs, 60 % to 64 %)``; what is counted needs not."""
    if over is None:
        return amount(value, unit)
    if over.low is None or over.high is None:
        return f"{amount(value, unit)} ({'one run' if over.runs == 1 else f'median of {over.runs} runs'})"
    interval = f"{amount(over.low, unit)} to {amount(over.high, unit)}"
    return f"{amount(value, unit)} (median of {over.runs} runs, {interval})"


def more(difference: float, unit: Unit) -> str:
    """``14 more``, ``1.05 MB more``, ``3.1 points more``."""
    if unit == "share":
        return f"{100 * difference:.1f} points more"
    return f"{amount(difference, unit)} more"


def signed(before: float, after: float, unit: Unit) -> str:
    """What ``after`` has more or less: ``+14``, ``−1.05 MB``, ``0``."""
    if before == after:
        return "0"
    sign = "+" if after > before else "−"
    difference = abs(after - before)
    return f"{sign}{100 * difference:.1f} points" if unit == "share" else f"{sign}{amount(difference, unit)}"


def line_of(place: Place | None) -> str:
    """``model.py:11 in forward``, from the package's root where it is installed; empty where it isn't known."""
    if place is None:
        return ""
    where = f"{short_path(place.file)}:{place.line}"
    return f"{where} in {safe(place.function)}" if place.function else where
