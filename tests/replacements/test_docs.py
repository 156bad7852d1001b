"""The pages under docs/replacements: written from the docstrings, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import Tensor

import fused_replacements
from fused_replacements import cpu_path, docs
from fused_replacements._registry import HOME, find

RAW = """What it does.

A remark.

Formula
-------
``y = x``, and for example::

    y = x + 0

Shapes and dtypes
-----------------
Any.

Bytes moved
-----------
2.

When it loses
-------------
Always.

Source
------
None, 2020.
"""


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return docs.pages()


@pytest.mark.parametrize("name", HOME)
def test_docstring_has_the_fixed_sections_and_says_something(name: str) -> None:
    description = docs.describe(find(name).doc)
    assert tuple(description.sections) == docs.SECTIONS
    assert description.summary.endswith(".")
    assert len(description.summary) <= 120
    assert all(len(text) > 15 for text in description.sections.values())


@pytest.mark.parametrize("name", HOME)
def test_page_shows_the_call_the_variants_and_the_ops(name: str, pages: dict[str, str]) -> None:
    page, replacement = pages[f"{name}.md"], find(name)
    assert page.startswith(f"# {name}\n")
    assert f"{replacement.function.__name__}(" in page
    assert all(f"fused_replacements::{op.name}(" in page for op in replacement.ops)
    assert all(f"`{provider.name}`" in page for provider in replacement.alternatives)
    assert "``" not in page.replace("```", "")


@pytest.mark.parametrize("name", HOME)
def test_the_example_of_each_page_runs(name: str, pages: dict[str, str]) -> None:
    code = docs.example(name)
    assert f"```python\n{code}\n```" in pages[f"{name}.md"]
    with cpu_path("reference"):
        exec(compile(code, f"{name}.md", "exec"), {})


def test_what_stands_beside_a_replacement_is_on_a_page() -> None:
    assert {other for others in docs.BESIDE.values() for other in others} == set(fused_replacements._BESIDE)


def test_index_links_every_page(pages: dict[str, str]) -> None:
    assert set(pages) == {"README.md", *(f"{name}.md" for name in HOME)}
    assert all(f"]({name}.md)" in pages["README.md"] for name in HOME)


def test_pages_in_the_repository_are_fresh(pages: dict[str, str]) -> None:
    assert docs.stale(docs.FOLDER, pages) == [], "run `make docs`"


def test_check_tells_what_is_stale_and_writing_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "pages", lambda: {"a.md": "A", "b.md": "B", "c.md": "C"})
    tmp_path.joinpath("a.md").write_text("A")
    tmp_path.joinpath("b.md").write_text("changed by hand")
    tmp_path.joinpath("gone.md").write_text("of a replacement that no longer is")
    check, write = ["--check", "--folder", str(tmp_path)], ["--folder", str(tmp_path)]

    assert docs.main(check) == 1
    assert "b.md, c.md, gone.md" in capsys.readouterr().out
    assert tmp_path.joinpath("b.md").read_text() == "changed by hand"
    assert docs.main(write) == 0
    assert docs.main(check) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.md": "A", "b.md": "B", "c.md": "C"}


def test_a_docstring_is_taken_apart() -> None:
    description = docs.describe(RAW)
    assert (description.summary, description.body) == ("What it does.", "A remark.")
    assert docs.markdown(description.sections["Formula"]) == "`y = x`, and for example:\n\n    y = x + 0"
    assert description.sections["When it loses"] == "Always."


@pytest.mark.parametrize(
    "broken",
    [
        RAW.replace("When it loses\n-------------\nAlways.\n", ""),
        RAW.replace("Always.", ""),
        RAW.replace("Source", "Sources"),
        RAW.replace("What it does.\n\nA remark.\n\n", ""),
        "",
    ],
    ids=["missing", "empty", "misnamed", "no summary", "nothing"],
)
def test_a_docstring_that_lacks_a_section_is_an_error(broken: str) -> None:
    with pytest.raises(ValueError, match="it needs Formula, Shapes and dtypes"):
        docs.describe(broken)


def test_signature_stands_as_in_the_source() -> None:
    def short(x: Tensor, *rest: int, eps: float = 1e-6, **more: object) -> Tensor: ...

    def long(one: Tensor, other: Tensor | None = None, *, rounded: str = "after", width: int = 4096) -> Tensor: ...

    assert docs.signature(short) == "short(x: Tensor, *rest: int, eps: float = 1e-06, **more: object) -> Tensor"
    assert docs.signature(long).splitlines() == [
        "long(",
        "    one: Tensor,",
        "    other: Tensor | None = None,",
        "    *,",
        "    rounded: str = 'after',",
        "    width: int = 4096,",
        ") -> Tensor",
    ]
