"""Kernels as CSV, in pieces: a million of them are never in memory at once; and their groups.

A spreadsheet takes a text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return for a formula, and a
kernel's name comes from a trace: such texts get an apostrophe before them (OWASP, CSV injection).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow
import pyarrow.csv

from dashboard.data.kernel_groups import MEASURES, grouped
from dashboard.data.kernel_table import KernelTable
from dashboard.data.kernels import NUMBERS, TEXTS, Query, Rows, select, words

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_PIECE = 20_000


def as_csv(table: KernelTable, query: Query) -> Iterator[bytes]:
    """The rows of the query, the header first, in UTF-8. AuditError for a column that is not there."""
    return _pieces(table, select(table, query))


def groups_csv(table: KernelTable, query: Query, by: str) -> Iterator[bytes]:
    """One row a group, as :func:`grouped` gives them. AuditError where there is no such group."""
    rows = grouped(table, query, by)
    columns: dict[str, pyarrow.Array] = {by: pyarrow.array([harmless(row["group"]) for row in rows], "string")}
    columns |= {measure: pyarrow.array([row[measure] for row in rows]) for measure in MEASURES}
    return iter([_written(columns, header=True)])


def _pieces(table: KernelTable, rows: Rows) -> Iterator[bytes]:
    texts = {column: _encoded(table, column) for column in TEXTS}
    for at in range(0, max(len(rows), 1), _PIECE):
        piece = rows[at : at + _PIECE]
        columns: dict[str, pyarrow.Array] = {"kernel": pyarrow.array(piece)}
        columns |= {name: column.take(pyarrow.array(piece)).cast("string") for name, column in texts.items()}
        columns |= {column: pyarrow.array(getattr(table, column)[piece]) for column in NUMBERS}
        yield _written(columns, header=at == 0)


def _written(columns: dict[str, pyarrow.Array], *, header: bool) -> bytes:
    out = pyarrow.BufferOutputStream()
    pyarrow.csv.write_csv(pyarrow.table(columns), out, pyarrow.csv.WriteOptions(include_header=header))
    written: bytes = out.getvalue().to_pybytes()
    return written


def _encoded(table: KernelTable, column: str) -> pyarrow.DictionaryArray:
    known = words(table, column)
    shown = pyarrow.array([harmless(word) for word in known.words], "string")
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array(known.codes), shown)


def harmless(text: str) -> str:
    """``text`` so that no spreadsheet takes it for a formula, whatever space stands before it."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text
