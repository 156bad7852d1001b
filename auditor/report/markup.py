"""Pieces of HTML that the report is put together from. What is passed as *text* is escaped, *markup* is not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from auditor.report.facts import Fact
from auditor.report.svg import escape


def code(text: str) -> str:
    """Untrusted text as code that may break after a slash, a dash where there is none."""
    return f"<code>{escape(text).replace('/', '/<wbr>')}</code>" if text else "–"


def lines(text: str) -> str:
    """Untrusted text of several lines, its line breaks kept."""
    return "\n".join(map(escape, text.split("\n")))


def cells(*markup: str, numbers: Iterable[int] = ()) -> str:
    """A row of a table; the first cell is the row's heading, ``numbers`` are set flush right."""
    right = set(numbers)
    kind = [' class="num"' if i in right else "" for i in range(len(markup))]
    first = f'<th scope="row"{kind[0]}>{markup[0]}</th>'
    return f"<tr>{first}{''.join(f'<td{k}>{m}</td>' for k, m in zip(kind[1:], markup[1:], strict=True))}</tr>"


def table(caption: str, head: Sequence[str], rows: Iterable[str], numbers: Iterable[int] = ()) -> str:
    """A captioned table that scrolls by keyboard where it is too wide. ``rows`` are markup of :func:`cells`."""
    right = set(numbers)
    columns = "".join(
        f'<th scope="col"{" class=num" if i in right else ""}>{escape(name)}</th>' for i, name in enumerate(head)
    )
    grid = f"<caption>{escape(caption)}</caption><thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return scroll(caption, f"<table>{grid}</table>")


def scroll(label: str, markup: str, css: str = "scroll") -> str:
    """A region that the keyboard can reach and scroll."""
    return f'<div class="{css}" tabindex="0" role="region" aria-label="{escape(label)}">{markup}</div>'


def details(summary: str, markup: str, css: str, *, is_open: bool = False) -> str:
    """A fold; ``summary`` is text."""
    return f'<details class="{css}"{" open" if is_open else ""}><summary>{escape(summary)}</summary>{markup}</details>'


def fact_list(facts: Iterable[Fact]) -> str:
    """Labelled lines."""
    inner = "".join(
        f"<dt>{escape(f.label)}</dt><dd>{code(f.value) if f.literal else escape(f.value)}</dd>" for f in facts
    )
    return f'<dl class="facts">{inner}</dl>'


def note_list(notes: Iterable[str]) -> str:
    """Sentences as a list, nothing where there are none."""
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="plain">{items}</ul>' if items else ""
