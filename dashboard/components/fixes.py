"""A fix in words: what was measured when replacements were applied."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from auditor.document import Document
from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.report import fix_facts
from auditor.report.format import safe
from dashboard.components import links
from dashboard.components.when import written
from dashboard.context import current


def fix_of(run: str) -> FixDocument | None:
    """The newest fix of a run, or the one that it is the audit after; None where there is none."""
    try:
        return current().store.load_fix(run)
    except AuditError:
        return None


def fix_note(document: Document) -> list[Any]:
    """That this run was fixed, or came of a fix, with what was measured."""
    fix = fix_of(document.run.id)
    if fix is None:
        return []
    if document.run.id == fix.after_run:
        lead: list[Any] = ["This is the audit after a fix of ", dcc.Link(safe(fix.run), href=links.run(fix.run)), ". "]
        other = fix.run, document.run.id
    else:
        lead = [f"Fixed {written(fix.created)}. "]
        other = document.run.id, fix.after_run
    more = [" ", dcc.Link("Compare before and after", href=links.compare(*other))] if all(other) else []
    parts: list[Any] = [*lead, fix_facts.verdict(fix), *more]
    return [html.Div(html.P(parts), className="callout good")]
