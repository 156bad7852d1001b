"""Where the ranks of one job meet: a folder beside the store, there as long as the job.

=====================  =====================================================================================
``job.json``           made by rank 0 when it starts: a mark that no other job has, and which process that is
``rank-<n>.json``      made by each other rank when it starts: which process that is
``failed-<n>``         why rank n failed, as soon as that is known
``part-<n>.json`` …    the part of rank n, with the mark of the job, and its tables
=====================  =====================================================================================

A job that was killed leaves its folder behind; one that happens to have the same name later neither reads nor waits for
what is in it, since the mark and the processes differ. Two jobs of one name at a time are refused where that can be
seen. Ranks that share no files with rank 0 are never seen there.
"""

from __future__ import annotations

import math
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from auditor.errors import AuditError
from auditor.ranks.part import Part, Process, read_part, replace_file, write_part
from auditor.ranks.world import World
from auditor.report.ranks import named
from auditor.store.location import Location, ranks_folder

WAIT_S = 300.0
"""How long rank 0 waits for ranks that are at work, and they for it."""
ARRIVAL_S = 20.0
"""How long for a rank of which nothing was seen: all of them start at the same time, and rank 0 has run its script."""
_LAST_S = 3.0
"""How long still, once the process is asked to end: the others are asked at the same time."""
_POLL_S = 0.1
_OLD_S = 86_400.0
"""Folders of killed jobs go when they are older; no rank writes into one for a day without starting anew."""
_Kind = TypeVar("_Kind")


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """The mark of a job, and the process of its rank 0."""

    mark: str
    process: Process


def say_nothing(_sentence: str) -> None:
    """No progress is wanted."""


