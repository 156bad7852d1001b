"""Which process of a distributed training speaks for all of them."""

from __future__ import annotations

import os
import sys
from typing import Any


def reports() -> bool:
    """Whether this process records, stores and reports: rank 0, or the only one there is.

    All integrations ask here, once, when they are about to begin. Whoever lets every rank record a part of one run
    answers True in each of them, and gathers the parts where :func:`auditor.integrations.after.finish` stores one.
    """
    return _rank() == 0


def _rank() -> int:
    """Of the process group where there is one, else what ``torchrun`` says."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0
