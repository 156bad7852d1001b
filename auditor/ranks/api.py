"""Joining the audits of a job's ranks, for scripts that record themselves."""

from __future__ import annotations

from pathlib import Path

from auditor.audit import Audit
from auditor.ranks.joining import Joining
from auditor.ranks.meeting import WAIT_S
from auditor.ranks.world import world


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
    joining = Joining(here, db)
    joining.arrive()
    joining.hand_in(audit, failure=failure, wait_s=wait_s)
    return None if here.rank else joining.joined(wait_s, late=True)
