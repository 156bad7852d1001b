"""Kernels as CSV: nothing is lost, and no spreadsheet runs what a trace says."""

from __future__ import annotations

import csv
import io

import pytest
from kernel_tables import random_table, table

from dashboard.data import kernel_csv
from dashboard.data.kernel_csv import as_csv, harmless
from dashboard.data.kernel_query import from_text
from dashboard.data.kernels import Query, page


def read(pieces: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(pieces.decode("utf-8"))))


def test_all_rows_in_the_order_of_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_csv, "_PIECE", 30)
    known, query = random_table(100), from_text("dur_us:greaterThan:2", "-dur_us")

    pieces = list(as_csv(known, query))

    rows = page(known, query, 0, 100).rows
    assert len(pieces) == -(-len(rows) // 30)
    found = read(b"".join(pieces))
    assert [int(row["kernel"]) for row in found] == [row["kernel"] for row in rows]
    assert [float(row["dur_us"]) for row in found] == [row["dur_us"] for row in rows]
    assert [row["name"] for row in found] == [row["name"] for row in rows]


def test_no_kernels_are_a_header_alone() -> None:
    found = b"".join(as_csv(table([]), Query()))

    assert found.decode().splitlines()[0].split(",")[:2] == ['"kernel"', '"name"']
    assert read(found) == []


@pytest.mark.parametrize(
    "name", ["=1+1", "+1", "-1", "@SUM(A1)", "  =1", "\t=1", "＝1", "=HYPERLINK(\"http://x\",\"y\")"]
)  # fmt: skip
def test_no_name_is_a_formula(name: str) -> None:
    known = table([{"start": 0, "dur": 1, "name": name, "module": name, "op_name": name, "source": name}])

    row = read(b"".join(as_csv(known, Query())))[0]

    for column in ("name", "module", "op_name", "source"):
        assert not row[column].lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "＝")), row[column]


def test_names_with_commas_quotes_and_lines_stay_one_cell() -> None:
    name = 'void f<int, "x">(a)'
    known = table([{"start": 0, "dur": 1, "name": name}, {"start": 1, "dur": 1, "name": "two\nlines"}])

    found = read(b"".join(as_csv(known, Query())))

    assert [row["name"] for row in found] == [name, r"two\x0alines"]


def test_a_plain_name_stays_as_it_is() -> None:
    assert harmless("void at::native::add<4>(float*)") == "void at::native::add<4>(float*)"
    assert harmless("") == ""
