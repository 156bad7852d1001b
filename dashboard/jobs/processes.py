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
_KILL_S = 10.0
MARK = "FUSION_AUDIT_JOB"
"""The environment variable by which the processes of a job are known."""


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


def held_bytes(processes: Iterable[Process], enough: int) -> int:
    """What they hold in memory together, as far as it is more than ``enough``: then shared pages count once."""
    known = list(processes)
    held = sum(one.resident_bytes for one in known)
    return held if held <= enough else sum(map(_proportional_bytes, known))


def _proportional_bytes(one: Process) -> int:
    """Its own pages and its share of those it shares; what is resident where that is not told."""
    try:
        lines = Path(f"/proc/{one.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError, StopIteration):
        return one.resident_bytes


def marked(job: str) -> list[Process]:
    """What was started for a job and still lives, wherever it went: its number alone may be another's by now."""
    mark = f"{MARK}={job}".encode()
    return [found for found in all_processes() if found.pid != os.getpid() and mark in _environment(found.pid)]


def of_job(worker: int) -> list[Process]:
    """Whatever came from ``worker``: a child can leave its session, but not its ancestors."""
    known = list(all_processes())
    ours = {worker}
    grown = True
    while grown:
        more = {found.pid for found in known if found.parent in ours} - ours
        grown = bool(more)
        ours |= more
    return [found for found in known if found.pid != worker and found.pid in ours]


def name_of(pid: int) -> str:
    """``pid:start``: a number can come again, with its time of start it can't. "" where the process has ended."""
    found = process(pid)
    return f"{pid}:{found.started}" if found else ""


def is_alive(name: str) -> bool:
    """Whether the process that :func:`name_of` named still runs."""
    pid = name.partition(":")[0]
    return pid.isdigit() and name_of(int(pid)) == name


def end(find: Callable[[], list[Process]], grace_s: float) -> None:
    """Ask every process that ``find`` finds to end, and kill what is left after ``grace_s`` seconds.

    What can't be killed (it hangs in the kernel) is given up after :data:`_KILL_S`.
    """
    _send(find(), signal.SIGTERM)
    deadline_s = time.monotonic() + grace_s
    while time.monotonic() < deadline_s and find():
        time.sleep(_POLL_S)
    deadline_s = time.monotonic() + _KILL_S
    while (left := find()) and time.monotonic() < deadline_s:
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


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone
        return []


def _send(processes: Iterable[Process], number: int) -> None:
    for one in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(one.pid, number)
