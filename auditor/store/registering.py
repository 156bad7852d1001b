"""A script that the command line runs is registered: this machine may run it again, with the same arguments."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.store.machine import machine_id
from auditor.store.registrations import Registration

if TYPE_CHECKING:
    from auditor.store.store import Store


MOST_BYTES = 64_000_000


def register(store: Store, run: str, script: str | Path, args: list[str], sha256: str) -> None:
    """Let ``run`` be run again on this machine: ``script`` as typed, from the current folder.

    ``sha256`` is :func:`digest` of the script from before it ran; without one (it came through a pipe) it can't be.
    """
    if not sha256:
        return
    path = Path(script).absolute()
    store.registrations.put(
        Registration(
            run=run, machine=machine_id(), folder=str(Path.cwd()), script=str(path), typed=str(script),
            args=list(args), sha256=sha256,
        )
    )  # fmt: skip


def why_not(store: Store, run: str) -> str:
    """Why this machine may not run the script of ``run`` again, in one sentence; "" where it may."""
    summary = store.summary(run)
    registration = registered(store, run)
    if summary.source != "profile":
        return f"Run {run} is no run of a script: there is nothing to run again."
    if registration is None:
        return (
            f"Run {run} was not recorded on this machine from the command line, so it can't be run again from here; "
            f"in the folder of the script call: fusion-audit fix {run}"
        )
    if registration.run == run and _text(summary.script) != _text([registration.typed, *registration.args]):
        return f"Run {run} is not of the script that was registered for it here; record it again: fusion-audit run"
    return _changed(registration)


def recorded_here(store: Store, run: str) -> bool:
    """Whether this machine recorded that very run: what its document says of files is then our own word.

    The run that a document says it was patched from counts for nothing here: anybody may write that.
    """
    return store.registrations.get(run, machine_id()) is not None


def registered(store: Store, run: str) -> Registration | None:
    """The registration of a run here; that of the run that was fixed for an audit after a fix."""
    fixed = store.summary(run).patched_from
    return store.registrations.get(fixed or run, machine_id())


def digest(path: str | Path) -> str:
    """SHA-256 of a script; "" where it can't be read, is larger than any script, or no file that stays (a pipe)."""
    try:
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
                return ""
            return hashlib.sha256(file.read(MOST_BYTES)).hexdigest()
    except OSError:
        return ""


def _text(script: list[str]) -> list[str]:
    """A name that is not UTF-8 may be stored as escapes in one place and as ``?`` in the other."""
    return [part.encode("utf-8", "replace").decode() for part in script]


def _changed(registration: Registration) -> str:
    found = digest(Path(registration.script))
    if not found or not Path(registration.folder).is_dir():
        gone = registration.folder if found else registration.script
        return f"{gone} is not there any more; run the script from the command line again: fusion-audit run"
    if found != registration.sha256:
        again = shlex.join([registration.typed, *registration.args])
        return f"{registration.script} has changed since it was run; run it again: fusion-audit run {again}"
    return ""
