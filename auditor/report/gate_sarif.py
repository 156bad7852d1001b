"""The gate's verdict as SARIF 2.1.0 (OASIS): a result for each broken limit, and for each finding that came or grew."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote

from auditor import __version__
from auditor.gate_document import Check, FindingChange, GateDocument, RuleText
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_plain import message

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
    checks = facts.problems(gate)
    changes = [c for c in (gate.comparison.findings if gate.comparison else []) if c.change in ("new", "more")]
    rules = [*dict.fromkeys(check.key for check in checks)]
    texts = {text.id: text for text in gate.rules}
    driver_rules = [_limit_rule(key, next(c for c in checks if c.key == key)) for key in rules]
    driver_rules += [_fusion_rule(mark, texts.get(mark)) for mark in dict.fromkeys(c.rule for c in changes)]
    index = {rule["id"]: i for i, rule in enumerate(driver_rules)}
    results = [_of_check(gate, check, index) for check in checks]
    results += [_of_change(gate, change, index) for change in changes]
    driver = {"name": "fusion-audit", "version": __version__, "rules": driver_rules}
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"fusion-gate/{safe(gate.run.name)}/"},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _limit_rule(key: str, check: Check) -> dict[str, Any]:
    more = f"The run has more {key.replace('_', ' ')} than its budget or its baseline allows."
    text = _NO_LIMITS.get(key, more)
    return _rule(f"gate/{key}", f"gate-{key.replace('_', '-')}", text, text, _LEVELS[check.status])


def _fusion_rule(mark: str, text: RuleText | None) -> dict[str, Any]:
    what = text.what if text else "Kernels that could be one."
    why = f"{what}\n\n{text.why}" if text and text.why else what
    return _rule(mark, text.name if text else mark, what, why, "warning")


def _rule(mark: str, name: str, short: str, help_: str, level: str) -> dict[str, Any]:
    return {
        "id": safe(mark),
        "name": safe(name),
        "shortDescription": {"text": safe(short.split(". ")[0])},
        "fullDescription": {"text": safe(short)},
        "help": {"text": "\n".join(map(safe, help_.splitlines()))},
        "defaultConfiguration": {"level": level},
    }


def _of_check(gate: GateDocument, check: Check, index: dict[str, int]) -> dict[str, Any]:
    rule = f"gate/{check.key}"
    places = [(c.source.file, c.source.line, c.module) for c in check.culprits if c.source]
    return {
        "ruleId": rule,
        "ruleIndex": index[rule],
        "level": _LEVELS[check.status],
        "message": {"text": message(gate, check)},
        "locations": _locations(gate, places, (check.file, check.line)),
        "partialFingerprints": {_FINGERPRINT: f"{safe(check.id)}/{safe(gate.run.name)}"},
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
