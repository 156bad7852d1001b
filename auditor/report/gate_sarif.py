"""The gate's verdict as SARIF 2.1.0 (OASIS): a result for each finding, and for each broken limit that has none."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from auditor import __version__
from auditor.gate_document import Check, FindingChange, GateDocument, RuleText
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_issues import Issue, issues, places, text

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
_LEVELS = {"failed": "error", "warned": "warning"}
_FINGERPRINT = "fusionAudit/v1"
_NO_LIMITS = {
    "require": "A fused kernel that has to run did not run: the fusion was lost, or fell back to separate ops.",
    "ranks": "Ranks of the job that the baseline holds were not recorded: no limit is held on them.",
}
"""What checks other than limits are about, by key."""


def render(gate: GateDocument) -> str:
    """One run of SARIF, ending in a newline. Files are named from the repository's root on."""
    broken = issues(gate)
    changes = _kept(gate, broken)
    driver_rules = _rules(gate, broken, changes)
    index = {rule["id"]: i for i, rule in enumerate(driver_rules)}
    results = [_of_issue(gate, issue, index) for issue in broken]
    results += [_of_change(gate, change, index) for change in changes]
    driver = {"name": "fusion-audit", "version": __version__, "rules": driver_rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"fusion-gate/{safe(gate.run.name)}/"},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _kept(gate: GateDocument, broken: list[Issue]) -> list[FindingChange]:
    """Findings that came or grew, and break no limit that says so."""
    told = {issue.fingerprint for issue in broken if issue.culprits}
    found = gate.comparison.findings if gate.comparison else []
    return [c for c in found if c.change in ("new", "more") and (c.after or c.fingerprint) not in told]


def _rules(gate: GateDocument, broken: list[Issue], changes: list[FindingChange]) -> list[dict[str, Any]]:
    """Those that results name: of limits, then of fusions."""
    alone = [issue.checks[0] for issue in broken if not issue.culprits]
    keys = dict.fromkeys(check.key for check in alone)
    marks = [*(c.rule for issue in broken for c in issue.culprits[:1]), *(change.rule for change in changes)]
    texts = {each.id: each for each in gate.rules}
    limits = [_limit_rule(key, next(c for c in alone if c.key == key)) for key in keys]
    return [*limits, *(_fusion_rule(mark, texts.get(mark)) for mark in dict.fromkeys(marks))]


def _limit_rule(key: str, check: Check) -> dict[str, Any]:
    more = f"The run has more {key.replace('_', ' ')} than its budget or its baseline allows."
    what = _NO_LIMITS.get(key, more)
    return _rule(f"gate/{key}", f"gate-{key.replace('_', '-')}", what, what, _LEVELS[check.status])


def _fusion_rule(mark: str, said: RuleText | None) -> dict[str, Any]:
    what = said.what if said else "Kernels that could be one."
    why = f"{what}\n\n{said.why}" if said and said.why else what
    return _rule(mark, said.name if said else mark, what, why, "warning")


def _rule(mark: str, name: str, short: str, help_: str, level: str) -> dict[str, Any]:
    return {
        "id": safe(mark),
        "name": safe(name),
        "shortDescription": {"text": safe(short.split(". ")[0])},
        "fullDescription": {"text": safe(short)},
        "help": {"text": "\n".join(map(safe, help_.splitlines()))},
        "defaultConfiguration": {"level": level},
    }


def _of_issue(gate: GateDocument, issue: Issue, index: dict[str, int]) -> dict[str, Any]:
    rule = issue.rule or f"gate/{issue.checks[0].key}"
    mark = safe(issue.fingerprint) if issue.culprits else f"{safe(issue.fingerprint)}/{safe(gate.run.name)}"
    return {
        "ruleId": rule,
        "ruleIndex": index[rule],
        "level": _LEVELS[issue.status],
        "message": {"text": text(gate, issue)},
        "locations": [_location(*next(places(gate, issue), (facts.PROJECT_FILE, 1, "")))],
        "partialFingerprints": {_FINGERPRINT: mark},
    }


def _of_change(gate: GateDocument, change: FindingChange, index: dict[str, int]) -> dict[str, Any]:
    module = change.modules[0] if change.modules else ""
    places = [(change.source.file, change.source.line, module)] if change.source else []
    words = f"{safe(change.name)} is {'new' if change.change == 'new' else 'larger'}: {facts.change_words(change)}"
    return {
        "ruleId": safe(change.rule),
        "ruleIndex": index[safe(change.rule)],
        "level": "warning",
        "message": {"text": words},
        "locations": _locations(gate, places, _first_limit(gate)),
        "partialFingerprints": {_FINGERPRINT: safe(change.fingerprint)},
    }


def _first_limit(gate: GateDocument) -> tuple[str, int]:
    return next(((check.file, check.line) for check in gate.checks if check.file), ("", 0))


def _locations(gate: GateDocument, places: list[tuple[str, int, str]], limit: tuple[str, int]) -> list[dict[str, Any]]:
    """The first of ``places`` that is in the repository, else the limit's: a result without a file is not shown."""
    for file, line, module in [*places, (*limit, "")]:
        inside = facts.in_repository(gate, file)
        if inside:
            return [_location(inside, line, module)]
    return [_location(facts.PROJECT_FILE, 1, "")]


def _location(file: str, line: int, module: str) -> dict[str, Any]:
    path = {"uri": quote(str(PurePosixPath(file)), errors="replace"), "uriBaseId": _ROOT}
    physical: dict[str, Any] = {"artifactLocation": path}
    if line > 0:
        physical["region"] = {"startLine": line}
    location: dict[str, Any] = {"physicalLocation": physical}
    if module:
        location["logicalLocations"] = [{"fullyQualifiedName": safe(module), "kind": "module"}]
    return location
