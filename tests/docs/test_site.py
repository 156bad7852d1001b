"""The site: built strictly and offline, here and so in CI; it asks no other machine, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from doc_examples import ROOT
from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
LOADED = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "form": "action",
}
"""Tags whose attribute a browser asks for by itself, or sends to."""


class Page(HTMLParser):
    """What a page loads, where it leads, and what can be led to on it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given["id"]} if "id" in given else set()
        if tag in LOADED and LOADED[tag] in given:
            self.loads.append(given[LOADED[tag]])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it: every warning is an error."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-n", "-b", "html", "-d", str(out / "trees")]
    no_network = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(out / "html")],
        capture_output=True,
        text=True,
        env={**os.environ, **no_network},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "html"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_there_is_a_page_for_each_document(site: Path) -> None:
    sources = [p.relative_to(ROOT / "docs") for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts]
    assert [str(s) for s in sources if not (site / s.with_suffix(".html")).is_file()] == []


def test_nothing_is_asked_of_another_machine(site: Path, pages: dict[Path, Page]) -> None:
    asked = {load for page in pages.values() for load in page.loads if urlsplit(load).netloc}
    assert asked == set()
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")) == [], style
    for script in site.rglob("*.js"):
        code = script.read_text(encoding="utf-8")
        assert re.findall(r"(?:fetch|import)\(\s*['\"`]https?://|\.src\s*=\s*['\"`]https?://", code) == [], script


def test_every_link_inside_of_the_site_leads_somewhere(site: Path, pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            address, anchor = urldefrag(link)
            if urlsplit(address).scheme:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            found = target.is_file() and (not anchor or target not in pages or unquote(anchor) in pages[target].ids)
            if not found:
                lost.append(f"{path.relative_to(site)}: {link}")
    assert lost == []


def test_it_can_be_searched(site: Path) -> None:
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert index.startswith("Search.setIndex(")
    assert '"tutorial"' in index
    assert "liveness" in index or "amdahl" in index


def test_light_and_dark_can_be_chosen(pages: dict[Path, Page]) -> None:
    assert all("theme-toggle" in page.text for page in pages.values())


def test_links_of_the_readme_lead_to_files() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not urlsplit(link).scheme]
    assert len(links) > 20
    assert [link for link in links if not (ROOT / urldefrag(link)[0]).exists()] == []


@pytest.mark.skipif(not Path(CHROMIUM).is_file(), reason=f"needs {CHROMIUM}")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible_fit_and_ask_for_files_only(site: Path, width: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": width, "height": 900})
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index", "tutorial", "reference/cli", "explanation/measured"):
            page.goto(f"file://{site}/{name}.html")
            violations = Axe().run(page).response["violations"]
            assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], name
            assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), name
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
        browser.close()
