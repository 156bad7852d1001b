"""Code, source lines, diffs and logs: never anything but text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dash import html

from auditor.report.format import safe
from dashboard.components.aria import aria


def code_block(
    text: str, name: str, *, first: int = 1, marks: dict[int, str] | None = None, numbered: bool = True
) -> Any:
    """Lines of code with their numbers.

    Args:
        text: the code.
        name: what it is, for a screen reader.
        first: number of its first line.
        marks: line number → ``load``, ``store``, ``both`` or ``here``.
        numbered: whether numbers are shown.
    """
    marked = marks or {}
    lines = [
        _line(line, number if numbered else None, marked.get(number, ""))
        for number, line in enumerate(text.expandtabs(4).splitlines(), first)
    ]
    return html.Pre(html.Code(lines), className="code", tabIndex=0, role="region", **aria(label=name))


_SAID = {"load": "loads", "store": "stores", "both": "loads and stores", "here": "this line"}


def _line(text: str, number: int | None, mark: str) -> html.Span:
    parts: list[Any] = (
        [] if number is None else [html.Span(str(number), className="line-number", **aria(hidden="true"))]
    )
    parts.append(html.Span(safe(text) or " ", className="line-text"))
    parts += [html.Span(_SAID[mark], className="line-mark")] if mark else []
    return html.Span(parts, className=f"line {mark}".strip())


def diff_block(text: str, name: str) -> Any:
    """A unified diff; what is added and removed is told by its sign and by colour."""
    lines = [html.Span(safe(line.expandtabs(4)) or " ", className=f"line {_side(line)}") for line in text.splitlines()]
    return html.Pre(html.Code(lines), className="code diff", tabIndex=0, role="region", **aria(label=name))


def _side(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "head"
    return {"+": "added", "-": "removed"}.get(line[:1], "")


def commands(lines: Iterable[str]) -> Any:
    """Commands, ready to paste."""
    return html.Pre(html.Code("\n".join(lines)), className="code", tabIndex=0, role="region", **aria(label="Commands"))


def details(summary: Any, *content: Any, is_open: bool = False, ident: str = "") -> html.Details:
    """A fold."""
    named: dict[str, Any] = {"id": ident} if ident else {}
    return html.Details([html.Summary(summary), html.Div(content, className="fold")], open=is_open, **named)
