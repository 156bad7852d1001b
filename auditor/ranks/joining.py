"""One join of a job's ranks, in pieces, for whoever may not wait: ranks of a training need each other at each step."""

from __future__ import annotations

import os
import weakref
from itertools import count
from pathlib import Path

from auditor.audit import Audit
from auditor.ranks.meeting import WAIT_S, Meeting
from auditor.ranks.part import Part
from auditor.ranks.whole import join, part_of
from auditor.ranks.world import World
from auditor.store.location import locate

_numbers = count(1)
"""The n-th join of one rank belongs to the n-th of the others; 0 is that of ``fusion-audit run`` around the script."""


class Joining:
    """Every rank of a job makes it, equally often, then arrives and hands in its part; rank 0 joins the parts."""

    def __init__(self, here: World, db: str | Path | None = None) -> None:
        self.here = here
        self._meeting = Meeting(here, locate(db), next(_numbers))
        self._audit: Audit | None = None
        self._part: Part | None = None

    def arrive(self) -> None:
        """Be seen by the others, so that rank 0 waits for this one; those that are not there soon are not coming.

        Raises:
            AuditError: the folder where they meet can't be written.
        """
        self._meeting.arrive()
        if not self.here.rank:
            self._meeting.all_there()  # looks from here on
            weakref.finalize(self, _close, self._meeting, os.getpid())

    def hand_in(self, audit: Audit | None, *, failure: str = "", wait_s: float = 0.0) -> bool:
        """Give this rank's audit, or say why there is none; ``wait_s``: how long rank 0 may take to arrive.

        False where rank 0 is not there to take it.

        Raises:
            AuditError: the part can't be written.
        """
        self._part = part_of(audit, self.here, failure=failure or ("" if audit else "it has no audit"))
        if self.here.rank:
            return self._meeting.hand_in(self._part, wait_s)
        self._audit = audit
        return True

    def all_there(self) -> bool:
        """On rank 0: whether :meth:`joined` would not wait."""
        return self._meeting.all_there()

    def joined(self, wait_s: float = WAIT_S, *, late: bool = False) -> Audit | None:
        """On rank 0: the audit of all ranks, once each has handed in its part or is known not to; None without any.

        ``late``: ranks of this machine may arrive only now, so that they are waited for unseen.
        """
        assert self._part is not None, "rank 0 hands in its part first"
        try:
            parts = self._meeting.collect(wait_s, late=late)
            return join(self._audit, self._part, parts, self._meeting.missing, self.here.size)
        finally:
            self.close()

    def close(self) -> None:
        """On rank 0: no part is taken any more."""
        if not self.here.rank:
            self._meeting.close()


def _close(meeting: Meeting, pid: int) -> None:
    """At the end of the process, where nobody did; not at that of a fork."""
    if os.getpid() == pid:
        meeting.close()
