"""Labelled facts: lists of them, and the few large figures on top of a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from dash import html

from auditor.report.facts import Fact


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure, what it is of, and a line that puts it into proportion."""

    label: str
    value: str
    note: str = ""
    tone: str = ""
    """``good`` or ``bad`` where it says so."""


def fact_list(facts: Iterable[Fact | tuple[str, Any]]) -> html.Dl:
    """Facts as a description list. Values of a :class:`Fact` are text already made safe."""
    parts: list[Any] = []
    for fact in facts:
        label, value = (fact.label, _value(fact)) if isinstance(fact, Fact) else fact
        parts += [html.Div([html.Dt(label), html.Dd(value)])]
    return html.Dl(parts, className="facts")


def _value(fact: Fact) -> Any:
    return html.Code(fact.value) if fact.literal else fact.value


def tiles(figures: Iterable[Tile]) -> html.Dl:
    """The figures of a page's head."""
    return html.Dl(
        [
            html.Div(
                [html.Dt(t.label), html.Dd([html.Span(t.value, className="figure"), html.Small(t.note)])],
                className=f"tile {t.tone}".strip(),
            )
            for t in figures
        ],
        className="tiles",
    )
