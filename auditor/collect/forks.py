"""What a recorder owes to the processes that are forked from its own, and to the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Protocol

_watching: list[weakref.ref[Forking]] = []


class Forking(Protocol):
    """Who must know of forks."""

    def before_fork(self) -> None:
        """Called right before a fork."""

    def abandon(self) -> None:
        """Called in the new process: it is not the one that records."""


def watch(owner: Forking) -> None:
    """Tell ``owner``, the last one to ask, of every fork."""
    if not _watching and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before, after_in_child=_after)
    _watching[:] = [weakref.ref(owner)]


def _before() -> None:
    owner = _watching[0]()
    if owner is not None:
        owner.before_fork()


def _after() -> None:
    owner = _watching[0]()
    if owner is not None:
        owner.abandon()


def temporary_folder(owner: object) -> Path:
    """A folder that is there as long as ``owner`` is, in this process."""
    folder = tempfile.mkdtemp(prefix="fusion-audit-")
    weakref.finalize(owner, _remove_folder, folder, os.getpid())
    return Path(folder)


def _remove_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
