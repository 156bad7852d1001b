"""The user's source around a finding, read only where this machine recorded the run itself.

A document names files, and one that came from elsewhere may name any. Files are opened only for runs that were
registered here themselves: the command line of this machine wrote their documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dash import html

from auditor.document import Document, SourceInfo
from auditor.report import facts
from auditor.report.excerpt import quote
from auditor.store.registering import recorded_here
from dashboard.components.code import code_block
from dashboard.context import current

_AROUND = 7
"""Lines shown before and after the one that is meant."""


def why_not_here(run: str) -> str:
    """Why nothing of this run's files is read here; "" where it may be."""
    context = current()
    if context.jobs is None:
        return "No worker runs here."
    if not recorded_here(context.store, run):
        return f"Run {run} was not recorded on this machine from the command line."
    return context.jobs.why_not("audit", run)


def source_view(document: Document, source: SourceInfo | None) -> list[Any]:
    """The place of a finding, and its lines where they may be read."""
    if source is None or not source.file:
        return [html.P("The recording does not say which source line this is.", className="dim")]
    where = html.P(html.Code(facts.place(source)))
    if why_not_here(document.run.id):
        return [where, html.P("Its lines are shown on the machine that recorded the run.", className="dim")]
    excerpt = quote(source, document.run.created)
    if excerpt is None:
        return [where, html.P("The file can't be read here, or has no such line any more.", className="dim")]
    first, lines = _around(source)
    shown = code_block("\n".join(lines), f"Source, {facts.place(source)}", first=first, marks={source.line: "here"})
    changed = html.P("The file has changed since the run: lines may be off.", className="note")
    return [where, *([changed] if excerpt.changed else []), shown]


def _around(source: SourceInfo) -> tuple[int, list[str]]:
    """The lines around one that :func:`quote` could read, and the number of the first."""
    lines = Path(source.file).read_text(encoding="utf-8", errors="replace").splitlines()
    first = max(source.line - _AROUND, 1)
    return first, lines[first - 1 : source.line + _AROUND]
