"""The gate's verdict as a GitLab code quality report: a list of issues, each with a place and a fingerprint.

Reference: docs.gitlab.com, "Code Quality report format".
"""

from __future__ import annotations

import hashlib
import json

from auditor.gate_document import GateDocument
from auditor.report import gate_facts as facts
from auditor.report.gate_issues import Issue, issues, places, text

_SEVERITIES = {"failed": "major", "warned": "minor"}


def render(gate: GateDocument) -> str:
    """The JSON of the report, ending in a newline."""
    return json.dumps([_issue(gate, issue) for issue in issues(gate)], indent=2) + "\n"


def _issue(gate: GateDocument, issue: Issue) -> dict[str, object]:
    file, line, _ = next(places(gate, issue), (facts.PROJECT_FILE, 1, ""))
    kind = "finding" if issue.culprits else "limit"
    identity = "\0".join((kind, gate.run.name, issue.fingerprint))  # lines move, and the issue stays the same
    return {
        "description": text(gate, issue),
        "check_name": f"fusion-gate/{issue.rule or issue.checks[0].key}",
        "fingerprint": hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(),
        "severity": _SEVERITIES[issue.status],
        "location": {"path": file, "lines": {"begin": max(line, 1)}},
    }