class Meeting:
    """One rank's view of the folder. ``missing`` are the ranks of which no part will come, and why."""

    def __init__(self, world: World, location: Location, number: int = 0) -> None:
        self.world = world
        self.folder = ranks_folder(location) / f"{world.job}-{number}"
        self.missing: dict[int, str] = {}
        self._parts: dict[int, Part] = {}
        self._mark = ""
        self._looks_since_s = 0.0
        self._looked_last_s = -math.inf
        self._before = ""
        """The mark of a job that was over when this rank arrived."""

    def arrive(self) -> None:
        """Be seen by the others; rank 0 opens the meeting."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._refuse_others()
            if self.world.rank:
                replace_file(self._presence(self.world.rank), msgspec.json.encode(Process.this()))
                return
            self._sweep()
            self._mark = secrets.token_hex(8)
            replace_file(self.folder / "job.json", msgspec.json.encode(Job(mark=self._mark, process=Process.this())))
        except OSError as error:
            raise AuditError(
                f"{error.filename or self.folder}: {error.strerror or error}; the ranks of a job meet beside the "
                "store: name another place with --db"
            ) from None

    def failed(self) -> str:
        """A sentence about the first rank that failed; empty while none did."""
        job = self._job()
        if job is None or job.process.ended():  # what it left says nothing of a job that starts anew
            return ""
        found = []
        for path in self.folder.glob("failed-*"):
            with suppress(OSError, ValueError, msgspec.MsgspecError):
                at_s, mark, sentence = msgspec.json.decode(path.read_bytes(), type=tuple[float, str, str])
                if mark == job.mark:
                    found.append((at_s, sentence))
        return min(found)[1] if found else ""

    # --- ranks but 0 -------------------------------------------------------------------------------

    def hand_in(self, part: Part, wait_s: float = ARRIVAL_S) -> bool:
        """Give ``part`` to rank 0. False where that is not there (any more): it ended, or shares no files with us."""
        job = self._job_within(wait_s)
        if job is None:
            self._leave()
            return False
        try:
            if part.failure:
                failed = msgspec.json.encode((part.at_s, job.mark, f"rank {part.rank}: {part.failure}"))
                replace_file(self.folder / f"failed-{part.rank}", failed)
            write_part(self.folder, part, job.mark)
        except OSError as error:
            if not self.folder.is_dir():  # rank 0 gave up waiting, and closed the meeting
                return False
            raise AuditError(f"{error.filename or self.folder}: {error.strerror or error}") from None
        self._mark = job.mark
        return True

    def wait_until_closed(self, wait_s: float = WAIT_S) -> None:
        """Wait until rank 0 has stored the run: when a rank ends in failure, `torchrun` ends all the others."""
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s:
            job = self._job()
            if job is None or job.mark != self._mark:
                return
            if job.process.ended():
                self._leave()
                return
            time.sleep(_POLL_S)

    def _job_within(self, wait_s: float) -> Job | None:
        until_s = time.monotonic() + wait_s
        while True:
            job = self._job()
            ended = job is not None and job.process.ended()
            if job is not None and not ended:
                return job
            over = job is not None and job.mark != self._before
            if over or not self.folder.is_dir() or time.monotonic() > until_s:
                return None
            time.sleep(_POLL_S)

    def _leave(self) -> None:
        """Go away from a job without rank 0; who is the last to do so takes the folder along."""
        with suppress(OSError):
            self._presence(self.world.rank).unlink(missing_ok=True)
            if _is_over(self.folder):
                shutil.rmtree(self.folder)
            else:
                self.folder.rmdir()  # only if it is empty
            self.folder.parent.rmdir()

    # --- rank 0 ------------------------------------------------------------------------------------

    def collect(
        self, wait_s: float = WAIT_S, *, late: bool = False,
        on_progress: Callable[[str], None] = say_nothing, asked_to_end: Callable[[], bool] = lambda: False,
    ) -> dict[int, Part]:  # fmt: skip
        """The parts of all other ranks that hand one in, in order. Sets :attr:`missing` for those that do not.

        A rank whose process is seen to have ended is not waited for. ``late``: those of this machine may arrive just
        now, so that they are waited for even where nothing was seen of them.
        """
        wait_s += self._looked_s()  # those that looked before have waited for nobody
        while waiting := self._look_around(wait_s, late=late):
            if asked_to_end():
                wait_s = min(wait_s, self._looked_s() + _LAST_S)
                asked_to_end = _no
            on_progress(f"waiting for {named(waiting)}")
            time.sleep(_POLL_S)
        return {rank: self._parts[rank] for rank in sorted(self._parts)}

    def all_there(self) -> bool:
        """Whether :meth:`collect` would not wait; it looks without waiting itself, and ten times a second at most."""
        now_s = time.monotonic()
        if now_s - self._looked_last_s < _POLL_S:
            return False
        self._looked_last_s = now_s
        return not self._look_around(math.inf)

    def _looked_s(self) -> float:
        """Seconds since the first look."""
        self._looks_since_s = self._looks_since_s or time.monotonic()
        return time.monotonic() - self._looks_since_s

    def _look_around(self, wait_s: float, *, late: bool = False) -> list[int]:
        """Look at every rank that is still to hand in a part, once; which ones are to do so afterwards."""
        waited_s = self._looked_s()
        for rank in self._expected():
            arrival_s = wait_s if late and rank in self.world.neighbours() else min(wait_s, ARRIVAL_S)
            self._look(rank, waited_s, wait_s, arrival_s)
        return self._expected()

    def _expected(self) -> list[int]:
        return [rank for rank in self.world.others() if rank not in self._parts and rank not in self.missing]

    def _look(self, rank: int, waited_s: float, wait_s: float, arrival_s: float) -> None:
        """Take the part of ``rank``, or find out why there will be none."""
        process = self._process(rank)
        ended = process is not None and process.ended()  # before the part is looked for: it may be its last deed
        try:
            part = read_part(self.folder, rank, self._mark)
        except AuditError as error:
            self.missing[rank] = str(error)
            return
        if part is not None:
            self._parts[rank] = part
        elif not self._is_mine():
            self.missing[rank] = f"another job of the same name took its place in {self.folder}"
        elif process is not None and ended:
            self.missing[rank] = f"its process ({process.pid} on {process.host}) ended before it handed in its part"
        elif process is None and waited_s > arrival_s:
            self.missing[rank] = (
                f"nothing of it was seen in {self.folder.parent} within {waited_s:.0f} s: it runs on a machine that "
                "does not share this folder, or nothing audits it there"
            )
        elif waited_s > wait_s:
            self.missing[rank] = f"it did not hand in its part within {waited_s:.0f} s"

    def close(self) -> None:
        """The run is stored: nobody need wait any more."""
        if self._is_mine():
            shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.folder.parent.rmdir()

    def _sweep(self) -> None:
        """Remove what killed jobs left, and of one that had this job's name everything but who is here."""
        for path in (*self.folder.glob("part-*"), *self.folder.glob("failed-*")):
            path.unlink(missing_ok=True)
        for rank in self.world.others():
            process = self._process(rank)
            if process is not None and process.ended():
                self._presence(rank).unlink(missing_ok=True)
        for path in self.folder.parent.iterdir():
            with suppress(OSError):
                if path != self.folder and (_is_over(path) or time.time() - path.stat().st_mtime > _OLD_S):
                    shutil.rmtree(path)

    def _refuse_others(self) -> None:
        """A job of this name that is at work: its ranks and ours would take each other's parts.

        Of a process on another machine nobody knows whether it runs, and a job that was killed may start there anew.
        """
        job, me = self._job(), Process.this()
        if job is not None and job.process.ended():
            self._before = job.mark
        leader = job.process if job is not None else None
        there = self._process(self.world.rank) if self.world.rank else leader
        if there is not None and there != me and there.is_local() and not there.ended():
            raise AuditError(
                f"process {there.pid} is rank {self.world.rank} of a job with this one's name (TORCHELASTIC_RUN_ID, "
                "MASTER_ADDR, MASTER_PORT); give this job an id of its own (torchrun --rdzv-id) or another --db"
            )

    def _is_mine(self) -> bool:
        job = self._job()
        return job is None or job.mark == self._mark

    # --- files -------------------------------------------------------------------------------------

    def _presence(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.json"

    def _process(self, rank: int) -> Process | None:
        return _read(self._presence(rank), Process)

    def _job(self) -> Job | None:
        return _read(self.folder / "job.json", Job)


def _is_over(folder: Path) -> bool:
    """Whether the job that met there is known to have no process any more."""
    job = _read(folder / "job.json", Job)
    if job is None or not job.process.ended():
        return False
    there = (_read(path, Process) for path in folder.glob("rank-*.json"))
    return all(process is None or process.ended() for process in there)


def _read(path: Path, kind: type[_Kind]) -> _Kind | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _no() -> bool:
    return False
