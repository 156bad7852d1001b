"""``fusion-audit run`` as one rank of a job: rank 0 joins the parts of all, stores the run and reports it."""

from __future__ import annotations

import argparse
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from auditor.cli.output import Progress, emit, remark
from auditor.cli.run import Ready, audited, prepare, recorded
from auditor.errors import AuditError
from auditor.ranks.world import World

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.ranks.meeting import Meeting
    from auditor.ranks.part import Part
    from auditor.store import Store

_GRACE_S = 10.0
"""For a script to end by itself once another rank failed: its next collective fails, or waits for ever."""
_ASK_EVERY_S = 1.0
_FIRST_S = 5.0
"""For the ranks that failed to end before rank 0: whoever started them blames the first to do so."""


def run_rank(args: argparse.Namespace, here: World, *, quiet: bool) -> int:
    """Record this rank's script; hand its part to rank 0, or be it. Returns the script's exit code."""
    ready = prepare(args)

    from auditor.ranks.meeting import Meeting
    from auditor.store import Store
    from auditor.store.location import locate

    if here.rank:
        meeting = Meeting(here, locate(args.db))
        meeting.arrive()
        return _hand_in(meeting, args, ready, quiet=quiet)
    with Store.open(args.db) as store:
        meeting = Meeting(here, store.location)
        meeting.arrive()
        try:
            return _lead(meeting, args, ready, store, quiet=quiet)
        finally:
            meeting.close()


def _hand_in(meeting: Meeting, args: argparse.Namespace, ready: Ready, *, quiet: bool) -> int:
    with _asked_to_end():
        _, part, _ = _part(meeting, args, ready, quiet=quiet)
        if part.failure:
            remark(f"rank {part.rank}: {part.failure}")
        if not meeting.hand_in(part):
            remark(f"rank {part.rank}: rank 0 is not there to take this rank's part of the run; it is left out")
        elif part.exit_code:
            meeting.wait_until_closed(args.rank_wait)
    return part.exit_code


def _lead(meeting: Meeting, args: argparse.Namespace, ready: Ready, store: Store, *, quiet: bool) -> int:
    from auditor.ranks.whole import join
    from auditor.stored import save

    with _asked_to_end() as asked:
        audit, part, failure = _part(meeting, args, ready, quiet=quiet)
        parts = meeting.collect(args.rank_wait, on_progress=Progress(), asked_to_end=asked)
        whole = join(audit, part, parts, meeting.missing, meeting.world.size)
        if whole is None:
            raise failure or AuditError("no rank recorded a step")
        run = save(store, whole, ready.origin)
        meeting.close()
    if failure is not None:
        remark(f"rank 0: {failure}")
    emit(whole.document, whole.graph, args.format, args.output)
    remark(f"stored as {run}")
    _let_end([other for other in parts.values() if other.exit_code])
    return part.exit_code


def _part(
    meeting: Meeting, args: argparse.Namespace, ready: Ready, *, quiet: bool
) -> tuple[Audit | None, Part, AuditError | None]:
    """What this rank has to give, and why its script or its audit failed before there was anything."""
    from auditor.ranks.whole import part_of

    progress: Callable[[str], None] = Progress() if meeting.world.rank == 0 else _say_nothing
    try:
        with tempfile.TemporaryDirectory(prefix="fusion-audit-") as folder:
            recording = recorded(
                args, ready, Path(folder), quiet=quiet, on_progress=progress, ended_by=_OthersFailed(meeting),
                keep_on_signal=True,
            )  # fmt: skip
            progress("reading what was recorded")
            audit = audited(args, ready, Path(folder), recording, progress)
    except AuditError as error:
        return None, part_of(None, meeting.world, exit_code=error.exit_code, failure=str(error)), error
    code = recording.exit_code
    asked = code == 128 + signal.SIGTERM  # as all are asked once one has failed
    failure = recording.error or f"the script ended with code {code}" if code and not asked else ""
    return audit, part_of(audit, meeting.world, exit_code=code, failure=failure), None


class _OthersFailed:
    """Says why the script has to end: another rank failed, a while ago."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._asked_s = self._since_s = 0.0

    def __call__(self) -> str:
        now_s = time.monotonic()
        if now_s - self._asked_s < _ASK_EVERY_S:
            return ""
        self._asked_s = now_s
        reason = self._meeting.failed()
        if not reason:
            return ""
        self._since_s = self._since_s or now_s
        return reason if now_s - self._since_s > _GRACE_S else ""


@contextmanager
def _asked_to_end() -> Iterator[Callable[[], bool]]:
    """From when the script has ended on, SIGTERM and SIGHUP only hurry: what was recorded is stored first.

    While the script runs they are :func:`~auditor.collect.launch.record_script`'s. When one rank fails `torchrun` ends
    the others, with SIGTERM and half a minute later with SIGKILL.
    """
    asked = threading.Event()

    def note(_number: int, _frame: FrameType | None) -> None:
        asked.set()

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    kept = {number: signal.getsignal(number) for number in numbers}
    for number, handler in kept.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, note)
    try:
        yield asked.is_set
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _let_end(failed: list[Part]) -> None:
    until_s = time.monotonic() + _FIRST_S
    while time.monotonic() < until_s and any(part.process.is_local() and not part.process.ended() for part in failed):
        time.sleep(0.05)


def _say_nothing(_sentence: str) -> None:
    """Rank 0 speaks for all."""
