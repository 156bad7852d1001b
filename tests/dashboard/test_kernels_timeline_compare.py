"""The pages of many kernels: timeline, list of kernels, comparison. What they answer, and what they refuse."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pytest
from audited import GATES, HOSTILE, NORMS, audited, graph, save
from dash.exceptions import PreventUpdate
from flask.testing import FlaskClient
from shown import by_id, links, parts, text

from auditor.graph.model import Kernel
from auditor.graph.tables import to_tables
from auditor.store import Store
from dashboard import Context, create_app
from dashboard.context import installed


@pytest.fixture
def app(store: Store) -> Iterator[Any]:
    with installed(Context(store=store)) as made:
        yield create_app(made)


@pytest.fixture
def client(app: Any) -> FlaskClient:
    return app.server.test_client()  # type: ignore[no-any-return]


def page(name: str) -> Any:
    import importlib

    return importlib.import_module(f"dashboard.pages.{name}")


def asked(run: str, t0: Any = None, t1: Any = None) -> dict[str, Any]:
    return {"run": run, "t0": t0, "t1": t1, "end": 0.0, "width": 800}


# --- timeline --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("app")
def test_the_timeline_begins_where_its_address_says(store: Store) -> None:
    run = save(store)

    shown = page("timeline").layout("latest", t0="10.5", t1="200", kernel="3")

    assert by_id(shown, "timeline-view").data == {"run": run, "t0": 10.5, "t1": 200.0, "end": 0.0, "width": 1200}
    assert by_id(shown, "timeline-kernel").data == 3
    assert [part.children for part in parts(shown) if type(part).__name__ == "Button"] == [
        "Zoom in", "Zoom out", "Earlier", "Later", "Whole run",
    ]  # fmt: skip


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("odd", ["x", "nan", "1e999", "-5", "９", "<b>"])
def test_odd_parts_of_the_address_are_left_out(store: Store, odd: str) -> None:
    save(store)

    shown = page("timeline").layout("latest", t0=odd, kernel=odd)

    assert by_id(shown, "timeline-view").data["t0"] in (None, -5.0, 9.0)
    assert by_id(shown, "timeline-kernel").data is None


@pytest.mark.usefixtures("app")
def test_the_timeline_is_drawn_with_what_is_seen_in_words(store: Store) -> None:
    run = save(store)

    figure, says, problem, view, name = page("timeline")._draw(asked(run, 0.0, 100.0), None, "light")

    assert problem is None
    assert (view["t0"], view["t1"], view["end"]) == (0.0, 100.0, 330.0)
    assert says == "0 µs to 100 µs, 100 µs of 330 µs · 4 kernels on 1 stream · each drawn"
    assert says in name
    assert sum(len(trace["hovertext"]) for trace in figure["data"]) == 4
    kinds, longest = page("timeline")._describe(view, None)
    assert text(kinds).split("kind time of the kernel time ")[1].startswith("pointwise 51.0 µs 70 % reduction 22.0 µs")
    assert "aten.rsqrt_kernel" not in text(longest)
    assert "aten.add_kernel" in text(longest)


@pytest.mark.usefixtures("app")
def test_a_kernel_of_the_address_is_brought_into_view(store: Store) -> None:
    run = save(store)

    figure, _, _, view, _ = page("timeline")._draw(asked(run), 8, "dark")

    assert view["t0"] <= 30.0 * 8 < view["t1"]
    assert len(figure["layout"]["shapes"]) == 1


@pytest.mark.usefixtures("app")
def test_the_panel_says_what_stands_behind_a_kernel(store: Store) -> None:
    run = save(store)

    shown = page("timeline")._panel(1, asked(run))

    said = text(shown)
    for fact in (
        "aten.pow_kernel",
        "aten.pow",
        "layers.0.norm",
        "(Norm)",
        "/models/llama.py:11",
        "21.0 µs, from 30.0 µs on",
    ):
        assert fact in said
    finding = store.load(run).document.findings[0]
    assert links(shown)[f"{finding.rule} {finding.name}"] == f"/run/{run}/finding/{finding.fingerprint}"
    assert [part.id["kernel"] for part in parts(shown) if type(part).__name__ == "Button"] == [0, 2]


@pytest.mark.usefixtures("app")
def test_no_kernel_and_one_that_is_not_there(store: Store) -> None:
    run = save(store)

    assert "No kernel chosen yet" in text(page("timeline")._panel(None, asked(run)))
    assert f"run {run} has no kernel 99: it holds 11" in text(page("timeline")._panel(99, asked(run)))


@pytest.mark.usefixtures("app")
def test_a_timeline_that_can_not_be_drawn_says_why(store: Store) -> None:
    made = graph(NORMS)
    for op in made.ops:
        op.kernels = (Kernel("k", 0.0, 0.0),)
    run = store.save(audited(made), to_tables(made))

    _, _, problem, _, _ = page("timeline")._draw(asked(run), None, "light")

    assert "holds no kernel with a time" in text(problem)
    bare = store.save(audited(made), {})
    assert "has no table of kernels" in text(page("timeline").layout(bare))
    with pytest.raises(PreventUpdate):
        page("timeline")._draw(asked(run), None, None)


@pytest.mark.usefixtures("app")
def test_what_was_not_foreseen_is_one_sentence_and_a_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = save(store)
    monkeypatch.setattr(page("timeline"), "timeline", lambda _run: 1 / 0)

    _, _, problem, _, _ = page("timeline")._draw(asked(run), None, "light")

    assert "error" in text(problem)
    assert "division" not in text(problem)


# --- kernels ---------------------------------------------------------------------------------------


def rows(run: str, **request: Any) -> tuple[Any, Any, Any]:
    answer: tuple[Any, Any, Any] = page("kernels")._rows({"startRow": 0, "endRow": 100, **request}, run)
    return answer


@pytest.mark.usefixtures("app")
def test_the_grid_gets_the_page_that_it_asks_for(store: Store) -> None:
    run = save(store)

    answer, query, problem = rows(
        run, endRow=2, sortModel=[{"colId": "dur_us", "sort": "desc"}],
        filterModel={"kind": {"filterType": "text", "type": "equals", "filter": "pointwise"}},
    )  # fmt: skip

    assert problem is None
    assert answer["rowCount"] == 9
    assert [(row["id"], row["name"], row["dur_us_text"]) for row in answer["rowData"]] == [
        ("k10", "aten.add_kernel", "30.00"), ("k9", "aten.mul_kernel", "29.00"),
    ]  # fmt: skip
    assert answer["rowData"][0]["at"] == f"/run/{run}/timeline?kernel=10"
    assert query == {"filter": "kind:equals:pointwise", "sort": ""}  # the longest first goes without saying


@pytest.mark.usefixtures("app")
def test_without_an_order_the_longest_come_first_and_every_other_one_is_kept(store: Store) -> None:
    run = save(store)

    def first(**request: Any) -> tuple[int, str]:
        answer, query, _ = rows(run, **request)
        return answer["rowData"][0]["kernel"], query["sort"]

    assert first() == (10, "")
    assert first(sortModel=[{"colId": "dur_us", "sort": "asc"}]) == (0, "dur_us")
    assert first(sortModel=[{"colId": "start_us", "sort": "asc"}]) == (0, "start_us")
    shown = by_id(page("kernels").layout("latest"), "kernels-grid")
    assert [(c["field"], c["sort"]) for c in shown.columnDefs if "sort" in c] == [("dur_us", "desc")]
    other = by_id(page("kernels").layout("latest", sort="start_us"), "kernels-grid")
    assert [(c["field"], c["sort"]) for c in other.columnDefs if "sort" in c] == [("start_us", "asc")]


@pytest.mark.usefixtures("app")
def test_a_number_is_the_least_time_but_a_stream_is_that_very_one(store: Store) -> None:
    save(store)

    columns = by_id(page("kernels").layout("latest"), "kernels-grid").columnDefs

    least = {c["field"] for c in columns if c["filterParams"].get("defaultOption") == "greaterThanOrEqual"}
    assert least == {"dur_us", "start_us"}


@pytest.mark.usefixtures("app")
def test_long_names_lose_their_middle_and_not_their_end(store: Store) -> None:
    made = graph(NORMS)
    names = [f"void at::native::vectorized_elementwise_kernel<4, at::native::{each}>" for each in ("Add", "Mul")]
    for op, name in zip(made.ops, names, strict=False):
        op.kernels = (Kernel(name, 0.0, 500.0),)
    run = store.save(audited(made), to_tables(made))

    answer, _, _ = rows(run)
    _, groups, _, _ = page("kernels")._show({}, "name", "", run)

    found = {row["name"]: row["name_text"] for row in answer["rowData"]}
    grouped_by = {row["group"]: row["group_text"] for row in by_id(groups, "kernels-group-grid").rowData}
    for shown in (found, grouped_by):
        assert len({shown[name] for name in names}) == 2
        assert all(shown[name].startswith("void at::") and "…" in shown[name] for name in names)
        assert all(shown[name].endswith(name[-8:]) for name in names)


@pytest.mark.usefixtures("app")
def test_a_request_that_no_grid_sends_is_refused_in_words(store: Store) -> None:
    run = save(store)

    answer, _, problem = rows(run, filterModel={"__class__": {"type": "contains", "filter": "x"}})

    assert answer == {"rowData": [], "rowCount": 0}
    assert "kernels have no column '__class__'" in text(problem)
    with pytest.raises(PreventUpdate):
        page("kernels")._rows(None, run)


@pytest.mark.usefixtures("app")
def test_a_browser_can_not_ask_for_all_rows_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = save(store), []
    kernels = page("kernels")
    real = kernels.page
    monkeypatch.setattr(kernels, "page", lambda *given: seen.append(given[2:]) or real(*given))

    rows(run, startRow=0, endRow=10_000_000)

    assert seen == [(0, 1000)]


@pytest.mark.usefixtures("app")
def test_groups_show_their_kernels(store: Store) -> None:
    run = save(store)

    asked = {"filter": "dur_us:greaterThan:20", "sort": "start_us"}
    says, groups, hide_groups, hide_rows = page("kernels")._show(asked, "kind", "", run)
    csv_link, shown = page("kernels")._addresses(asked, "kind", "-kernels", run)

    assert says == "10 of 11 kernels · 255 µs"
    assert (hide_groups, hide_rows) == (False, True)
    assert shown == {**asked, "group": "kind", "group_sort": "-kernels"}
    grid = by_id(groups, "kernels-group-grid")
    first = grid.rowData[0]
    assert (first["group"], first["kernels_text"], first["dur_us_text"]) == ("pointwise", "8", "206 µs")
    assert (
        first["href"]
        == f"/run/{run}/kernels?filter=dur_us%3AgreaterThan%3A20%3Bkind%3Aequals%3Apointwise&sort=start_us"
    )
    assert [(c["field"], c["sort"]) for c in grid.columnDefs if "sort" in c] == [("dur_us", "desc")]
    assert links(csv_link) == {
        "Download CSV": f"/run/{run}/kernels.csv?filter=dur_us%3AgreaterThan%3A20&sort=start_us&group=kind"
        "&group_sort=-kernels"
    }


@pytest.mark.usefixtures("app")
def test_groups_begin_in_the_order_of_the_address(store: Store) -> None:
    run = save(store)

    order = by_id(page("kernels").layout("latest", group="kind", group_sort="kernels"), "kernels-group-order").data
    _, groups, _, _ = page("kernels")._show({}, "kind", order, run)

    columns = by_id(groups, "kernels-group-grid").columnDefs
    assert [(c["field"], c["sort"]) for c in columns if "sort" in c] == [("kernels", "asc")]


@pytest.mark.usefixtures("app")
def test_without_a_group_the_kernels_themselves_are_shown(store: Store) -> None:
    run = save(store)

    says, groups, hide_groups, hide_rows = page("kernels")._show({"filter": "", "sort": ""}, "serial", "", run)
    _, shown = page("kernels")._addresses({"filter": "", "sort": ""}, "serial", "-kernels", run)

    assert (says, groups, hide_groups, hide_rows) == ("11 kernels · 275 µs", None, True, False)
    assert set(shown.values()) == {""}


@pytest.mark.usefixtures("app")
def test_the_page_of_kernels_begins_with_the_query_of_its_address(store: Store) -> None:
    save(store)

    shown = page("kernels").layout("latest", filter="name:contains:mul", sort="-dur_us", group="kind")

    grid = by_id(shown, "kernels-grid")
    assert grid.filterModel == {"name": {"filterType": "text", "type": "contains", "filter": "mul"}}
    assert [c["field"] for c in grid.columnDefs if c.get("sort") == "desc"] == ["dur_us"]
    assert by_id(shown, "kernels-one-by-one").hidden
    assert not by_id(shown, "kernels-groups").hidden
    broken = page("kernels").layout("latest", filter="<script>:x")
    assert "kernels have no column '<script>'" in text(broken)
    assert by_id(broken, "kernels-grid").filterModel == {}


def test_the_csv_holds_what_the_list_shows(store: Store, client: FlaskClient) -> None:
    run = save(store)

    got = client.get(f"/run/{run}/kernels.csv?filter=kind%3Aequals%3Apointwise&sort=-dur_us")

    assert (got.status_code, got.content_type) == (200, "text/csv; charset=utf-8")
    assert got.headers["Content-Disposition"] == f'attachment; filename="kernels-{run}.csv"'
    found = list(csv.DictReader(io.StringIO(got.text)))
    assert [row["kernel"] for row in found][:3] == ["10", "9", "8"]
    assert len(found) == 9


def test_the_csv_of_groups_holds_a_row_for_each_of_them(store: Store, client: FlaskClient) -> None:
    run = save(store)

    got = client.get(f"/run/{run}/kernels.csv?filter=dur_us%3AgreaterThan%3A20&group=kind&group_sort=kernels&sort=name")

    assert got.headers["Content-Disposition"] == f'attachment; filename="kernels-{run}-by-kind.csv"'
    found = list(csv.DictReader(io.StringIO(got.text)))
    assert list(found[0]) == ["kind", "kernels", "dur_us", "mean_us", "max_us", "share", "in_findings"]
    assert [(row["kind"], row["kernels"]) for row in found] == [("gemm", "1"), ("reduction", "1"), ("pointwise", "8")]
    nothing = client.get(f"/run/{run}/kernels.csv?filter=kind%3Aequals%3Anone&group=kind")
    assert nothing.text.count("\n") == 1


def test_the_csv_begins_with_the_longest_where_no_order_is_asked_for(store: Store, client: FlaskClient) -> None:
    run = save(store)

    found = list(csv.DictReader(io.StringIO(client.get(f"/run/{run}/kernels.csv").text)))

    assert [row["kernel"] for row in found][:2] == ["10", "9"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/run/zzz/kernels.csv", 404), ("/run/latest/kernels.csv?sort=serial", 400),
        ("/run/latest/kernels.csv?group=serial", 400),
    ],
)  # fmt: skip
def test_a_csv_that_is_not_there_is_plain_text(store: Store, client: FlaskClient, path: str, status: int) -> None:
    save(store)

    got = client.get(path)

    assert (got.status_code, got.content_type) == (status, "text/plain; charset=utf-8")
    assert got.text.count("\n") == 1


# --- compare ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("app")
def test_without_an_address_the_two_newest_runs_of_a_name_are_compared(store: Store) -> None:
    older, newer, _other = save(store), save(store), save(store, name="other")
    newest = save(store)

    shown = page("compare").layout()

    assert (by_id(shown, "compare-a").value, by_id(shown, "compare-b").value) == (newer, newest)
    assert older in {each["value"] for each in by_id(shown, "compare-a").options}


@pytest.mark.usefixtures("app")
def test_runs_of_the_address_are_found_by_name_and_missing_ones_said(store: Store) -> None:
    first, second = save(store, name="one"), save(store, name="two")

    shown = page("compare").layout(a="two", b=first)

    assert (by_id(shown, "compare-a").value, by_id(shown, "compare-b").value) == (second, first)
    assert "no run 'zzz'" in text(page("compare").layout(a="zzz"))


@pytest.mark.usefixtures("app")
def test_an_empty_store_has_nothing_to_compare() -> None:
    assert "No audits yet." in text(page("compare").layout())


@pytest.mark.usefixtures("app")
def test_a_comparison_says_what_is_gone_with_figures(store: Store) -> None:
    before, after = save(store), save(store, GATES)

    shown = page("compare")._compare(before, after)

    said = text(shown)
    assert "kernels 11 2 −9 (−82 %)" in said
    finding = store.load(before).document.findings[0]
    assert f"/run/{before}/finding/{finding.fingerprint}" in links(shown).values()
    assert "− gone" in said.replace("−  gone", "− gone")
    grid = by_id(shown, "compare-kernels")
    gone = next(row for row in grid.rowData if row["name"] == "aten.pow_kernel")
    assert (gone["change_text"], gone["before_text"], gone["after_text"], gone["difference_text"]) == (
        "− gone", "21.0 µs", "–", "−21.0 µs (−100 %)",
    )  # fmt: skip


@pytest.mark.usefixtures("app")
def test_a_comparison_of_nothing_asks_for_two_runs(store: Store) -> None:
    run = save(store)

    assert "Choose two runs." in text(page("compare")._compare(run, None))
    assert "no run 'zzz'" in text(page("compare")._compare(run, "zzz"))


@pytest.mark.usefixtures("app")
def test_names_of_a_trace_can_not_steer_a_page(store: Store) -> None:
    made = graph(NORMS, module=HOSTILE)
    made.ops[0].kernels = (Kernel(HOSTILE, 0.0, 20.0),)
    run = store.save(audited(made, name="evil"), to_tables(made))

    shown = [
        page("timeline")._panel(0, asked(run)), page("timeline")._describe(asked(run), None),
        page("compare")._compare(run, run), page("compare").layout(),
    ]  # fmt: skip
    answer, _, _ = rows(run)

    said = text(shown) + str(answer)
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert all(type(part).__name__ not in ("Markdown", "DangerouslySetInnerHTML") for part in parts(shown))
