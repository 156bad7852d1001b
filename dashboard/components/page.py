"""The head of a page: where it is, what it is of, and the pages beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from auditor.document import Document
from auditor.report.format import safe
from dashboard.components import links
from dashboard.components.aria import aria
from dashboard.components.when import when

Crumb = tuple[str, str]
"""Label and address of a page above this one."""


def page(title: str | list[Any], *content: Any, crumbs: Sequence[Crumb] = (), note: Any = None) -> html.Div:
    """A page of ``content``. ``note`` is a line under the title."""
    return html.Div([*_crumbs(crumbs), html.H1(title), *_note(note), *content], className="page")


def _note(note: Any) -> list[html.P]:
    return [html.P(note, className="note")] if note else []


def _crumbs(crumbs: Sequence[Crumb]) -> list[html.Nav]:
    if not crumbs:
        return []
    items = [html.Li(dcc.Link(safe(label), href=href)) for label, href in crumbs]
    return [html.Nav(html.Ol(items), className="crumbs", **aria(label="Where this is"))]


def run_page(document: Document, here: str, *content: Any, title: str = "", crumbs: Sequence[Crumb] = ()) -> html.Div:
    """A page about a run, with the way to the run's other pages.

    Args:
        document: of the run.
        here: label of this page among the run's pages; "" for one below them.
        content: of the page.
        title: instead of the run's name.
        crumbs: pages between the run and this one.
    """
    run = document.run
    above = (
        [("Runs", "/")] if here == "Overview" and not title else [("Runs", "/"), (_name(document), links.run(run.id))]
    )
    return page(
        safe(title) or _name(document), run_navigation(document, here), *content,
        crumbs=[*above, *crumbs], note=_subtitle(document),
    )  # fmt: skip


def _name(document: Document) -> str:
    return safe(document.run.name or document.run.id)


def _subtitle(document: Document) -> list[Any]:
    run = document.run
    parts: list[Any] = [html.Code(safe(run.id), className="id")]
    parts += [safe(run.device.name)] if run.device.name else []
    parts += [when(run.created)] if run.created else []
    separated: list[Any] = []
    for part in parts:
        separated += [" · ", part] if separated else [part]
    return separated


def run_navigation(document: Document, here: str) -> html.Nav:
    """The pages of one run; ``here`` is marked."""
    run = document.run
    pages = [
        ("Overview", links.run(run.id)),
        ("Kernels", links.run(run.id, "kernels")),
        ("Timeline", links.run(run.id, "timeline")),
        ("Gate", links.gate(run.name or run.id)),
    ]
    items = [html.Li(_tab(label, href, label == here)) for label, href in pages]
    return html.Nav(html.Ul(items), className="tabs", **aria(label="Pages of this run"))


def _tab(label: str, href: str, here: bool) -> dcc.Link | html.A:
    return html.A(label, href=href, **aria(current="page")) if here else dcc.Link(label, href=href)


def section(title: str, *content: Any, ident: str = "", note: Any = None) -> html.Section:
    """A part of a page under a second-level heading."""
    named: dict[str, Any] = {"id": ident} if ident else {}
    return html.Section([html.H2(title), *_note(note), *content], **named)
