"""A trace is dropped or chosen in the browser: the real service takes it, its worker reads it, and the run is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browsed import Seen
from playwright.sync_api import Browser, Page, expect
from served import Served, serving
from stored_runs import trace

DROP = """(element, [name, text]) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, {type: 'application/json'}));
  for (const kind of ['dragenter', 'dragover', 'drop']) {
    element.dispatchEvent(new DragEvent(kind, {bubbles: true, cancelable: true, dataTransfer: data}));
  }
}"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("uploads")
    with serving(str(folder / "store"), cwd=folder) as service:
        yield service


@pytest.fixture
def page(chromium: Browser, served: Served) -> Iterator[Page]:
    """The list of runs, logged in."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{served.url}/login?token={served.token}")
    yield page
    context.close()


def imported(page: Page, name: str) -> None:
    """The job's page comes up by itself, and leads to the run."""
    page.wait_for_url("**/jobs/*")
    status = page.locator(".job-panel [role=status]")
    expect(status).to_contain_text("done", timeout=120_000)
    page.locator(".job-panel a[href^='/run/']").click()
    expect(page.locator("h1")).to_contain_text(name)


def test_a_trace_is_dropped(page: Page, served: Served) -> None:
    seen = Seen(page, served.url)
    page.locator("#upload-drop").evaluate(DROP, ["dropped.json", trace().decode()])
    imported(page, "dropped")
    assert seen.wrong == []


def test_a_trace_is_chosen(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "chosen.json"
    file.write_bytes(trace())
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose a file").click()
    chooser.value.set_files(file)
    imported(page, "chosen")


def test_what_is_no_trace_is_refused_in_a_sentence(page: Page) -> None:
    page.locator("#upload-drop").evaluate(DROP, ["notes.txt", "dear diary"])
    expect(page.locator("#upload-status")).to_have_text(
        "Not imported: the upload is neither JSON nor gzip; send a trace of torch.profiler, .json or .json.gz"
    )
    expect(page.get_by_role("button", name="Choose a file")).to_be_enabled()
    expect(page.locator("#upload-drop progress")).to_be_hidden()
