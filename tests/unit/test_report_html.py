"""The HTML report: one file, well formed, accessible, and nothing of a name becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
import time
from html.parser import HTMLParser

import pytest
from report_factory import HOSTILE, chain_graph, clean, hostile, hostile_graph, llama, rms_finding, rms_graph

from auditor.document import Document, Site
from auditor.report import notebook, render

VOID = {"meta", "wbr"}


class Page(HTMLParser):
    """Checks nesting while it reads, and keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == [], f"never closed: {self.stack}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert "svg" in self.stack, f"<{tag}/> outside a drawing"
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag):
        assert self.stack, f"</{tag}> without a start"
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def pages() -> dict[str, str]:
    norm, ops = rms_graph()
    chain, chain_ops = chain_graph()
    long = llama()
    long.findings = [rms_finding(chain_ops)]
    return {
        "llama": render(llama(ops), norm, "html"),
        "without graph": render(llama(ops), None, "html"),
        "chain": render(long, chain, "html"),
        "clean": render(clean(), None, "html"),
        "empty": render(Document(), None, "html"),
        "hostile": render(hostile(), hostile_graph(), "html"),
    }


PAGES = pages()


@pytest.fixture(params=list(PAGES))
def page(request) -> str:
    return PAGES[request.param]


def test_tags_are_balanced_and_ids_unique(page):
    parsed = Page(page)
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {attrs["href"].removeprefix("#") for attrs in parsed.named("a")}
    refs = {r for _, a in parsed.tags for k in ("aria-labelledby", "aria-describedby") for r in a.get(k, "").split()}
    assert links | refs <= set(ids)


def test_nothing_is_loaded_and_nothing_runs(page):
    parsed = Page(page)
    names = {name for name, _ in parsed.tags}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"})
    attributes = {k for _, attrs in parsed.tags for k in attrs}
    assert not {a for a in attributes if a.startswith("on")}
    assert attributes.isdisjoint({"src", "srcset", "style", "xlink:href", "action"})
    assert all(attrs["href"].startswith("#") for attrs in parsed.named("a"))
    assert not re.search(r"url\(|@import", page)


def test_the_policy_allows_this_style_sheet_only(page):
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = Page(page).named("meta")[1]
    assert policy["http-equiv"] == "Content-Security-Policy"
    assert policy["content"] == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_readers_without_sight_or_mouse_are_served(page):
    parsed = Page(page)
    assert parsed.named("html")[0]["lang"] == "en"
    assert len(parsed.named("h1")) == 1
    assert len(parsed.named("caption")) == len(parsed.named("table"))
    assert len(parsed.named("summary")) == len(parsed.named("details"))
    for svg in parsed.named("svg"):
        assert svg["role"] == "img"
        assert svg.get("aria-label") or svg["aria-labelledby"]
    for attrs in (a for _, a in parsed.tags if a.get("class", "").startswith("scroll")):
        assert attrs["tabindex"] == "0"
        assert attrs["aria-label"]
    assert "prefers-color-scheme: dark" in page


def test_hostile_names_are_text():
    page = PAGES["hostile"]
    parsed = Page(page)
    assert "<script>alert(1)</script>" in "".join(parsed.text)
    assert HOSTILE not in page
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert all("<" not in value or "script" not in name for name, a in parsed.tags for value in a.values())


def test_the_page_tells_the_numbers_and_draws_before_and_after():
    text = " ".join("".join(Page(PAGES["llama"]).text).split())
    for said in (
        "535", "669 would remain", "62 %", "60.0 ms", "392 → 49", "13.2 GB → 3.29 GB", "xn escapes to aten.neg",
        "as recorded, model.layers.0.input_layernorm: 8 kernels, 268 MB moved", "once fused: 1 kernel, 67.0 MB moved",
        "4 of 1,204 ops have no source line.", "none: remove it", "sq = aten.pow(x, 2)",
        "14 launched before the window",
    ):  # fmt: skip
        assert said in text
    ids = [svg.get("aria-labelledby") for svg in Page(PAGES["llama"]).named("svg")]
    assert [i for i in ids if i] == ["waterfall-t", "f1-before-t", "f1-after-t"]


def test_without_the_graph_everything_but_the_drawings_is_there():
    text = "".join(Page(PAGES["without graph"]).text)
    assert text.count("The ops of its sites are not at hand: nothing can be drawn.") == 2
    assert "392 → 49" in text


def test_sites_are_listed_and_a_long_list_is_cut():
    document = llama()
    document.findings = [rms_finding(places=[Site(ops=[], module=f"layers.{i}", kernels=8) for i in range(70)])]
    text = "".join(Page(render(document, None, "html")).text)
    assert "70 sites, the first 60 shown" in text
    assert "layers.59" in text
    assert "layers.60" not in text


def test_a_page_of_hundreds_of_findings_is_quick_and_small():
    chain, ops = chain_graph(60)
    document = llama()
    document.findings = [rms_finding(ops, fingerprint=str(i)) for i in range(300)]
    start = time.perf_counter()
    page = render(document, chain, "html")
    assert time.perf_counter() - start < 20
    assert len(page) < 6_000_000
    assert "".join(Page(page).text).count("nothing can be drawn") == 260


@pytest.mark.parametrize("document", [llama(), clean(), hostile(), Document()])
def test_the_notebook_fragment_is_compact_and_inert(document):
    fragment = notebook(document)
    parsed = Page(fragment)
    assert {name for name, _ in parsed.tags} <= {"div", "strong", "table", "thead", "tbody", "tr", "th", "td", "p"}
    assert "http" not in re.sub(r"https://evil\.example", "", fragment)
    assert len(fragment) < 6000


def test_the_notebook_fragment_shows_ten_findings_and_counts_the_rest():
    document = llama()
    document.findings = [rms_finding(fingerprint=str(i)) for i in range(12)]
    text = "".join(Page(notebook(document)).text)
    assert text.count("unfused-rms-norm") == 10
    assert "and 2 smaller findings" in text
    assert "535 of 1,204 kernels avoidable · likely 7.10 ms of 60.0 ms (12 %) · 11.0 GB less memory traffic" in text
