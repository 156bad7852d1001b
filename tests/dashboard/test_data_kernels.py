"""Kernels filtered, sorted, paged and grouped, and their queries as browsers and addresses give them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_tables import random_table, table

from auditor.errors import AuditError
from dashboard.api.routes.kernels import whole_rule
from dashboard.data.kernel_groups import grouped
from dashboard.data.kernel_query import LONGEST_FIRST, from_grid, from_text, to_grid, to_text
from dashboard.data.kernel_table import KernelTable
from dashboard.data.kernels import COLUMNS, GROUPS, TEXTS, Filter, Query, page, rows_of, select

KERNELS = random_table(400, seed=3)


def every_row(known: KernelTable) -> list[dict[str, Any]]:
    return page(known, Query(), 0, len(known)).rows


ROWS = every_row(KERNELS)


def test_pages_follow_each_other_and_hold_all() -> None:
    query = Query(sort=(("dur_us", True),))

    pages = [page(KERNELS, query, start, start + 150) for start in (0, 150, 300)]

    assert [len(each.rows) for each in pages] == [150, 150, 100]
    assert {each.total for each in pages} == {400}
    together = [row for each in pages for row in each.rows]
    assert together == sorted(ROWS, key=lambda row: -row["dur_us"])
    assert pages[0].dur_us == pytest.approx(sum(row["dur_us"] for row in ROWS))


@pytest.mark.parametrize("column", [*COLUMNS, "kernel"])
@pytest.mark.parametrize("descending", [False, True])
def test_every_column_sorts(column: str, descending: bool) -> None:
    found = page(KERNELS, Query(sort=((column, descending),)), 0, 400).rows

    assert found == sorted(ROWS, key=lambda row: row[column], reverse=descending)


def test_further_columns_decide_where_the_first_is_equal() -> None:
    found = page(KERNELS, Query(sort=(("kind", False), ("module", True), ("dur_us", False))), 0, 400).rows

    keys = [(row["kind"], [-ord(c) for c in row["module"]], row["dur_us"]) for row in found]
    assert keys == sorted(keys)


def test_columns_too_many_for_one_key_sort_the_same() -> None:
    columns = ("module", "kind", "name", "stream", "device", "phase", "dur_us", "start_us", "op_name", "rule", "kernel")
    found = page(KERNELS, Query(sort=tuple((column, False) for column in columns)), 0, 400).rows

    assert found == sorted(ROWS, key=lambda row: tuple(row[column] for column in columns))


@pytest.mark.parametrize(
    ("wanted", "passes"),
    [
        (Filter("name", "contains", "EL_3"), lambda row: "el_3" in row["name"]),
        (Filter("name", "notContains", "el_3"), lambda row: "el_3" not in row["name"]),
        (Filter("module", "equals", "Layers.1"), lambda row: row["module"] == "layers.1"),
        (Filter("module", "notEqual", "layers.1"), lambda row: row["module"] != "layers.1"),
        (Filter("kind", "startsWith", "co"), lambda row: row["kind"].startswith("co")),
        (Filter("kind", "endsWith", "er"), lambda row: row["kind"].endswith("er")),
        (Filter("rule", "blank"), lambda row: row["rule"] == ""),
        (Filter("rule", "notBlank"), lambda row: row["rule"] != ""),
        (Filter("dur_us", "greaterThan", 5.0), lambda row: row["dur_us"] > 5),
        (Filter("dur_us", "lessThanOrEqual", "2.5"), lambda row: row["dur_us"] <= 2.5),
        (Filter("stream", "equals", 2), lambda row: row["stream"] == 2),
        (Filter("stream", "notEqual", 2), lambda row: row["stream"] != 2),
        (Filter("start_us", "inRange", 10.0, 50.0), lambda row: 10 <= row["start_us"] <= 50),
        (Filter("start_us", "lessThan", 20.0), lambda row: row["start_us"] < 20),
        (Filter("start_us", "greaterThanOrEqual", 20.0), lambda row: row["start_us"] >= 20),
    ],
    ids=lambda each: f"{each.column}-{each.test}" if isinstance(each, Filter) else "",
)
def test_every_test_of_a_filter(wanted: Filter, passes: Any) -> None:
    found = page(KERNELS, Query((wanted,)), 0, 400)

    expected = [row for row in ROWS if passes(row)]
    assert 0 < len(expected) < 400
    assert found.rows == expected
    assert found.dur_us == pytest.approx(sum(row["dur_us"] for row in expected))


def test_filters_hold_together() -> None:
    found = page(KERNELS, Query((Filter("kind", "equals", "gemm"), Filter("dur_us", "greaterThan", 5.0))), 0, 400).rows

    assert found == [row for row in ROWS if row["kind"] == "gemm" and row["dur_us"] > 5]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (Query((Filter("color", "equals", "x"),)), "kernels have no column 'color'"),
        (Query(sort=(("__class__", False),)), "kernels have no column '__class__'"),
        (Query((Filter("name", "greaterThan", "x"),)), "texts have no test 'greaterThan'"),
        (Query((Filter("dur_us", "contains", "1"),)), "numbers have no test 'contains'"),
        (Query((Filter("dur_us", "equals", "much"),)), "'much' is not a number"),
    ],
)
def test_what_is_not_there_is_said(query: Query, says: str) -> None:
    with pytest.raises(AuditError, match=says):
        page(KERNELS, query)


def test_pages_beside_the_rows_are_empty() -> None:
    assert page(KERNELS, Query(), 400, 500).rows == []
    assert page(KERNELS, Query(), -5, 2).rows == ROWS[:2]
    assert page(table([]), Query((Filter("name", "contains", "x"),), (("dur_us", True),))).total == 0


def test_a_query_is_answered_from_memory_the_second_time() -> None:
    query = Query(sort=(("dur_us", True),))

    assert select(KERNELS, query) is select(KERNELS, query)
    assert select(random_table(400, seed=3), query) is not select(KERNELS, query)


@pytest.mark.parametrize("by", GROUPS)
def test_groups_add_up(by: str) -> None:
    query = Query((Filter("dur_us", "greaterThan", 1.0),))
    chosen = [row for row in ROWS if row["dur_us"] > 1]
    members: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in chosen:
        members[row[by]].append(row)

    found = grouped(KERNELS, query, by)

    assert {each["group"] for each in found} == set(members)
    assert [each["dur_us"] for each in found] == sorted((each["dur_us"] for each in found), reverse=True)
    whole = sum(row["dur_us"] for row in chosen)
    for each in found:
        own = members[each["group"]]
        assert each["kernels"] == len(own)
        assert each["dur_us"] == pytest.approx(sum(row["dur_us"] for row in own))
        assert each["mean_us"] == pytest.approx(each["dur_us"] / len(own))
        assert each["max_us"] == max(row["dur_us"] for row in own)
        assert each["share"] == pytest.approx(each["dur_us"] / whole)
        assert each["in_findings"] == sum(bool(row["rule"]) for row in own)


def test_groups_sort_by_a_measure_and_not_by_what_groups_lack() -> None:
    found = grouped(KERNELS, Query(sort=(("kernels", False), ("start_us", True))), "kind")

    assert [each["kernels"] for each in found] == sorted(each["kernels"] for each in found)


def test_groups_of_kernels_that_are_all_in_findings() -> None:
    known = table([{"start": 0, "dur": 1, "rule": "FUS201 x"}, {"start": 1, "dur": 2, "rule": "FUS206 y"}])

    assert [(each["group"], each["in_findings"]) for each in grouped(known, Query(), "rule")] == [
        ("FUS206 y", 1), ("FUS201 x", 1),
    ]  # fmt: skip


def test_what_can_not_be_grouped_by_is_said() -> None:
    with pytest.raises(AuditError, match="can't be grouped by 'start_us'; choose one of name, module"):
        grouped(KERNELS, Query(), "start_us")


def test_a_grid_model_becomes_a_query() -> None:
    filters = {
        "name": {"filterType": "text", "type": "contains", "filter": "gemm"},
        "dur_us": {"filterType": "number", "type": "inRange", "filter": 1, "filterTo": 9},
        "rule": {"filterType": "text", "type": "blank"},
    }
    sort = [{"colId": "dur_us", "sort": "desc"}, {"colId": "name", "sort": "asc"}]

    found = from_grid(filters, sort)

    assert found == Query(
        (Filter("name", "contains", "gemm"), Filter("dur_us", "inRange", 1.0, 9.0), Filter("rule", "blank", "")),
        (("dur_us", True), ("name", False)),
    )
    assert from_grid(None, None) == Query(sort=LONGEST_FIRST)
    models, order = to_grid(found)
    assert from_grid(models, order) == found


@pytest.mark.parametrize(
    ("filters", "sort"),
    [
        ({"name": {"filter": "x"}}, []),
        ({"name": "x"}, []),
        ({"name": {"type": "regex", "filter": "x"}}, []),
        ({"evil": {"type": "contains", "filter": "x"}}, []),
        ({"dur_us": {"type": "equals", "filter": "nan"}}, []),
        ({"dur_us": {"type": "inRange", "filter": 1, "filterTo": "x"}}, []),
        ({}, [{"colId": "serial", "sort": "asc"}]),
        ({}, [{"sort": "asc"}]),
        ({}, ["name"]),
        ({"name": {"conditions": [{"type": "contains", "filter": "x"}] * 21}}, []),
    ],
)
def test_a_grid_model_that_no_grid_of_ours_sends_is_refused(filters: Any, sort: Any) -> None:
    with pytest.raises(AuditError):
        from_grid(filters, sort)


@pytest.mark.parametrize(
    "text", ["name", "name:regex:x", "dur_us:equals:", "dur_us:inRange:1:b", "x:contains:y", ":::"]
)
def test_an_address_that_can_not_be_read_is_refused(text: str) -> None:
    with pytest.raises(AuditError):
        from_text(text)


def test_an_address_sorts_only_by_what_is_there() -> None:
    with pytest.raises(AuditError, match="can't be sorted by 'secret'"):
        from_text("", "-secret")


@given(
    filters=st.lists(
        st.builds(Filter, st.sampled_from(TEXTS), st.sampled_from(["contains", "equals", "notEqual"]), st.text())
        | st.builds(
            Filter, st.just("dur_us"), st.just("inRange"), st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)
        ),
        max_size=5,
    ),
    sort=st.lists(st.tuples(st.sampled_from(COLUMNS), st.booleans()), max_size=3),
)  # fmt: skip
def test_an_address_says_a_query_without_loss(filters: list[Filter], sort: list[tuple[str, bool]]) -> None:
    query = Query(tuple(filters), tuple(sort))

    try:
        texts = to_text(query)
    except UnicodeEncodeError:  # lone surrogates can't stand in an address
        return

    assert from_text(*texts) == (query if sort else Query(query.filters, LONGEST_FIRST))


def test_rows_by_number() -> None:
    import numpy as np

    assert rows_of(KERNELS, np.array([5, 2])) == [ROWS[5], ROWS[2]]


@pytest.mark.parametrize("asked", ["FUS201", "fus201", "unfused-rms-norm", "FUS201 unfused-rms-norm"])
def test_kernels_of_a_rule_by_its_id_or_its_name(asked: str) -> None:
    known = table([{"start": 0, "dur": 1, "rule": "FUS201 unfused-rms-norm"}, {"start": 1, "dur": 2, "rule": ""}])
    wanted = asked if " " in asked else whole_rule(known, asked)
    assert page(known, Query((Filter("rule", "equals", wanted),))).total == 1
    assert whole_rule(known, "FUS2") == "FUS2"
