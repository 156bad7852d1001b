"""The ranks of a job as the gate holds them, and their checks of one limit made one that names its rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from auditor.document import Document
from auditor.gate.compare import compare_findings
from auditor.gate.measures import Spreads
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Check, FindingChange, Head, Snapshot
from auditor.report.ranks import named
from auditor.store import StoredRun
from auditor.store.rank_tables import TABLE, documents

_BADNESS = {"skipped": 0, "passed": 1, "warned": 2, "failed": 3}


@dataclass(frozen=True, slots=True)
class Side:
    """One rank: what it recorded, what the same rank of the baseline had, and what changed since then."""

    rank: int
    table: int | None
    """Of which rank its tables are asked for; None: the run's own."""
    document: Document
    now: Snapshot
    before: Snapshot | None
    changes: list[FindingChange]
    spreads: Spreads


def sides_of(run: StoredRun, now: Snapshot, spreads: Spreads, before: Snapshot | None) -> list[Side]:
    """Every rank of ``run`` that was recorded, its own first; ``spreads`` are of that one alone.

    ``now`` is the snapshot of the run, ``before`` that of the baseline.
    """
    own = run.document.run.rank
    found = [_side(own, None, run.document, msgspec.structs.replace(now, ranks=[]), before, spreads)]
    others = documents(run.table(TABLE)) if TABLE in run.table_names else {}
    for rank, document in others.items():
        if rank == own:  # a store may hold what no version of ours wrote
            continue
        part = msgspec.structs.replace(snapshot_of(document), run=now.run, ranks=[])
        found.append(_side(rank, rank, document, part, before, {}))
    return found


def _side(
    rank: int, table: int | None, document: Document, now: Snapshot, before: Snapshot | None, spreads: Spreads
) -> Side:
    was = before.of_rank(rank) if before else None
    changes = compare_findings(was.findings, now.findings) if was else []
    return Side(rank, table, document, now, was, changes, spreads)


def check_recorded(run: Head, baseline: Snapshot | None) -> list[Check]:
    """A warning where the run holds nothing of ranks that ``baseline`` recorded: what they lost would not be seen."""
    there = baseline.run.world_size if baseline else 0
    lost = [r for r in run.unrecorded if baseline and r < there and r not in baseline.run.unrecorded]
    if not lost:
        return []
    message = f"nothing was recorded of {named(lost)}, which the baseline holds: no limit is held there"
    return [Check(id="ranks", key="ranks", title="ranks of the baseline", status="warned", message=message)]


def worst(checks: Mapping[int, Check]) -> Check:
    """Of the rank that keeps a limit worst: broken before kept, then the one with most above what it may have."""
    return _chosen(checks, max(checks, key=lambda rank: (_BADNESS[checks[rank].status], _above(checks[rank]), -rank)))


def best(checks: Mapping[int, Check]) -> Check:
    """Of the rank on which a demanded kernel is live, where it is on one."""
    return _chosen(checks, max(checks, key=lambda rank: (checks[rank].status == "passed", _above(checks[rank]), -rank)))


def _above(check: Check) -> float:
    return (check.value or 0.0) - (check.limit or 0.0)


def _chosen(checks: Mapping[int, Check], rank: int) -> Check:
    """The check of ``rank``; its message says so where another rank's says something else."""
    check = checks[rank]
    if all(other.message == check.message for other in checks.values()):
        return check
    return msgspec.structs.replace(check, message=f"on rank {rank}: {check.message}")
