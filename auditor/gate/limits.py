"""One limit against one run: the figure that it is about, whether it is kept, and which findings break it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import msgspec

from auditor.document import Document, Finding
from auditor.gate.amounts import Allowed
from auditor.gate.budget import Limit, Scope
from auditor.gate.culprits import counted, culprits, in_scope
from auditor.gate.measures import Spreads, a_step, steps_of, verdict
from auditor.gate.whole_steps import of_whole_steps
from auditor.gate_document import Check, FindingChange, Snapshot, Spread, Status
from auditor.report.format import percent, ratio, safe
from auditor.report.gate_words import amount, more, with_spread


def check_limit(
    limit: Limit, document: Document, now: Snapshot, before: Snapshot | None, changes: list[FindingChange],
    spreads: Spreads | None = None, no_baseline: str = "no baseline was given; give one with --baseline",
) -> Check:  # fmt: skip
    """Hold the run of ``document`` (``now``) to ``limit``; ``changes`` are those against the baseline ``before``.

    ``spreads`` are those of what is measured, of which ``now`` has the medians; ``no_baseline`` says why there is no
    ``before``.
    """
    scope, name = limit.scope, document.run.name
    if scope.model and not fnmatchcase(name, scope.model):
        return _check(limit, "skipped", f"this run is called {safe(name) or 'nothing'}")
    value = _value(limit, document, now)
    if value is None:
        return _check(limit, "skipped", "it is not known of this run")
    over = None if limit.kind.counted else (spreads or {}).get(limit.kind.key) or Spread(median=value)
    if limit.increase is None:
        held = _most(limit, value, over)
    elif before is None:
        return _check(limit, "skipped", no_baseline, value)
    else:
        held = _increase(limit, limit.increase, value, _of_rule(limit.kind.key, before, scope), over)
    held = msgspec.structs.replace(held, spread=over)
    if held.status in ("passed", "skipped"):
        return held
    blamed = culprits(limit.kind.key, scope, document, now, changes, grown_only=limit.increase is not None)
    return msgspec.structs.replace(held, culprits=blamed)


def _most(limit: Limit, value: float, over: Spread | None) -> Check:
    most, unit = limit.most or 0.0, limit.kind.unit
    told, allowed = with_spread(value, unit, over), amount(most, unit)
    if value <= most:
        return _check(limit, "passed", f"{told} of at most {allowed}", value, most)
    if _reaches(over, most):
        return _check(limit, "passed", f"{told}, not above the {allowed} allowed for certain", value, most)
    message = f"{told}, {more(value - most, unit)} than the {allowed} allowed"
    return _check(limit, _broken(limit), message, value, most)


def _increase(limit: Limit, allowed: Allowed, value: float, was: float | None, over: Spread | None) -> Check:
    kind, unit = limit.kind, limit.kind.unit
    if was is None:
        return _check(limit, "skipped", "it is not known of the baseline", value)
    most, told = allowed.over(was), with_spread(value, unit, over)
    # A time that moved within its noise did not grow
    if value <= most or verdict(kind, was, value) == "same" or _reaches(over, most):
        alike = amount(was, unit) == amount(value, unit)  # a few bytes of megabytes can't be read
        moved = f"stayed {told}" if alike else f"went from {amount(was, unit)} to {told}"
        return _check(limit, "passed", moved, value, most, was)
    part = ratio(value - was, was) if unit != "share" else None
    by = f"{more(value - was, unit)}{f' (+{percent(part)})' if part else ''}"
    left = f"{amount(most, unit)} would be allowed" if most > was else "no increase is allowed"
    message = f"grew from {amount(was, unit)} to {told}: {by}, {left}"
    return _check(limit, _broken(limit), message, value, most, was)


def _reaches(over: Spread | None, most: float) -> bool:
    """Whether the interval of a median begins below the limit: it may have been kept."""
    return over is not None and over.low is not None and over.low <= most


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
        findings = (f for f in of_whole_steps(document).findings if in_scope(f.rule, f.name, scope))
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
