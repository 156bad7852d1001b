"""What each rule found in the last runs. A stored document never changes: each is read once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

from auditor.errors import AuditError
from auditor.store import RunSummary
from dashboard.context import current

RUNS = 100
"""Runs that are looked at, the newest."""
_KEPT = 2000
_lock = threading.Lock()
_seen: OrderedDict[str, dict[str, RuleHit]] = OrderedDict()


class _Found(msgspec.Struct):
    rule: str
    sites: int = 0
    kernels: int = 0
    kernels_after: int = 0
    device_us: float = 0.0
    saving: dict[str, float] = {}


class _Slim(msgspec.Struct):
    findings: list[_Found] = []


@dataclass(frozen=True, slots=True)
class RuleHit:
    """One rule in one run. Times in microseconds."""

    findings: int = 0
    sites: int = 0
    avoidable: int = 0
    likely_us: float = 0.0


@dataclass(frozen=True, slots=True)
class RunHits:
    """What the rules found in one run, by rule id."""

    run: RunSummary
    hits: dict[str, RuleHit]


def last_hits(limit: int = RUNS) -> list[RunHits]:
    """The newest runs with what each rule found in them, the newest first."""
    store = current().store
    found = []
    for run in store.list_runs(limit=limit):
        hits = _known(run.id)
        if hits is not None:
            found.append(RunHits(run, hits))
    return found


def _known(run: str) -> dict[str, RuleHit] | None:
    """The hits of a run; None where it is gone or can't be read."""
    key = f"{current().store.location.url} {run}"
    with _lock:
        if key in _seen:
            _seen.move_to_end(key)
            return _seen[key]
    try:
        hits = _summed(msgspec.json.decode(current().store.document_text(run), type=_Slim))
    except (AuditError, msgspec.MsgspecError):
        return None
    with _lock:
        _seen[key] = hits
        while len(_seen) > _KEPT:
            _seen.popitem(last=False)
    return hits


def _summed(document: _Slim) -> dict[str, RuleHit]:
    hits: dict[str, RuleHit] = {}
    for found in document.findings:
        before = hits.get(found.rule, RuleHit())
        hits[found.rule] = RuleHit(
            before.findings + 1,
            before.sites + found.sites,
            before.avoidable + max(found.kernels - found.kernels_after, 0),
            before.likely_us + found.saving.get("likely_us", 0.0),
        )
    return hits
