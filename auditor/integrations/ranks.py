"""Which processes of a distributed training record, and how what they recorded becomes one audit.

Under `torchrun` every rank records its part, and rank 0 joins, stores and reports them. Where nothing tells the ranks
of each other (`torch.multiprocessing.spawn`) rank 0 alone records, and its audit is of one process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from auditor.ranks.world import world

if TYPE_CHECKING:
    from auditor.ranks.joining import Joining

WAIT_S = 60.0
"""How long rank 0 waits for the others, once and where none of them waits for it."""
TAKES_S = 5.0
"""How long a rank waits for rank 0 to be there, which it is unless it has no handler."""


def records() -> bool:
    """Whether this process records: a rank that `torchrun` started, rank 0 of others, or the only process there is.

    All integrations ask here, once, when they are about to begin.

    Raises:
        AuditError: the environment names a rank that its world has not.
    """
    return world() is not None or _rank() == 0


def _rank() -> int:
    """Of the process group where there is one, else what the environment says."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0


def joining(db: str | Path | None) -> Joining | None:
    """The next join of the ranks, for this one; None where it records alone. Every rank has to ask equally often."""
    here = world()
    if here is None:
        return None
    from auditor.ranks.joining import Joining

    return Joining(here, db)
