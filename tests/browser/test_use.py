"""Using the dashboard: by keyboard, by address, by what is clicked."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from audited import HOSTILE, save
from browsed import Seen, Site
from playwright.sync_api import BrowserContext, expect
from settled import settled

from dashboard.jobs.model import Options


def test_the_first_tab_leads_past_the_navigation(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url)

    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")

    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
    assert seen.wrong == []


def test_headings_are_in_order_and_landmarks_are_there(seen: Seen, site: Site) -> None:
    settled(seen.page, site.url + site.pages["finding"])

    levels = seen.page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => Number(h.tagName[1]))")

    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(deeper - level <= 1 for level, deeper in pairwise(levels))
    for landmark in ("header", "main", "footer", "nav[aria-label='Sections']", "nav[aria-label='Pages of this run']"):
        assert seen.page.locator(landmark).count() == 1, landmark


def test_the_page_that_is_shown_is_marked_and_takes_the_focus(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url)

    page.get_by_role("link", name="Rules", exact=True).click()
    page.wait_for_selector("h1:has-text('Rules')")

    expect(page.locator("header a[aria-current='page']")).to_have_text("Rules")
    assert page.evaluate("document.activeElement.id") == "main"
    assert page.title() == "Rules · Fusion Auditor"


def test_the_scheme_is_switched_and_stays(windows: Callable[[str, int], BrowserContext], site: Site) -> None:
    page = windows("light", 1024).new_page()
    settled(page, site.url + site.pages["overview"])
    white = page.evaluate("getComputedStyle(document.body).backgroundColor")

    page.locator("#shell-switch").click()
    page.wait_for_timeout(1500)

    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != white
    label = page.locator("#overview-time .ytick text").first
    assert label.evaluate("e => getComputedStyle(e).fill") != "rgb(26, 31, 38)"
    settled(page, site.url + "/rules")
    assert page.locator("html").get_attribute("data-scheme") == "dark"
    page.evaluate("localStorage.clear()")
    page.close()


def test_the_address_keeps_what_is_shown(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url)

    page.locator("#runs-text").fill("patched")
    expect(page.locator("#runs-count")).to_have_text("1 run")
    page.locator(".ag-header-cell[col-id='step_us']").click()
    page.wait_for_url(re.compile(r"q=patched"))
    page.wait_for_url(re.compile(r"sort=step_us\.asc"))
    address = page.url

    settled(page, address)
    expect(page.locator("#runs-text")).to_have_value("patched")
    expect(page.locator("#runs-count")).to_have_text("1 run")
    expect(page.locator(".ag-header-cell[col-id='step_us']")).to_have_attribute("aria-sort", "ascending")
    assert seen.wrong == []


def test_two_runs_are_selected_and_compared(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url)
    expect(page.get_by_role("button", name="Compare")).to_be_disabled()

    for row in range(2):
        page.locator(f".ag-row[row-index='{row}'] input[type='checkbox']").check()
    page.locator("#runs-compare a").click()

    page.wait_for_url(re.compile(r"/compare\?a=\w+&b=\w+"))
    page.wait_for_selector("h1")
    assert seen.wrong == []


def test_a_finding_is_reached_from_the_list_of_runs(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url)

    page.locator(f".ag-row[row-id='{site.run}'] a").click()
    page.get_by_role("link", name="unfused-add-rms-norm").click()
    page.wait_for_selector("#finding-drawn svg.graph")

    assert page.url.endswith(site.pages["finding"])
    drawing = page.locator("#finding-drawn svg.graph").first
    assert drawing.locator("title").first.text_content() == "unfused-add-rms-norm, as recorded"
    assert "7 kernels" in str(drawing.locator("desc").text_content())
    assert drawing.locator(".node.op").count() == 7
    assert seen.wrong == []


def test_applying_shows_progress_log_and_what_was_measured(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url + site.pages["finding"])

    page.locator("#finding-apply").click()
    panel = page.locator("#finding-job .job-panel")
    expect(panel.locator("[role=status]")).to_contain_text("queued")
    job = site.jobs.list()[0]
    assert (job.kind, job.options.select) == ("fix", ["FUS202"])
    site.jobs.logs[job.id] = "patching\n"
    site.jobs.move(job.id, state="running", progress="patching: 10 s", started="2026-11-30T10:00:00+00:00")
    expect(panel.locator("[role=status]")).to_contain_text("patching: 10 s")
    expect(panel.locator("pre.log")).to_contain_text("patching")
    expect(panel.get_by_role("button", name="Cancel")).to_be_visible()
    expect(panel.get_by_role("button", name="Try again")).to_be_hidden()

    site.jobs.logs[job.id] += "measured\n"
    site.jobs.move(job.id, state="done", result_run=site.fixed, ended="2026-11-30T10:01:00+00:00")
    expect(panel.locator("[role=status]")).to_contain_text("Applied and measured.")
    assert panel.locator("pre.log").text_content() == "patching\nmeasured\n"
    expect(page.locator("#finding-measured")).to_contain_text("×1.33 (1.30 to 1.36)")
    expect(panel.get_by_role("button", name="Cancel")).to_be_hidden()
    assert seen.wrong == []


def test_a_job_is_cancelled_and_tried_again(seen: Seen, site: Site) -> None:
    page = seen.page
    job = site.jobs.submit("audit", site.run, Options(steps=50))
    site.jobs.move(job.id, state="running", progress="recording")
    settled(page, f"{site.url}/jobs/{job.id}")

    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".job-panel [role=status]")).to_contain_text("cancelled by the user")
    page.get_by_role("button", name="Try again").click()

    page.wait_for_function("job => !location.pathname.endsWith(job)", arg=job.id)
    page.wait_for_selector("text=tried again after")
    assert site.jobs.list()[0].retry_of == job.id
    assert seen.wrong == []


def test_without_a_login_nothing_can_be_changed(seen: Seen, site: Site) -> None:
    page = seen.page
    site.logged_in = False

    settled(page, site.url + site.pages["finding"])
    expect(page.locator("#finding-apply")).to_be_disabled()
    expect(page.locator("#finding-why")).to_contain_text("open the link that `fusion-audit serve` printed")
    settled(page, site.url + site.pages["rule"])
    expect(page.locator("#rule-enabled")).to_be_disabled()
    settled(page, site.url)
    expect(page.get_by_role("button", name="Choose a file")).to_have_count(0)


def test_the_settings_of_a_rule_are_kept(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, f"{site.url}/rules/FUS207")

    page.locator("#rule-enabled").uncheck()
    expect(page.locator("#rule-saved")).to_have_text("Saved.")

    settled(page, f"{site.url}/rules/FUS207")
    expect(page.locator("#rule-enabled")).not_to_be_checked()
    page.locator("#rule-enabled").check()
    expect(page.locator("#rule-saved")).to_have_text("Saved.")
    assert seen.wrong == []


def test_the_gate_takes_the_baseline_that_is_chosen(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url + site.pages["gate"])
    expect(page.locator(".callout")).to_contain_text(re.compile(r"Over budget: \d of 7 limits broken, 1 warning\."))
    expect(page.get_by_role("region", name="What the run is held to")).to_contain_text("pyproject.toml:2")

    page.get_by_role("link", name="as baseline").first.click()

    page.wait_for_url(re.compile(r"baseline=\w+"))
    expect(page.locator("#gate-baseline")).to_have_value(re.compile(r"\w{12}$"))
    page.locator("#gate-run").select_option(index=2)
    page.wait_for_url(re.compile(r"run=\w+"))
    expect(page.locator(".callout")).to_contain_text("Within budget")
    assert seen.wrong == []


def test_a_query_does_not_name_another_run_than_the_path(seen: Seen, site: Site) -> None:
    page, other = seen.page, site.store.list_runs()[-1].id
    assert other != site.run
    settled(page, f"{site.url}/run/{site.run}?run_id={other}&run_id={other}")
    assert page.locator(f"a[href='/run/{site.run}/kernels']").count() == 1
    assert page.locator(f"a[href='/run/{other}/kernels']").count() == 0
    settled(page, f"{site.url}/?model=a&model=b")
    expect(page.locator("h1")).to_have_text("Runs")
    assert seen.wrong == []


def test_names_from_a_run_run_nothing(seen: Seen, site: Site) -> None:
    page = seen.page
    page.on("dialog", lambda dialog: pytest.fail(f"a name was run: {dialog.message}"))
    run = save(site.store, module=HOSTILE, name=f"{HOSTILE}-name", notes=[HOSTILE], source=f"/{HOSTILE}.py")
    try:
        for path in ("/", f"/run/{run}", f"/run/{run}/finding/{site.finding}", f"/gate?model={HOSTILE}-name"):
            settled(page, site.url + path)
            assert page.locator("img[src='x']").count() == 0
        assert [w for w in seen.wrong if "onerror" in w] == []
    finally:
        site.store.delete(run)


def test_the_plan_is_downloaded_or_it_is_said_why_not(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url + site.pages["finding"])

    page.locator("#finding-plan").click()

    expect(page.locator("#finding-file-problem")).to_contain_text("is not on this machine any more")
    assert seen.wrong == []


@pytest.mark.parametrize("seen", [("light", 390)], indirect=True)
def test_a_phone_is_told_that_a_drawing_scrolls_and_can_read_what_rules_find(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url + site.pages["overview"])
    drawing = page.locator("#overview-time .plot")
    assert drawing.locator(".scroll").first.evaluate("e => e.scrollWidth > e.clientWidth")
    expect(drawing.locator(".sideways")).to_be_visible()

    settled(page, site.url + site.pages["rules"])
    seen_of_it = "e => Math.min(e.getBoundingClientRect().right, window.innerWidth) - e.getBoundingClientRect().left"
    assert page.locator(".rules td:nth-child(2)").first.evaluate(seen_of_it) > 150
    page.set_viewport_size({"width": 1280, "height": 900})
    settled(page, site.url + site.pages["overview"])
    expect(page.locator(".sideways").first).to_be_hidden()
    assert seen.wrong == []


def test_a_click_twice_queues_one_job_and_holds_the_button(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, site.url + site.pages["finding"])
    before = len(site.jobs.list())

    page.locator("#finding-apply").dblclick()

    expect(page.locator("#finding-apply")).to_be_disabled()
    job = site.jobs.list()[0]
    expect(page.locator("#finding-why")).to_contain_text(f"Job {job.id} applies it already: it is queued")
    expect(page.locator("#finding-problem")).to_have_text("")
    assert len(site.jobs.list()) == before + 1
    site.jobs.cancel(job.id)
    expect(page.locator("#finding-apply")).to_be_enabled()
    assert seen.wrong == []


def test_the_badge_of_a_rule_follows_its_severity(seen: Seen, site: Site) -> None:
    page = seen.page
    settled(page, f"{site.url}/rules/FUS301")

    page.locator("#rule-severity").select_option("error")

    expect(page.locator("#rule-severity-now .badge")).to_have_text("error")
    page.locator("#rule-severity").select_option("")
    expect(page.locator("#rule-severity-now .badge")).not_to_have_text("error")
    assert seen.wrong == []
