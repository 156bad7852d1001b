"""The tests inside rule files: a graph in SSA text, and what the rule must say about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from auditor.engine.claims import Claims, claim
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule, RuleTest
from auditor.errors import AuditError
from auditor.graph.ssa import parse


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test of one rule. ``message`` says what was expected and what came."""

    __test__ = False

    rule: str
    test: str
    passed: bool
    message: str = ""


def run_rule_tests(rules: Iterable[Rule]) -> list[TestResult]:
    """Run every test of every rule; a rule is tested alone, so that its own matching is judged."""
    return [run_test(rule, test) for rule in rules for test in rule.tests]


def run_test(rule: Rule, test: RuleTest) -> TestResult:
    """One test. A graph that does not parse is a failed test, not an error of the run."""
    try:
        graph = parse(test.graph, file=f"{rule.path.name}: {test.name}")
    except AuditError as error:
        return TestResult(rule.id, test.name, False, str(error))
    problems = _differences(test.expect, claim(graph, [rule]))
    return TestResult(rule.id, test.name, not problems, "; ".join(problems))


def _differences(expect: dict[str, Any], claims: Claims) -> list[str]:
    sites = claims.sites
    found: dict[str, Any] = {
        "sites": len(sites),
        "kernels": sum(s.region.kernels for s in sites),
        "bytes_now": sum(s.region.bytes_now for s in sites),
        "bytes_fused": sum(s.region.bytes_fused for s in sites),
        "outputs": sum(len(s.region.outputs) + len(s.region.saved) for s in sites),
        "variant": _variant(sites),
    }
    problems = [
        f"expected {key} {expect[key]}, found {found[key]}"
        for key in expect
        if key in found and expect[key] != found[key]
    ]
    reasons = [refusal.reason for _, refusal in claims.refused]
    if "reason" in expect and not any(expect["reason"] in reason for reason in reasons):
        problems.append(f"expected a refusal with {expect['reason']!r}, found {reasons or 'none'}")
    return problems


def _variant(sites: Sequence[Candidate]) -> dict[str, str]:
    return sites[0].variant if sites else {}
