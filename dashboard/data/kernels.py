"""The kernels of a run filtered, sorted, paged and grouped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from auditor.errors import AuditError
from dashboard.data.cache import CACHE
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
    """Numbers of the kernels that pass the filters, in order; by start where nothing else is asked for.

    Kept for a while: a grid asks for one query page by page.
    """
    return CACHE.get(("rows", table.serial, query), lambda: _Selected(_select(table, query))).rows


@dataclass(frozen=True)
class _Selected:
    rows: Rows

    @property
    def nbytes(self) -> int:
        return int(self.rows.nbytes)


def _select(table: KernelTable, query: Query) -> Rows:
    rows: Rows = np.flatnonzero(_passing(table, query.filters)) if query.filters else np.arange(len(table))
    keys = [_rank(table, column, descending) for column, descending in query.sort]
    if not keys:
        return rows
    if (joined := _joined(keys)) is not None:
        return rows[np.argsort(joined[rows])]
    return rows[np.lexsort([key[rows] for key in reversed(keys)])]


def _joined(keys: list[Rows]) -> Rows | None:
    """One key for several, with the row's number last: no two are equal, so that the fastest sort will do.

    None where they don't fit into 64 bits.
    """
    bits = 0
    joined = np.zeros(len(keys[0]), np.int64)
    for key in [*keys, np.arange(len(keys[0]))]:
        width = int(key.max(initial=0)).bit_length()
        bits += width
        joined = (joined << width) | key
    return joined if bits < 63 else None


def _rank(table: KernelTable, column: str, descending: bool) -> Rows:
    """Numbers from 0 that sort as the column does."""
    if _known(column, (*COLUMNS, "kernel")) in TEXTS:
        rank = words(table, column).codes.astype(np.int64)
    elif column in ("start_us", "kernel"):
        rank = np.arange(len(table))
    elif column == "dur_us":
        rank = table.dur_rank
    else:
        rank = np.unique(getattr(table, column), return_inverse=True)[1].astype(np.int64)
    return rank.max(initial=0) - rank if descending else rank


def words(table: KernelTable, column: str) -> Words:
    """The column of texts of that name."""
    found = getattr(table, _known(column, TEXTS))
    assert isinstance(found, Words)
    return found


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
