"""Joining the audits of a job's ranks, for the command line and for scripts that record themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path

from auditor.audit import Audit
from auditor.graph.tables import from_tables
from auditor.ranks.join import joined, leader
from auditor.ranks.meeting import WAIT_S, Meeting
from auditor.ranks.part import Part, Process
from auditor.ranks.world import World, world
from auditor.store.location import locate

_numbers = count(1)  # 0 is the meeting of `fusion-audit run`, under which such a script may run, too
"""The ranks of a job call :func:`join_ranks` equally often: the n-th call of one belongs to the n-th of the others."""


def join_ranks(
    audit: Audit | None, *, wait_s: float = WAIT_S, db: str | Path | None = None, failure: str = ""
) -> Audit | None:
    """One audit out of those of all ranks that `torchrun` started; every rank has to call it, equally often.

    On rank 0 it gives the audit of rank 0 (of the lowest rank that has one) with what the others recorded in
    ``document.ranks``, which ``store.save(audit.document, audit.tables())`` keeps whole. On the others it hands
    ``audit`` in and gives None at once. A process that is no rank of several gets ``audit`` back.

    Args:
        audit: of this rank; None where it has none, which the others then need not wait for.
        wait_s: seconds that rank 0 waits for the ranks of its machine, and they for rank 0. Ranks of other machines
            that are not seen within 20 s share no folder with it, and are named as missing.
        db: the store beside which the ranks meet, as ``--db``; the project's own if none is given.
        failure: why there is no audit.

    Raises:
        AuditError: the folder where they meet can't be written, or no rank has an audit.
    """
    here = world()
    if here is None:
        return audit
    meeting = Meeting(here, locate(db), next(_numbers))
    meeting.arrive()
    part = part_of(audit, here, failure=failure or ("" if audit else "it has no audit"))
    if here.rank:
        meeting.hand_in(part, wait_s)
        return None
    try:
        parts = meeting.collect(wait_s, late=True)
        return join(audit, part, parts, meeting.missing, here.size)
    finally:
        meeting.close()


def part_of(audit: Audit | None, here: World, *, exit_code: int = 0, failure: str = "") -> Part:
    """What this process has to give."""
    return Part(
        rank=here.rank, local_rank=here.local_rank, process=Process.this(), exit_code=exit_code, failure=failure,
        at_s=time.time(), document=audit.document if audit else None,
        tables=audit.tables() if audit and here.rank else {},
    )  # fmt: skip


def join(
    audit: Audit | None, part: Part, parts: Mapping[int, Part], missing: Mapping[int, str], size: int
) -> Audit | None:
    """The audit of all ranks; None where none of them has one.

    Args:
        audit: of this rank, whose ``part`` lacks the tables.
        part: this rank's.
        parts: of the others.
        missing: why some gave none.
        size: of the world.
    """
    every = {part.rank: part, **parts}
    lead = leader(every)
    if lead is None:
        return None
    others = {
        rank: (each.document, each.tables)
        for rank, each in sorted(every.items())
        if rank != lead and each.document is not None
    }
    graph = audit.graph if audit is not None and lead == part.rank else from_tables(every[lead].tables)
    return Audit(joined(every, missing, size), graph, others)
