"""One limit against one run: the figure that it is about, whether it is kept, and which findings break it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from auditor.document import Document, Finding
from auditor.gate.amounts import Allowed
from auditor.gate.budget import Limit, Scope
from auditor.gate.culprits import counted, culprits, in_scope
from auditor.gate.measures import a_step, steps_of, verdict
from auditor.gate_document import Check, FindingChange, Snapshot, Status
from auditor.report.format import percent, ratio, safe
from auditor.report.gate_words import amount, more


def check_limit(
    limit: Limit, document: Document, now: Snapshot, before: Snapshot | None, changes: list[FindingChange]
) -> Check:
    """Hold the run of ``document`` (``now``) to ``limit``; ``changes`` are those against the baseline ``before``."""
    scope, name = limit.scope, document.run.name
    if scope.model and not fnmatchcase(name, scope.model):
        return _check(limit, "skipped", f"this run is called {safe(name) or 'nothing'}")
    value = _value(limit, document, now)
    if value is None:
        return _check(limit, "skipped", "it is not known of this run")
    if limit.increase is None:
        held = _most(limit, value)
    elif before is None:
        return _check(limit, "skipped", "no baseline was given; give one with --baseline", value)
    else:
        held = _increase(limit, limit.increase, value, _of_rule(limit.kind.key, before, scope))
    if held.status in ("passed", "skipped"):
        return held
    blamed = culprits(limit.kind.key, scope, document, now, changes, grown_only=limit.increase is not None)
    return msgspec.structs.replace(held, culprits=blamed)


def _most(limit: Limit, value: float) -> Check:
    most, unit = limit.most or 0.0, limit.kind.unit
    if value <= most:
        return _check(limit, "passed", f"{amount(value, unit)} of at most {amount(most, unit)}", value, most)
    message = f"{amount(value, unit)}, {more(value - most, unit)} than the {amount(most, unit)} allowed"
    return _check(limit, _broken(limit), message, value, most)


def _increase(limit: Limit, allowed: Allowed, value: float, was: float | None) -> Check:
    kind, unit = limit.kind, limit.kind.unit
    if was is None:
        return _check(limit, "skipped", "it is not known of the baseline", value)
    most = allowed.over(was)
    if value <= most or verdict(kind, was, value) == "same":  # a time that moved within its noise did not grow
        moved = (
            f"went from {amount(was, unit)} to {amount(value, unit)}" if value != was else f"stayed {amount(was, unit)}"
        )
        return _check(limit, "passed", moved, value, most, was)
    part = ratio(value - was, was) if unit != "share" else None
    by = f"{more(value - was, unit)}{f' (+{percent(part)})' if part else ''}"
    left = f"{amount(most, unit)} would be allowed" if most > was else "no increase is allowed"
    message = f"grew from {amount(was, unit)} to {amount(value, unit)}: {by}, {left}"
    return _check(limit, _broken(limit), message, value, most, was)


def _broken(limit: Limit) -> Status:
    """Counts and bytes are the same in every run, and fail; what is measured only warns."""
    return "failed" if limit.kind.counted else "warned"


def title(limit: Limit) -> str:
    """``unfused kernels of FUS201 in model.* of runs llama*``."""
    scope = limit.scope
    parts = [
        limit.kind.label if limit.kind.key != "bytes" or not (scope.rule or scope.modules) else "bytes of findings",
        f"of {safe(scope.rule)}" if scope.rule else "",
        f"in {safe(scope.modules)}" if scope.modules else "",
        f"of runs {safe(scope.model)}" if scope.model else "",
        "against the baseline" if limit.increase else "",
    ]
    return " ".join(part for part in parts if part)


def _check(
    limit: Limit, status: Status, message: str, value: float | None = None, most: float | None = None,
    before: float | None = None,
) -> Check:  # fmt: skip
    return Check(
        id=limit.id, key=limit.kind.key, title=title(limit), status=status, unit=limit.kind.unit, value=value,
        limit=most, before=before, message=message, file=limit.file, line=limit.line,
    )  # fmt: skip


def _value(limit: Limit, document: Document, now: Snapshot) -> float | None:
    scope, key = limit.scope, limit.kind.key
    if scope.modules:
        findings = (f for f in document.findings if in_scope(f.rule, f.name, scope))
        return a_step(sum(_in_modules(f, key, scope.modules) for f in findings), steps_of(document))
    return _of_rule(key, now, scope)


def _of_rule(key: str, of: Snapshot, scope: Scope) -> float | None:
    if not scope.rule:
        value: float | None = getattr(of.figures, key)
        return value
    return sum(counted(found, key) for found in of.findings if in_scope(found.rule, found.name, scope))


def _in_modules(finding: Finding, key: str, glob: str) -> float:
    places = [place for place in finding.places if fnmatchcase(place.module, glob)]
    if key == "bytes":
        return sum(place.bytes_now for place in places)
    kept = 0 if key == "unfused_kernels" else 1
    return sum(place.kernels - kept * place.kernels_after for place in places)
