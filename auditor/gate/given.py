"""Limits that code gives instead of a file: a test's marker, a callback's argument. No baseline has a part in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from auditor.config import Written
from auditor.errors import AuditError
from auditor.gate.budget import Demands, given_demands

_NO_INCREASE = "max_increase"


def keyed_demands(
    keys: Mapping[str, Any], written: Written, known: Sequence[tuple[str, str]], *, why_no_increase: str
) -> Demands:
    """What ``keys`` demand: those of :class:`~auditor.budget.Budget`, but for ``max_increase``.

    Args:
        keys: as in ``pyproject.toml``; tuples are taken for lists.
        written: the place, for messages; its section is what the keys belong to.
        known: ids and names of the rules that there are.
        why_no_increase: why there is no baseline, for the message.

    Raises:
        AuditError: a key that there is not, an amount that is none, an increase, or no limit at all.
    """
    name = written.section
    if _increases(keys):
        raise AuditError(f"{written.at()}: {name} has no {_NO_INCREASE}: {why_no_increase}; use max_…")
    demands = given_demands(_plain(keys), written, known)
    if not demands:
        raise AuditError(f"{written.at()}: {name} sets no limit; write one such as max_unfused_kernels=12")
    return demands


def _increases(keys: Mapping[str, Any]) -> bool:
    entries = keys.get("budgets")
    nested = entries if isinstance(entries, (list, tuple)) else ()
    return any(_NO_INCREASE in each for each in (keys, *nested) if isinstance(each, Mapping))


def _plain(value: Any) -> Any:
    """Tuples as the lists that files have."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value
