"""Plain tables: for what a reader takes in at once. Long lists are grids (:mod:`dashboard.components.grid`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from dash import html

from dashboard.components.aria import aria


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    numbers: Collection[int] = (),
    show_caption: bool = False,
    css: str = "",
) -> html.Div:
    """A table that scrolls sideways by itself where it is too wide.

    Args:
        caption: what it holds; also the name of the region that scrolls.
        head: of the columns.
        rows: their cells; the first of each is the row's heading.
        numbers: indices of the columns of figures.
        show_caption: whether the caption is seen, or only heard.
        css: further classes.
    """
    cells = [html.Th(text, scope="col", className=_css(i, numbers)) for i, text in enumerate(head)]
    body = [html.Tr([_cell(i, cell, numbers) for i, cell in enumerate(row)]) for row in rows]
    name = html.Caption(caption, className="" if show_caption else "heard")
    return scroll(
        caption, html.Table([name, html.Thead(html.Tr(cells)), html.Tbody(body)], className=f"table {css}".strip())
    )


def _cell(index: int, cell: Any, numbers: Collection[int]) -> html.Th | html.Td:
    if index == 0:
        return html.Th(cell, scope="row", className=_css(0, numbers))
    return html.Td(cell, className=_css(index, numbers))


def _css(index: int, numbers: Collection[int]) -> str:
    return "num" if index in numbers else ""


def scroll(name: str, content: Any, css: str = "") -> html.Div:
    """A region that scrolls by itself, by keyboard too."""
    return html.Div(content, className=f"scroll {css}".strip(), tabIndex=0, role="region", **aria(label=name))
