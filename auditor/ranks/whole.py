"""What a rank has to give, and the audit that the parts of all make together."""

from __future__ import annotations

import time
from collections.abc import Mapping

from auditor.audit import Audit
from auditor.graph.tables import from_tables
from auditor.ranks.join import joined, leader
from auditor.ranks.part import Part, Process
from auditor.ranks.world import World


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
