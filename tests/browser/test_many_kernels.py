"""The timeline, the list of kernels and the comparison in use: zoomed, chosen, sorted, filtered, grouped, swapped."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browsed import MODULE, Seen, Site
from playwright.sync_api import FloatRect, Locator, Page, expect
from settled import settled


def query(page: Page) -> dict[str, str]:
    """The query of the page's address."""
    return {key: values[0] for key, values in parse_qs(urlsplit(page.url).query).items()}


LISTENING = """() => {
  const plot = document.querySelector('#timeline-graph .js-plotly-plot');
  return plot && plot._ev && plot._ev.listenerCount('plotly_relayout') > 0; }"""
"""The page hears of what is done to the drawing; before, a drag zooms the drawing and nobody asks for its kernels."""


def still(place: Locator) -> FloatRect:
    """Where it is, once it has stopped to move: what stands above it may still be laid out."""
    before = None
    while (now := place.bounding_box()) is None or now != before:
        before = now
        place.page.wait_for_timeout(150)
    return now


def opened(seen: Seen, site: Site, path: str) -> Page:
    settled(seen.page, f"{site.url}/run/{site.run}/{path}")
    return seen.page


def test_the_timeline_zooms_and_moves_by_button_and_the_address_follows(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "timeline")
    says = page.locator("#timeline-says")
    expect(says).to_contain_text("11 kernels on 1 stream")

    page.get_by_role("button", name="Zoom in").click()

    expect(says).to_contain_text("82 µs to 248 µs")
    page.wait_for_url(re.compile(r"t0=82\.5&t1=247\.5"))
    page.get_by_role("button", name="Earlier").press("Enter")  # by keyboard
    expect(says).to_contain_text("0 µs to 165 µs")
    page.wait_for_url(re.compile(r"t0=0&t1=165"))
    page.reload()
    expect(says).to_contain_text("0 µs to 165 µs")  # the link shows what was seen
    page.get_by_role("button", name="Whole run").click()
    expect(says).to_contain_text("11 kernels")
    page.wait_for_function("() => !/t0=/.test(window.location.search)")
    assert seen.wrong == []


def test_a_drag_over_a_span_zooms_to_it(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "timeline")
    page.wait_for_function(LISTENING)
    box = still(page.locator("#timeline-graph .nsewdrag").first)
    middle = box["y"] + box["height"] / 2

    page.mouse.move(box["x"] + box["width"] * 0.25, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=6)
    page.mouse.up()

    page.wait_for_function("() => /t0=/.test(window.location.search)")
    t0, t1 = (float(query(page)[name]) for name in ("t0", "t1"))
    assert t0 == pytest.approx(330 * 0.25, abs=6)
    assert t1 == pytest.approx(330 * 0.5, abs=6)
    page.locator("#timeline-graph .nsewdrag").first.dblclick()
    page.wait_for_function("() => !/t0=/.test(window.location.search)")
    assert seen.wrong == []


@pytest.mark.parametrize("place", [".barlayer path", ".nsewdrag"])
def test_a_double_click_shows_the_whole_run_wherever_it_is(seen: Seen, site: Site, place: str) -> None:
    page = opened(seen, site, "timeline?t0=60&t1=200")
    page.wait_for_function(LISTENING)
    expect(page.locator("#timeline-says")).to_contain_text("60 µs to 200 µs")
    still(page.locator("#timeline-graph .nsewdrag").first)
    box = page.locator(f"#timeline-graph {place}").first.bounding_box()
    assert box is not None

    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    expect(page.locator("#timeline-says")).to_contain_text("11 kernels on 1 stream")
    page.wait_for_function("() => !/t0=/.test(window.location.search)")
    assert seen.wrong == []


def test_a_click_on_a_kernel_says_what_stands_behind_it(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "timeline")
    panel = page.locator("#timeline-panel")
    expect(panel).to_contain_text("No kernel chosen yet")

    page.locator("#timeline-graph .barlayer path").first.hover(force=True)
    page.locator("#timeline-graph .barlayer path").first.click(force=True)

    expect(panel).to_contain_text("aten.")
    expect(panel).to_contain_text(MODULE)
    page.wait_for_function("() => /kernel=/.test(window.location.search)")
    assert page.locator("#timeline-graph .shapelayer path").count() == 1
    assert seen.wrong == []


def test_a_kernel_is_chosen_without_a_mouse_and_leads_to_its_finding(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "timeline")

    page.get_by_role("button", name="aten.pow_kernel").press("Enter")

    panel = page.locator("#timeline-panel")
    expect(panel).to_contain_text("aten.pow_kernel")
    panel.get_by_role("button", name="After").press("Enter")
    expect(panel).to_contain_text("aten.mean_kernel")
    panel.get_by_role("link", name=re.compile("FUS202")).click()
    page.wait_for_url(f"**/finding/{site.finding}")
    assert seen.wrong == []


@pytest.mark.parametrize("seen", [("dark", 390)], indirect=True)
def test_a_link_to_a_kernel_shows_it_on_a_phone(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "timeline?kernel=8")

    expect(page.locator("#timeline-panel")).to_contain_text("aten.silu_kernel")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert seen.wrong == []


