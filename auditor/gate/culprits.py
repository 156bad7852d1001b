"""The findings behind a broken limit: what came or grew, or what there is most of, and where."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from auditor.config import covers
from auditor.document import Document
from auditor.gate.budget import Scope
from auditor.gate_document import Culprit, FindingChange, Found, Snapshot
from auditor.report.gate_words import number, several

_SHOWN = 5


def culprits(
    key: str, scope: Scope, document: Document, now: Snapshot, changes: list[FindingChange], *, grown_only: bool
) -> list[Culprit]:
    """Those that the measure ``key`` counts in ``scope``, the worst first.

    Findings that are new or larger than in the baseline go before all others; ``grown_only`` leaves the others out.
    """
    at = dict(_modules(document, scope))
    grown = [c for c in changes if c.change in ("new", "more") and c.after in at]
    if grown or grown_only:
        return [of_change(change, at[change.after]) for change in grown[:_SHOWN]]
    found = [f for f in now.findings if f.fingerprint in at]
    largest = sorted(found, key=lambda f: (-counted(f, key), f.fingerprint))
    return [of_found(each, at[each.fingerprint]) for each in largest[:_SHOWN]]


def counted(found: Found, key: str) -> float:
    """What a finding adds to a measure of findings; to any other, what fusing it would take away."""
    return {"unfused_kernels": found.kernels, "bytes": found.bytes}.get(key, found.avoidable)


def _modules(document: Document, scope: Scope) -> Iterator[tuple[str, str]]:
    """Fingerprints of the findings in ``scope``, each with the first module of it that is."""
    for finding in document.findings:
        if not in_scope(finding.rule, finding.name, scope):
            continue
        inside = (m for m in finding.modules if not scope.modules or fnmatchcase(m, scope.modules))
        module = next(inside, None)
        if module is not None or not scope.modules:
            yield finding.fingerprint, module or ""


def in_scope(rule: str, name: str, scope: Scope) -> bool:
    """Whether a limit on ``scope`` is about findings of this rule."""
    return not scope.rule or covers(scope.rule, rule, name)


def of_found(found: Found, module: str) -> Culprit:
    """A finding as it is, with the module to look at."""
    what = f"{several(found.sites, 'site')}, {several(found.kernels, 'kernel')}, {number(found.avoidable)} avoidable"
    return _culprit(found, what, module)


def of_change(change: FindingChange, module: str) -> Culprit:
    """A finding that is new or larger."""
    sites, kernels, avoidable = change.sites, change.kernels, change.avoidable
    if change.change == "new":
        what = f"new: {several(sites[1], 'site')}, {several(kernels[1], 'kernel')}, {number(avoidable[1])} avoidable"
    else:
        parts = (("sites", sites), ("kernels", kernels), ("avoidable", avoidable))
        what = "more: " + ", ".join(f"{number(a)} → {number(b)} {noun}" for noun, (a, b) in parts)
    now = Found(
        fingerprint=change.after, rule=change.rule, name=change.name, source=change.source,
        step_us=change.step_us[1], likely_us=change.likely_us[1],
    )  # fmt: skip
    return _culprit(now, what, module)


def _culprit(found: Found, what: str, module: str) -> Culprit:
    return Culprit(
        fingerprint=found.fingerprint, rule=found.rule, name=found.name, what=what, module=module,
        source=found.source, step_us=found.step_us, likely_us=found.likely_us,
    )  # fmt: skip
