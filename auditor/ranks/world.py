"""Which rank this process is, from the environment that `torchrun` gives to it.

Variables: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from auditor.errors import AuditError

_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
"""What tells jobs apart: the id alone does not, it is ``none`` unless somebody gave one."""


@dataclass(frozen=True, slots=True)
class World:
    """One rank of ``size``. ``job`` is the same in all of them, and of no other job or restart of it."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str

    def others(self) -> list[int]:
        """Every rank but this one."""
        return [rank for rank in range(self.size) if rank != self.rank]

    def neighbours(self) -> list[int]:
        """The other ranks of this machine: `torchrun` gives each machine a row of them."""
        if self.local_rank < 0:
            return self.others()
        first = self.rank - self.local_rank
        return [rank for rank in self.others() if first <= rank < first + self.local_size]


def world(environ: Mapping[str, str] | None = None) -> World | None:
    """The rank that this process is; ``None`` where it is alone, or was started by nothing that says so.

    Raises:
        AuditError: the rank is none of its world.
    """
    environ = os.environ if environ is None else environ
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or size is None or size <= 1 or not any(environ.get(name) for name in _JOB[:2]):
        return None
    if not 0 <= rank < size:
        raise AuditError(
            f"RANK={rank} is none of WORLD_SIZE={size}; start the ranks with torchrun, or unset both to run alone"
        )
    facts = [*(environ.get(name, "") for name in _JOB), environ.get("TORCHELASTIC_RESTART_COUNT", "0"), str(size)]
    local = _number(environ, "LOCAL_RANK")
    return World(
        rank=rank,
        size=size,
        local_rank=-1 if local is None else local,
        local_size=_number(environ, "LOCAL_WORLD_SIZE") or size,
        job=hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16],
    )


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
