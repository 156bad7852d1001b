"""Processes of this machine, from ``/proc``: who lives, who belongs to a job, how much memory they hold."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POLL_S = 0.05


@dataclass(frozen=True)
class Process:
    """One line of ``/proc/<pid>/stat``. ``started`` is in clock ticks since the machine's start."""

    pid: int
    state: str
    parent: int
    session: int
    started: int
    resident_bytes: int


def process(pid: int) -> Process | None:
    """The process of that number; None where it has ended, a zombie included."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything
    state, parent, session = fields[0], int(fields[1]), int(fields[3])
    if state in "ZX":
        return None
    return Process(pid, state, parent, session, int(fields[19]), int(fields[21]) * _PAGE_BYTES)


def all_processes() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        found = process(int(entry)) if entry.isdigit() else None
        if found:
            yield found


def of_session(session: int) -> list[Process]:
    """The processes of a session: a job's own process is the leader of one."""
    return [found for found in all_processes() if found.session == session] if session > 1 else []


def of_job(session: int, worker: int) -> list[Process]:
    """Of the session, and whatever else came from ``worker``: a child can leave its session, but not its ancestors."""
    known = list(all_processes())
    ours = {worker}
    grown = True
    while grown:
        more = {found.pid for found in known if found.parent in ours} - ours
        grown = bool(more)
        ours |= more
    return [found for found in known if found.pid != worker and (found.session == session or found.pid in ours)]


def name_of(pid: int) -> str:
    """``pid:start``: a number can come again, with its time of start it can't. "" where the process has ended."""
    found = process(pid)
    return f"{pid}:{found.started}" if found else ""


def is_alive(name: str) -> bool:
    """Whether the process that :func:`name_of` named still runs."""
    pid = name.partition(":")[0]
    return pid.isdigit() and name_of(int(pid)) == name


def end(find: Callable[[], list[Process]], grace_s: float) -> None:
    """Ask every process that ``find`` finds to end, and kill what is left after ``grace_s`` seconds."""
    _send(find(), signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s and find():
        time.sleep(_POLL_S)
    while left := find():
        _send(left, signal.SIGKILL)
        time.sleep(_POLL_S)


def adopt_orphans() -> None:
    """Let processes whose parent ended become children of this one, so that none gets out of sight."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def end_with_parent(parent: int) -> None:
    """Get SIGTERM when ``parent``, our parent, ends without a word."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGTERM)


def bury(known: Iterable[int]) -> None:
    """Take the exit codes of adopted children that have ended, or they stay as zombies."""
    for pid in known:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _send(processes: Iterable[Process], number: int) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, number)
