"""The kernels of a run filtered, sorted, paged and grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from auditor.errors import AuditError
from dashboard.data.kernel_table import KernelTable, Words

Rows = NDArray[np.int64]

TEXTS = ("name", "op_name", "module", "module_class", "source", "phase", "kind", "rule", "fingerprint")
NUMBERS = ("dur_us", "start_us", "stream", "device")
COLUMNS = (*TEXTS, *NUMBERS)
GROUPS = ("name", "module", "module_class", "kind", "op_name", "rule")
"""Columns that kernels can be grouped by."""

TextTest = Literal["contains", "notContains", "equals", "notEqual", "startsWith", "endsWith", "blank", "notBlank"]
NumberTest = Literal[
    "equals", "notEqual", "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual", "inRange"
]  # fmt: skip
Test = TextTest | NumberTest
"""The tests of a filter, by the names that AG Grid has for them."""


@dataclass(frozen=True)
class Filter:
    column: str
    test: Test
    value: str | float = ""
    to: float = 0.0
    """Upper end of ``inRange``; both ends belong to it."""


@dataclass(frozen=True)
class Query:
    filters: tuple[Filter, ...] = ()
    """All must hold."""
    sort: tuple[tuple[str, bool], ...] = ()
    """Column, and whether the largest comes first; the first decides, further ones where it is equal."""


@dataclass(frozen=True)
class Page:
    """Some rows, and what all rows of the query add up to."""

    rows: list[dict[str, Any]]
    """``kernel`` (its number) and every column of :data:`COLUMNS`."""
    total: int
    dur_us: float


def page(table: KernelTable, query: Query, start: int = 0, stop: int = 100) -> Page:
    """Rows ``start`` up to ``stop`` of the query. AuditError for a column or test that is not there."""
    found = select(table, query)
    rows = found[max(start, 0) : max(stop, 0)]
    return Page(rows_of(table, rows), len(found), float(table.dur_us[found].sum()))


def rows_of(table: KernelTable, rows: Rows) -> list[dict[str, Any]]:
    """Kernels by number, as a grid or JSON has them."""
    columns: list[list[Any]] = [rows.tolist()]
    columns += [words(table, column).take(rows) for column in TEXTS]
    columns += [getattr(table, column)[rows].tolist() for column in NUMBERS]
    names = ("kernel", *TEXTS, *NUMBERS)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def select(table: KernelTable, query: Query) -> Rows:
    """Numbers of the kernels that pass the filters, in order; by start where nothing else is asked for."""
    rows: Rows = np.flatnonzero(_passing(table, query.filters)) if query.filters else np.arange(len(table))
    for column, descending in reversed(query.sort):
        rows = _sorted(rows, _keys(table, column)[rows], descending)
    return rows


def words(table: KernelTable, column: str) -> Words:
    """The column of texts of that name."""
    found = getattr(table, _known(column, TEXTS))
    assert isinstance(found, Words)
    return found


def _sorted(rows: Rows, keys: NDArray[Any], descending: bool) -> Rows:
    """``rows`` by their keys; equal ones keep their order, whichever way is asked for."""
    return rows[np.argsort(-keys if descending else keys, kind="stable")]


def _keys(table: KernelTable, column: str) -> NDArray[Any]:
    """Small numbers that sort as the column does: NumPy sorts 16 bits by counting."""
    if _known(column, (*COLUMNS, "kernel")) in TEXTS:
        known = words(table, column)
        return known.codes.astype(np.int16) if len(known.words) < 2**15 else known.codes
    return np.arange(len(table)) if column == "kernel" else getattr(table, column)  # type: ignore[no-any-return]


def _passing(table: KernelTable, filters: tuple[Filter, ...]) -> NDArray[np.bool_]:
    passing = np.ones(len(table), bool)
    for each in filters:
        test = _text_passes if _known(each.column, COLUMNS) in TEXTS else _number_passes
        passing &= test(table, each)
    return passing


def _text_passes(table: KernelTable, wanted: Filter) -> NDArray[np.bool_]:
    """Whatever the case of its letters. Each different text is looked at once."""
    if wanted.test not in get_args(TextTest):
        raise AuditError(f"filter on {wanted.column}: texts have no test {wanted.test!r}")
    column, value = words(table, wanted.column), str(wanted.value).casefold()
    by_code = np.fromiter((_holds(wanted.test, word.casefold(), value) for word in column.words), bool)
    return by_code[column.codes] if len(by_code) else np.zeros(len(table), bool)


def _holds(test: str, text: str, value: str) -> bool:
    positive = {"notContains": "contains", "notEqual": "equals", "notBlank": "blank"}.get(test, test)
    holds = {
        "contains": value in text,
        "equals": text == value,
        "startsWith": text.startswith(value),
        "endsWith": text.endswith(value),
        "blank": not text,
    }[positive]
    return holds == (positive == test)


def _number_passes(table: KernelTable, wanted: Filter) -> NDArray[np.bool_]:
    column: NDArray[Any] = getattr(table, wanted.column)
    try:
        value = float(wanted.value)
    except ValueError:
        raise AuditError(f"filter on {wanted.column}: {wanted.value!r} is not a number") from None
    if wanted.test == "inRange":
        return (column >= value) & (column <= wanted.to)
    compare = {
        "equals": np.equal, "notEqual": np.not_equal, "lessThan": np.less, "lessThanOrEqual": np.less_equal,
        "greaterThan": np.greater, "greaterThanOrEqual": np.greater_equal,
    }.get(wanted.test)  # fmt: skip
    if compare is None:
        raise AuditError(f"filter on {wanted.column}: numbers have no test {wanted.test!r}")
    passing: NDArray[np.bool_] = compare(column, value)
    return passing


def _known(column: str, among: tuple[str, ...]) -> str:
    if column not in among:
        raise AuditError(f"kernels have no column {column!r}; they have: {', '.join(among)}")
    return column
