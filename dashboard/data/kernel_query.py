"""Queries of kernels as a browser sends them, and as an address holds them. Both are checked here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args
from urllib.parse import quote, unquote

from auditor.errors import AuditError
from dashboard.data.kernel_groups import MEASURES
from dashboard.data.kernels import COLUMNS, NUMBERS, Filter, NumberTest, Query, TextTest

_SORTABLE = (*COLUMNS, "kernel", "group", *MEASURES)
MAX_FILTERS = 20
LONGEST_FIRST = (("dur_us", True),)
"""The order where none is asked for."""


def from_grid(filters: Mapping[str, Any] | None, sort: Sequence[Mapping[str, Any]] | None) -> Query:
    """The query of AG Grid's filter and sort models. AuditError where they hold what no grid of ours sends."""
    try:
        found = [each for column, model in (filters or {}).items() for each in _conditions(column, model)]
        ordered = [(str(each["colId"]), each.get("sort") == "desc") for each in sort or ()]
    except (KeyError, TypeError, AttributeError):
        raise AuditError("the filter or sort order of the grid can't be read; reload the page") from None
    return _checked(found, ordered or list(LONGEST_FIRST))


def from_text(filters: str = "", sort: str = "") -> Query:
    """The query of an address: ``name:contains:gemm;dur_us:inRange:10:20`` and ``-start_us,name``.

    Values are percent-encoded; without an order the longest kernels come first. AuditError where a part can't be read.
    """
    found = [_filter(part) for part in filters.split(";") if part]
    ordered = [(part.removeprefix("-"), part.startswith("-")) for part in sort.split(",") if part]
    return _checked(found, ordered or list(LONGEST_FIRST))


def to_text(query: Query) -> tuple[str, str]:
    """Filters and sort order for an address, which says nothing of the order that holds by itself."""
    order = query.sort if query.sort != LONGEST_FIRST else ()
    return ";".join(map(_as_text, query.filters)), ",".join(f"-{c}" if down else c for c, down in order)


def to_grid(query: Query) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """AG Grid's filter model, and the state of its sorted columns."""
    models: dict[str, Any] = {}
    for each in query.filters:
        models[each.column] = _as_model(each)
    order = [
        {"colId": column, "sort": "desc" if down else "asc", "sortIndex": i}
        for i, (column, down) in enumerate(query.sort)
    ]
    return models, order


def _conditions(column: str, model: Mapping[str, Any]) -> list[Filter]:
    """One or several conditions on a column, which must all hold (the grid offers no OR)."""
    if "conditions" in model:
        return [each for condition in model["conditions"] for each in _conditions(column, condition)]
    value = model.get("filter")
    to = model.get("filterTo")
    return [Filter(column, model["type"], "" if value is None else value, 0.0 if to is None else _number(to, column))]


def _filter(part: str) -> Filter:
    column, test, *values = part.split(":")[:4] if part.count(":") else (part, "")
    value = unquote(values[0]) if values else ""
    return Filter(column, test, value, _number(unquote(values[1]), part) if len(values) > 1 else 0.0)  # type: ignore[arg-type]


def _as_text(each: Filter) -> str:
    parts = [each.column, each.test, quote(_plain(each.value), safe="")]
    return ":".join([*parts, quote(_plain(each.to), safe="")] if each.test == "inRange" else parts)


def _plain(value: str | float) -> str:
    """``20`` for 20.0, and every digit of other numbers."""
    return value if isinstance(value, str) else repr(float(value)).removesuffix(".0")


def _as_model(each: Filter) -> dict[str, Any]:
    number = each.column in NUMBERS
    model = {"filterType": "number" if number else "text", "type": each.test, "filter": each.value}
    return {**model, "filterTo": each.to} if each.test == "inRange" else model


def _checked(filters: list[Filter], sort: list[tuple[str, bool]]) -> Query:
    if len(filters) > MAX_FILTERS or len(sort) > MAX_FILTERS:
        raise AuditError(f"a query of kernels takes up to {MAX_FILTERS} filters and columns to sort by")
    for column, _ in sort:
        if column not in _SORTABLE:
            raise AuditError(f"kernels can't be sorted by {column!r}; choose among {', '.join(_SORTABLE)}")
    return Query(tuple(map(_checked_filter, filters)), tuple(sort))


def _checked_filter(each: Filter) -> Filter:
    if each.column not in COLUMNS:
        raise AuditError(f"kernels have no column {each.column!r} to filter by; they have: {', '.join(COLUMNS)}")
    number = each.column in NUMBERS
    tests = get_args(NumberTest) if number else get_args(TextTest)
    if each.test not in tests:
        raise AuditError(f"filter on {each.column}: there is no test {each.test!r}; choose among {', '.join(tests)}")
    value = _number(each.value, each.column) if number else str(each.value)
    return Filter(each.column, each.test, value, each.to)


def _number(value: str | float, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise AuditError(f"filter on {where}: {value!r} is not a number")
    return number
