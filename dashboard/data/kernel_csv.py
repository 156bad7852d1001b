"""Kernels as CSV, in pieces: a million of them are never in memory at once.

A spreadsheet takes a text that begins with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return for a formula, and a
kernel's name comes from a trace: such texts get an apostrophe before them (OWASP, CSV injection).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from dashboard.data.kernel_table import KernelTable
from dashboard.data.kernels import NUMBERS, TEXTS, Query, select, words

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
_PIECE = 20_000
HEADER = ("kernel", *TEXTS, *NUMBERS)


def as_csv(table: KernelTable, query: Query) -> Iterator[bytes]:
    """The rows of the query, the header first, in UTF-8. AuditError for a column that is not there."""
    rows = select(table, query)
    return _pieces(table, rows)


def _pieces(table: KernelTable, rows: Any) -> Iterator[bytes]:
    texts = [(words(table, column).codes, tuple(map(harmless, words(table, column).words))) for column in TEXTS]
    yield _lines([HEADER])
    for at in range(0, len(rows), _PIECE):
        piece = rows[at : at + _PIECE]
        columns: list[list[Any]] = [piece.tolist()]
        columns += [[shown[code] for code in codes[piece].tolist()] for codes, shown in texts]
        columns += [getattr(table, column)[piece].tolist() for column in NUMBERS]
        yield _lines(zip(*columns, strict=True))


def harmless(text: str) -> str:
    """``text`` so that no spreadsheet takes it for a formula, whatever space stands before it."""
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _lines(rows: Any) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    return out.getvalue().encode("utf-8", "backslashreplace")
