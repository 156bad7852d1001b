"""The checks of one limit on every rank of a job, made one check that names its rank."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from auditor.gate_document import Check

_BADNESS = {"skipped": 0, "passed": 1, "warned": 2, "failed": 3}


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
