"""Which rank this process is, from the environment that `torchrun` gives to it.

Variables: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from auditor.errors import AuditError

_JOB = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
"""What tells jobs apart: the id alone does not, it is ``none`` unless somebody gave one."""
_LOOPBACK = ("localhost", "127.", "::1", "[::1]", "0:0:0:0:0:0:0:1", "ip6-localhost", "ip6-loopback")
MOST_RANKS = 1_000_000
"""Far more than any job has; what is larger is a mistake, or meant to take our memory."""


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
        row = range(max(first, 0), min(first + self.local_size, self.size))
        return [rank for rank in row if rank != self.rank]


def world(environ: Mapping[str, str] | None = None) -> World | None:
    """The rank that this process is; ``None`` where it is alone, or was started by nothing that says so.

    Raises:
        AuditError: the rank is none of its world, or that is larger than any.
    """
    environ = os.environ if environ is None else environ
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if rank is None or size is None or size <= 1 or not any(environ.get(name) for name in _JOB[:2]):
        return None
    if not 0 <= rank < size:
        raise AuditError(
            f"RANK={rank} is none of WORLD_SIZE={size}; start the ranks with torchrun, or unset both to run alone"
        )
    if size > MOST_RANKS:
        raise AuditError(f"WORLD_SIZE={size} is more than the {MOST_RANKS:,} ranks that a job can have; correct it")
    local, local_size = _number(environ, "LOCAL_RANK"), _number(environ, "LOCAL_WORLD_SIZE") or size
    facts = [*(environ.get(name, "") for name in _JOB), environ.get("TORCHELASTIC_RESTART_COUNT", "0"), str(size)]
    facts += _machine(environ, alone=local_size >= size)
    return World(
        rank=rank,
        size=size,
        local_rank=-1 if local is None else local,
        local_size=local_size,
        job=hashlib.sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:16],
    )


def _machine(environ: Mapping[str, str], *, alone: bool) -> list[str]:
    """What tells a job from one of the same address on another machine, in another container, or before it.

    Only what all ranks of a job have in common: of those that meet by a loopback address the machine with its network,
    and where one agent started them all (``alone``) the folder that this agent made for their logs.
    """
    address = environ.get("MASTER_ADDR", "").lower()
    told = []
    if address.startswith(_LOOPBACK):
        told.append(socket.gethostname())
        with suppress(OSError):
            told.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        with suppress(OSError):
            told.append(os.readlink("/proc/self/ns/net"))
    log = environ.get("TORCHELASTIC_ERROR_FILE", "")  # <logs>/<id>_<random>/attempt_<n>/<local rank>/error.json
    if alone and log:
        told.append(str(Path(log).parent.parent))
    return told


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        return None
    if len(text) > 18:
        raise AuditError(f"{name} is a number of {len(text)} digits; start the ranks with torchrun, or unset it")
    return int(text)
