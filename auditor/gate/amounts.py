"""Amounts as a project writes them: ``12``, ``1.2 GB``, ``60 %``, and what they may be for which measure."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from auditor.budget import Amount
from auditor.gate_document import Unit

_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_TIMES = {"us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}
_TEXT = re.compile(r"([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµμ%]*)")
_EXPECTED = {
    "count": "a whole number",
    "bytes": 'a number of bytes, or text such as "1.2 GB"',
    "share": 'a share such as 0.6 or "60 %"',
    "us": 'a number of microseconds, or text such as "12 ms"',
}


@dataclass(frozen=True, slots=True)
class Allowed:
    """How much more than before is allowed: an absolute amount, or a share of what was."""

    amount: float
    relative: bool = False

    def over(self, before: float) -> float:
        """The most that there may be now."""
        return before * (1 + self.amount) if self.relative else before + self.amount


def limit(amount: Amount, unit: Unit) -> float:
    """``amount`` in the measure's own unit.

    Raises:
        ValueError: it isn't one; the message goes on after the key ("must not be negative, not -1").
    """
    number, mark = _split(amount, unit)
    value = _in_unit(number, mark, unit, amount)
    if unit == "share" and value > 1:
        raise ValueError(f"must be {_EXPECTED[unit]}, not {amount!r}")
    return value


def increase(amount: Amount, unit: Unit) -> Allowed:
    """How much more is allowed. Percent are of the baseline's value, but for a share, where they are points.

    Raises:
        ValueError: as :func:`limit` does.
    """
    number, mark = _split(amount, unit)
    if mark == "%" and unit != "share":
        return Allowed(number / 100, relative=True)
    return Allowed(_in_unit(number, mark, unit, amount))


def _split(amount: Amount, unit: Unit) -> tuple[float, str]:
    match = _TEXT.fullmatch(amount.strip()) if isinstance(amount, str) else None
    if isinstance(amount, str) and match is None:
        raise ValueError(f"must be {_EXPECTED[unit]}, not {amount!r}")
    number = _number(match[1] if match else amount)
    if not math.isfinite(number):
        raise ValueError(f"must be {_EXPECTED[unit]}, not {amount!r}")
    if number < 0:
        raise ValueError(f"must not be negative, not {amount}")
    return number, match[2].lower() if match else ""


def _number(amount: Amount) -> float:
    """NaN where it is none, or too large for one."""
    try:
        return float(amount)
    except (ValueError, OverflowError):
        return math.nan


def _in_unit(number: float, mark: str, unit: Unit, amount: Amount) -> float:
    if unit == "bytes" and mark in _BYTES:
        return number * _BYTES[mark]
    if unit == "us" and mark in _TIMES:
        return number * _TIMES[mark]
    if unit == "share" and mark == "%":
        return number / 100
    if mark or (unit == "count" and number != int(number)):
        raise ValueError(f"must be {_EXPECTED[unit]}, not {amount!r}")
    return number
