"""The gate's verdict as workflow commands of GitHub Actions: annotations beside the lines that they are about.

Reference: docs.github.com, "Workflow commands for GitHub Actions". The Markdown report is the job's summary.
"""

from __future__ import annotations

from auditor.gate_document import GateDocument
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_issues import Issue, issues, places, text

_LEVELS = {"failed": "error", "warned": "warning"}


def render(gate: GateDocument) -> str:
    """One command a line, and the verdict as a notice at last. GitHub shows ten of a step: a finding has one."""
    lines = [_annotation(gate, issue) for issue in issues(gate)]
    title = f"fusion gate of {facts.title(gate.run)}"
    return "".join(f"{line}\n" for line in [*lines, _command("notice", facts.outcome(gate), title=title)])


def _annotation(gate: GateDocument, issue: Issue) -> str:
    """At the source line that got worse; where that isn't in the repository, at the limit."""
    file, line, _ = next(places(gate, issue), ("", 0, ""))
    title = f"fusion gate: {issue.title}"
    return _command(_LEVELS[issue.status], text(gate, issue), file=file, line=str(line) if line else "", title=title)


def _command(name: str, words: str, **properties: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items() if value)
    return f"::{name} {given}::{_data(words)}"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(safe(words)).replace(":", "%3A").replace(",", "%2C")
