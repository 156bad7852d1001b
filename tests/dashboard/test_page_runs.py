"""The list of runs: rows, filters, trends, two to compare."""

from __future__ import annotations

from dataclasses import replace

import pytest
from audited import GATES, save
from shown import button, by_id, drawings, links, page, text

from auditor.store import Store
from dashboard.context import Context, install

pytestmark = pytest.mark.usefixtures("browsing")


def test_runs_of_an_empty_store_say_how_to_begin() -> None:
    shown = text(page("runs").layout())

    assert "No audits yet." in shown
    assert "fusion-audit run script.py" in shown


def test_runs_are_rows_with_figures_beside_what_they_sort_by(store: Store) -> None:
    run = save(store)

    rows, _, number, _, problem = page("runs")._list("", None, None, None)

    assert (number, problem) == ("1 run", None)
    shown = ("id", "name", "href", "step_text", "kernels", "unfused_text", "avoidable_text")
    assert {key: rows[0][key] for key in shown} == {
        "id": run, "name": "llama", "href": f"/run/{run}", "step_text": "400 µs", "kernels": 11, "unfused_text": "9",
        "avoidable_text": "7",
    }  # fmt: skip
    assert rows[0]["memory_bound"] == pytest.approx(248 / 275)
    assert rows[0]["memory_bound_text"] == "90 %"


def test_runs_are_narrowed_by_text_and_model(store: Store) -> None:
    save(store, name="llama")
    bert = save(store, name="bert")

    assert [row["id"] for row in page("runs")._list("BER", None, None, None)[0]] == [bert]
    assert [row["name"] for row in page("runs")._list("", "llama", None, None)[0]] == ["llama"]
    assert page("runs")._list("nothing like it", None, None, None)[2] == "0 runs"


def test_runs_of_one_model_have_a_trend_and_its_words(store: Store) -> None:
    save(store)
    save(store, GATES)

    trends = page("runs")._list("", None, None, None)[3]

    assert links(trends) == {"llama": "/gate?model=llama"}
    assert "avoidable over 2 runs: 7 at first, 1 at last" in drawings(trends)


def test_two_selected_runs_are_compared_the_older_one_first() -> None:
    new = {"id": "b", "name": "new", "created": "2026-02-02", "created_text": "2026-02-02"}
    old = {"id": "a", "name": "old", "created": "2026-01-01", "created_text": "2026-01-01"}

    assert links(page("runs")._selected([new, old])[0]) == {"Compare": "/compare?a=a&b=b"}
    assert button(page("runs")._selected([new])[0]).disabled
    assert button(page("runs")._selected(None)[0]).disabled


def test_the_address_sets_filters_and_order(store: Store) -> None:
    save(store)

    shown = page("runs").layout(q="lla", model="llama", sort="avoidable_kernels.asc")

    assert by_id(shown, "runs-text").value == "lla"
    assert by_id(shown, "runs-model").value == "llama"
    sorted_by = [(c["field"], c["sort"]) for c in by_id(shown, "runs-grid").columnDefs if "sort" in c]
    assert sorted_by == [("avoidable_kernels", "asc")]
    assert not [c for c in by_id(page("runs").layout(sort="evil().asc"), "runs-grid").columnDefs if "sort" in c]


def test_an_upload_needs_a_login(store: Store, browsing: Context) -> None:
    save(store)

    assert "Choose a file" in text(page("runs").layout())
    install(replace(browsing, may_change=lambda: False))
    assert "Choose a file" not in text(page("runs").layout())
