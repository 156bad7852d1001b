"""Small marks: severity, state of a job or site, how an edge is known. Each is a word; colour only repeats it."""

from __future__ import annotations

from dash import html

from auditor.report.format import clip, safe

_SEVERITIES = {"error", "warning", "info"}
_STATES = {
    "queued": "info", "running": "busy", "done": "good", "failed": "error", "cancelled": "dim", "kept": "good",
    "rolled_back": "warning", "refused": "dim",
}  # fmt: skip


def badge(text: str, tone: str = "dim") -> html.Span:
    """A word in one of the tones ``good``, ``info``, ``busy``, ``warning``, ``error``, ``dim``."""
    return html.Span(clip(safe(text), 32), className=f"badge {tone}")


def severity(level: str) -> html.Span:
    return badge(level, level if level in _SEVERITIES else "dim")


def state(name: str) -> html.Span:
    """Of a job, or of a site of a fix."""
    return badge(name.replace("_", " "), _STATES.get(name, "dim"))


def provenance(kind: str) -> html.Span | None:
    """Said only where edges are not observed: then a reader must look before acting."""
    return None if kind == "observed" else badge(kind, "warning")