def names(page: Page) -> list[str]:
    """The first column of the grid, from the top."""
    rows = page.locator("#kernels-grid .ag-center-cols-container .ag-row")
    found = rows.evaluate_all(
        "rows => rows.map(r => [Number(r.getAttribute('row-index')), r.querySelector('[col-id=name]').innerText])"
    )
    return [name for _, name in sorted(found)]


def test_kernels_sort_and_filter_on_the_server_and_the_address_follows(seen: Seen, site: Site, tmp_path: Path) -> None:
    page = opened(seen, site, "kernels")
    says = page.locator("#kernels-says")
    expect(says).to_have_text("11 kernels · 275 µs")
    page.wait_for_function(
        "() => document.querySelectorAll('#kernels-grid .ag-center-cols-container .ag-row').length > 1"
    )
    assert names(page)[:2] == ["aten.add_kernel", "aten.mul_kernel"]  # the longest first

    head = page.locator("#kernels-grid .ag-header-cell[col-id=dur_us] .ag-header-cell-label")
    head.click()
    page.wait_for_function("() => /sort=dur_us/.test(window.location.search)")
    page.wait_for_function(
        "() => document.querySelector('#kernels-grid .ag-row[row-index=\"1\"] [col-id=name]').innerText.includes('pow')"
    )
    page.get_by_role("textbox", name=re.compile("^kind", re.IGNORECASE)).fill("point")

    expect(says).to_have_text("9 of 11 kernels · 226 µs")
    page.wait_for_function("() => /filter=kind/.test(window.location.search)")
    assert query(page) == {"sort": "dur_us", "filter": "kind:contains:point"}
    page.reload()
    expect(says).to_have_text("9 of 11 kernels · 226 µs")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download CSV").click()
    started.value.save_as(tmp_path / "kernels.csv")
    assert len((tmp_path / "kernels.csv").read_text().splitlines()) == 10
    assert started.value.suggested_filename == f"kernels-{site.run}.csv"
    assert seen.wrong == []


def test_kernels_group_and_a_group_shows_its_kernels(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "kernels?group=kind")
    grid = page.locator("#kernels-group-grid")
    expect(grid.locator(".ag-center-cols-container .ag-row")).to_have_count(3)

    grid.get_by_role("link", name="gemm").click()

    expect(page.locator("#kernels-says")).to_have_text("1 of 11 kernels · 27.0 µs")
    row = page.locator("#kernels-grid .ag-center-cols-container .ag-row [col-id=name]")
    expect(row).to_have_text(["aten.matmul_kernel"])  # the grid asks for its rows after the count is said
    assert query(page) == {"filter": "kind:equals:gemm"}
    assert seen.wrong == []


def test_a_number_under_a_time_is_the_least(seen: Seen, site: Site) -> None:
    page = opened(seen, site, "kernels")

    page.get_by_role("spinbutton", name=re.compile("^time", re.IGNORECASE)).fill("27")

    expect(page.locator("#kernels-says")).to_have_text("4 of 11 kernels · 114 µs")
    page.wait_for_function("() => /filter=dur_us/.test(window.location.search)")  # written after the count is said
    assert query(page) == {"filter": "dur_us:greaterThanOrEqual:27"}
    assert seen.wrong == []


def test_the_order_of_groups_stays_in_the_address_and_in_the_csv(seen: Seen, site: Site, tmp_path: Path) -> None:
    page = opened(seen, site, "kernels?group=kind")
    rows = page.locator("#kernels-group-grid .ag-center-cols-container .ag-row")
    expect(rows).to_have_count(3)
    assert query(page) == {"group": "kind"}

    page.locator("#kernels-group-grid .ag-header-cell[col-id=mean_us] .ag-header-cell-label").click()

    page.wait_for_function("() => /group_sort=mean_us/.test(window.location.search)")
    settled(page, page.url)
    expect(page.locator(".ag-header-cell[col-id=mean_us]")).to_have_attribute("aria-sort", "ascending")
    with page.expect_download() as started:
        page.get_by_role("link", name="Download CSV").click()
    started.value.save_as(tmp_path / "groups.csv")
    lines = (tmp_path / "groups.csv").read_text().splitlines()
    assert [line.split(",")[0].strip('"') for line in lines] == ["kind", "reduction", "pointwise", "gemm"]
    assert started.value.suggested_filename == f"kernels-{site.run}-by-kind.csv"
    assert seen.wrong == []


def test_a_comparison_swaps_and_the_address_follows(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, f"{site.url}/compare?a={site.run}&b={site.fixed}")
    result = page.locator("#compare-result")
    expect(result).to_contain_text("− gone")

    page.get_by_role("button", name="Swap before and after").click()

    expect(result).to_contain_text("+ new")
    page.wait_for_url(f"**/compare?a={site.fixed}&b={site.run}")
    page.reload()
    expect(result).to_contain_text("+ new")
    assert seen.wrong == []
