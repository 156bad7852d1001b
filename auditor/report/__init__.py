"""One module per output format, all fed by the audit document (and the op graph, for the drawings)."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Literal, get_args

from auditor.document import Document
from auditor.errors import AuditError
from auditor.fix_document import FixDocument
from auditor.gate_document import Comparison, GateDocument
from auditor.graph.model import OpGraph

Format = Literal["text", "json", "markdown", "html"]
FORMATS: tuple[Format, ...] = get_args(Format)
GateFormat = Literal["text", "json", "junit", "sarif", "github", "gitlab", "markdown"]
GATE_FORMATS: tuple[GateFormat, ...] = get_args(GateFormat)

__all__ = [
    "FORMATS",
    "GATE_FORMATS",
    "Format",
    "GateFormat",
    "load_json",
    "notebook",
    "render",
    "render_diff",
    "render_fix",
    "render_gate",
]


def render(
    document: Document, graph: OpGraph | None, fmt: Format, *, color: bool = False, width: int = 100
) -> str:  # fmt: skip
    """The report in ``fmt``, ending in a newline. Formats are imported when they are asked for.

    Args:
        document: the audit.
        graph: the ops that its sites index; only the HTML report reads it, and draws what it can find.
        fmt: one of :data:`FORMATS`.
        color: ANSI colours, text only.
        width: columns of the terminal, text only.

    Raises:
        ValueError: ``fmt`` is not one of :data:`FORMATS`.
    """
    if fmt == "text":
        from auditor.report import text

        return text.render(document, color=color, width=width)
    if fmt == "json":
        from auditor.report import json

        return json.render(document)
    if fmt == "markdown":
        from auditor.report import markdown

        return markdown.render(document)
    if fmt == "html":
        from auditor.report import html

        return html.render(document, graph)
    raise ValueError(f"unknown report format {fmt!r}; one of {', '.join(FORMATS)}")


def render_fix(fix: FixDocument, fmt: Format, *, color: bool = False, width: int = 100) -> str:
    """The report of a fix, ending in a newline; the arguments are those of :func:`render`.

    Raises:
        AuditError: there is no such report of a fix.
    """
    if fmt == "text":
        from auditor.report import fix_text

        return fix_text.render(fix, color=color, width=width)
    if fmt == "json":
        from auditor.report import fix_json

        return fix_json.render(fix)
    if fmt == "markdown":
        from auditor.report import fix_markdown

        return fix_markdown.render(fix)
    raise AuditError(f"a fix has no report in {fmt}; there are: text, json, markdown")


def render_gate(gate: GateDocument, fmt: GateFormat, *, color: bool = False, width: int = 100) -> str:
    """The gate's verdict in ``fmt``, one of :data:`GATE_FORMATS`; the other arguments are those of :func:`render`."""
    if fmt == "text":
        from auditor.report import gate_text

        return gate_text.render(gate, color=color, width=width)
    module = import_module(f"auditor.report.gate_{fmt}")
    text: str = module.render(gate)
    return text


def render_diff(found: Comparison, fmt: Format, *, color: bool = False, width: int = 100) -> str:
    """A comparison of two runs; the arguments are those of :func:`render`.

    Raises:
        AuditError: there is no such report of a comparison.
    """
    if fmt == "text":
        from auditor.report import gate_text

        return gate_text.render_diff(found, color=color, width=width)
    if fmt == "json":
        from auditor.report import gate_json

        return gate_json.render(found)
    if fmt == "markdown":
        from auditor.report import gate_markdown

        return gate_markdown.render_diff(found)
    raise AuditError(f"a comparison has no report in {fmt}; there are: text, json, markdown")


def load_json(path: str | Path) -> Document:
    """Read an audit that the JSON report wrote; see :func:`auditor.report.json.load_json`."""
    from auditor.report import json

    return json.load_json(path)


def notebook(document: Document) -> str:
    """A compact HTML fragment for ``_repr_html_``: inline styles, no scripts, nothing loaded."""
    from auditor.report import fragment

    return fragment.render(document)
