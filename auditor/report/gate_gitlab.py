"""The gate's verdict as a GitLab code quality report: a list of issues, each with a place and a fingerprint.

Reference: docs.gitlab.com, "Code Quality report format".
"""

from __future__ import annotations

import hashlib
import json

from auditor.gate_document import Check, GateDocument
from auditor.report import gate_facts as facts
from auditor.report.gate_plain import message

_SEVERITIES = {"failed": "major", "warned": "minor"}


def render(gate: GateDocument) -> str:
    """The JSON of the report, ending in a newline."""
    issues = [_issue(gate, check, file, line, mark) for check in facts.problems(gate)
              for file, line, mark in _places(gate, check)]  # fmt: skip
    return json.dumps(issues, indent=2) + "\n"


def _places(gate: GateDocument, check: Check) -> list[tuple[str, int, str]]:
    """File, line and fingerprint of each finding in the repository; else those of the limit."""
    inside = [
        (file, culprit.source.line, culprit.fingerprint)
        for culprit in check.culprits
        if culprit.source and (file := facts.in_repository(gate, culprit.source.file))
    ]
    return inside or [(facts.in_repository(gate, check.file) or facts.PROJECT_FILE, check.line, "")]


def _issue(gate: GateDocument, check: Check, file: str, line: int, mark: str) -> dict[str, object]:
    identity = "\0".join((check.id, gate.run.name, mark))  # lines move, and the issue stays the same
    return {
        "description": message(gate, check),
        "check_name": f"fusion-gate/{check.key}",
        "fingerprint": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
        "severity": _SEVERITIES[check.status],
        "location": {"path": file, "lines": {"begin": max(line, 1)}},
    }
