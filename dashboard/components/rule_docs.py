"""A rule's own text, section by section: it is the only source of its page."""

from __future__ import annotations

import re
from typing import Any

from dash import html

from auditor.cli.rules import CODE
from auditor.engine.rules import Rule
from auditor.report.format import safe
from dashboard.components.code import code_block

_HEADINGS = {
    "what": "What it finds",
    "why": "Why it costs",
    "example": "Example",
    "instead": "Use instead",
    "safety": "Safety",
}


def rule_docs(rule: Rule, *, without: tuple[str, ...] = (), level: Any = html.H3) -> list[Any]:
    """The sections of ``rule``, those named in ``without`` left out, under headings of one level."""
    parts: list[Any] = []
    for section, text in rule.docs.items():
        if section in without:
            continue
        parts.append(level(_HEADINGS.get(section, section.capitalize())))
        parts += [code_block(text, section, numbered=False)] if section in CODE else prose(text)
    return parts


def prose(text: str) -> list[Any]:
    """Paragraphs; words in backticks as code."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return [html.P(_spans(" ".join(paragraph.split()))) for paragraph in paragraphs]


def _spans(text: str) -> list[Any]:
    parts = re.split(r"`([^`]+)`", text)
    return [html.Code(safe(part)) if i % 2 else safe(part) for i, part in enumerate(parts)]
