"""The gate's verdict as workflow commands of GitHub Actions: annotations beside the lines that they are about.

Reference: docs.github.com, "Workflow commands for GitHub Actions". The Markdown report is the job's summary.
"""

from __future__ import annotations

from auditor.gate_document import Check, GateDocument
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_plain import message

_LEVELS = {"failed": "error", "warned": "warning"}


def render(gate: GateDocument) -> str:
    """One command a line, and the verdict as a notice at last."""
    lines = [line for check in facts.problems(gate) for line in _annotations(gate, check)]
    title = f"fusion gate of {facts.title(gate.run)}"
    return "".join(f"{line}\n" for line in [*lines, _command("notice", facts.outcome(gate), title=title)])


def _annotations(gate: GateDocument, check: Check) -> list[str]:
    """At the source lines that got worse; where none of them is in the repository, at the limit."""
    places = [(facts.in_repository(gate, c.source.file), c.source.line) for c in check.culprits if c.source]
    inside = [place for place in dict.fromkeys(places) if place[0]]
    if not inside:
        inside = [(facts.in_repository(gate, check.file), check.line)]
    level, text, title = _LEVELS[check.status], message(gate, check), f"fusion gate: {check.title}"
    return [_command(level, text, file=file, line=str(line) if file and line else "", title=title)
            for file, line in inside]  # fmt: skip


def _command(name: str, text: str, **properties: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name} {given}::{_data(text)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(safe(text)).replace(":", "%3A").replace(",", "%2C")
