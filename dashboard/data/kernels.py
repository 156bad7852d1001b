"""The kernels of a run filtered, sorted, paged and grouped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dashboard.data.kernel_table import KernelTable

Test = Literal[
    "contains", "notContains", "equals", "notEqual", "startsWith", "endsWith", "blank", "notBlank",
    "lessThan", "lessThanOrEqual", "greaterThan", "greaterThanOrEqual", "inRange",
]  # fmt: skip
"""The tests of a filter, by the names that AG Grid has for them."""

GROUPS = ("name", "module", "module_class", "kind", "op_name", "rule")
"""Columns that kernels can be grouped by."""


@dataclass(frozen=True)
class Filter:
    column: str
    test: Test
    value: str | float = ""
    to: float = 0.0
    """Upper end of ``inRange``."""


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
    """``kernel`` (its number), ``name``, ``kind``, ``op_name``, ``module``, ``start_us``, ``dur_us``, … None: not known."""
    total: int
    dur_us: float


def page(table: KernelTable, query: Query, start: int = 0, stop: int = 100) -> Page:
    """Rows ``start`` up to ``stop`` of the query. AuditError for a column or test that is not there."""
    raise NotImplementedError


def grouped(table: KernelTable, query: Query, by: str) -> list[dict[str, Any]]:
    """One row a group, most time first: ``group``, ``kernels``, ``dur_us``, ``mean_us``, ``share``, ``bytes``."""
    raise NotImplementedError


def from_grid(filters: Mapping[str, Any] | None, sort: Sequence[Mapping[str, Any]] | None) -> Query:
    """The query of AG Grid's filter and sort models, which come from a browser and are checked here."""
    raise NotImplementedError


def from_text(filters: str = "", sort: str = "") -> Query:
    """The query of an address: ``filter=name:contains:gemm;dur_us:greaterThan:10`` and ``sort=-dur_us,name``."""
    raise NotImplementedError


def to_text(query: Query) -> tuple[str, str]:
    """``filter`` and ``sort`` for an address."""
    raise NotImplementedError


def csv(table: KernelTable, query: Query) -> Iterator[bytes]:
    """All rows of the query as CSV, in pieces; texts that a spreadsheet would take for a formula begin with ``'``."""
    raise NotImplementedError
