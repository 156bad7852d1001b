"""What is broken, finding by finding: a regression that breaks twelve limits is one thing to look at, not twelve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from auditor.gate_document import Check, Culprit, GateDocument, Status
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_plain import message


@dataclass(frozen=True, slots=True)
class Issue:
    """A finding with every limit that it breaks, or a broken limit that has none."""

    checks: tuple[Check, ...]
    """At least one; those that fail first."""
    culprits: tuple[Culprit, ...] = ()
    """One fingerprint, as limits of several scopes and ranks see it."""

    @property
    def status(self) -> Status:
        """The worst of its limits."""
        return self.checks[0].status

    @property
    def rule(self) -> str:
        """Of the finding; empty for a limit alone."""
        return safe(self.culprits[0].rule) if self.culprits else ""

    @property
    def title(self) -> str:
        """The finding's rule, else the limit."""
        return f"{self.rule} {safe(self.culprits[0].name)}" if self.culprits else self.checks[0].title

    @property
    def fingerprint(self) -> str:
        """Of the finding, whichever limits it breaks; else the limit's id."""
        return self.culprits[0].fingerprint if self.culprits else self.checks[0].id


def issues(gate: GateDocument) -> list[Issue]:
    """Those that fail first, each finding once."""
    problems = facts.problems(gate)
    marks = dict.fromkeys(culprit.fingerprint for check in problems for culprit in check.culprits)
    made = [_of_finding(mark, problems) for mark in marks]
    made += [Issue((check,)) for check in problems if not check.culprits]
    return sorted(made, key=lambda issue: issue.status != "failed")


def _of_finding(mark: str, problems: list[Check]) -> Issue:
    pairs = [(check, each) for check in problems for each in check.culprits if each.fingerprint == mark]
    checks = {check.id: check for check, _ in pairs}
    return Issue(tuple(checks.values()), tuple(dict.fromkeys(each for _, each in pairs)))


def places(gate: GateDocument, issue: Issue) -> Iterator[tuple[str, int, str]]:
    """File from the repository's root on, line and module: of the finding, then of its limits, where they are in it."""
    sources = [(c.source.file, c.source.line, c.module) for c in issue.culprits if c.source]
    for file, line, module in [*sources, *((check.file, check.line, "") for check in issue.checks)]:
        inside = facts.in_repository(gate, file)
        if inside:
            yield inside, line, module


def text(gate: GateDocument, issue: Issue) -> str:
    """The finding, a line for each limit that it breaks, and what to do; of a limit alone, its message."""
    if not issue.culprits:
        return message(gate, issue.checks[0])
    particulars = dict.fromkeys(fact for each in issue.culprits for fact in facts.worse(gate, each))
    lines = [f"{fact.label}: {fact.value}" for fact in particulars]
    lines += [f"breaks: {facts.sentence(c)} ({safe(c.id)}, {facts.set_at(c)})" for c in issue.checks]
    lines += [f"{fact.label}: {fact.value}" for fact in facts.context(gate)]
    return "\n".join(map(safe, lines))
