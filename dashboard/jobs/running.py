"""One job from its row to its end: a process of its own, watched for its time, its memory and a wish to cancel it."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from auditor.errors import AuditError
from auditor.report.format import duration, size
from auditor.store import Store, Unavailable
from auditor.store.jobs import JobRecord
from dashboard.jobs.commands import Work, environment, work_of
from dashboard.jobs.device_lock import device_lock
from dashboard.jobs.output import Output
from dashboard.jobs.place import Place
from dashboard.jobs.processes import Process, bury, end, held_bytes, of_job
from dashboard.jobs.results import outcome

POLL_S = 0.2
BEAT_S = 1.0
GRACE_S = 8.0
"""For the work to end by itself and to tidy up."""
_RETRY_S = 0.5
_MOST_RETRY_S = 10.0
_log = logging.getLogger("fusion_audit.worker")


@dataclass(frozen=True)
class Caps:
    """Wall time and resident memory of one job, all of its processes together."""

    time_s: float = 7200.0
    memory_bytes: int = 0
    """0: four fifths of the machine's."""

    @property
    def memory_limit(self) -> int:
        return self.memory_bytes or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 4 // 5


class Runner:
    """Runs jobs of ``store``, one at a time, as ``worker`` (:func:`dashboard.jobs.workers.worker_name`)."""

    def __init__(self, store: Store, place: Place, worker: str, caps: Caps) -> None:
        self._store, self._place, self._worker, self._caps = store, place, worker, caps
        self.stopping = threading.Event()
        """Set when the service stops: the job at hand is put back."""
        self.current = ""
        """The job at hand, from before it is taken until its row says how it ended."""

    def __call__(self, job: str) -> None:
        """Do the job if it still waits. What goes wrong becomes its reason."""
        if self.stopping.is_set():
            return
        self.current = job
        try:
            if self._store.jobs.claim(job, self._worker):
                self._do(job)
        finally:
            self.current = ""

    def _do(self, job: str) -> None:
        try:
            self._run(self._store.jobs.get(job))
        except AuditError as error:
            self._end(job, "failed", str(error))
        except Exception as error:
            self._end(job, "failed", f"the worker failed: {type(error).__name__}: {error}")
            raise

    def _run(self, job: JobRecord) -> None:
        with ExitStack() as held:
            if job.kind != "import" and not self._wait_for_device(job, held):
                return
            self._place.job(job.id)
            self._place.result(job.id).unlink(missing_ok=True)
            work = work_of(job, self._store, self._place, self._caps.time_s / 2)
            reason = _Attempt(self, job, work).run()
            if reason not in (_STOPPED, _TAKEN):
                self._conclude(job, reason)

    def _wait_for_device(self, job: JobRecord, held: ExitStack) -> bool:
        while not held.enter_context(device_lock()):
            held.pop_all().close()
            self._beat(job.id, "waiting for another measurement on this machine to end", 0)
            if self._unwanted(job.id):
                return False
            self.stopping.wait(POLL_S * 2)
        return not self._unwanted(job.id)

    def _unwanted(self, job: str) -> bool:
        """Whether the job was cancelled or the service stops; its row then says so."""
        if self.stopping.is_set():
            self._put_back(job)
            return True
        if self._is_cancelling(job):
            self._end(job, "cancelled", "cancelled before the script ran")
            return True
        return False

    def _conclude(self, job: JobRecord, reason: str) -> None:
        state, why, run = outcome(job, self._place, reason)
        self._end(job.id, state, why, run)

    def _beat(self, job: str, said: str, session: int) -> bool:
        """Whether the job is still ours, as far as the store can tell now."""
        try:
            return self._store.jobs.beat(job, self._worker, said, session)
        except Unavailable as error:  # the next beat may be heard
            _log.warning("job %s: %s", job, error)
            return True

    def _is_cancelling(self, job: str) -> bool:
        try:
            return self._store.jobs.get(job).cancelling
        except Unavailable as error:
            _log.warning("job %s: %s", job, error)
            return False

    def _end(self, job: str, state: str, reason: str, result_run: str = "") -> None:
        self._insist(lambda: self._store.jobs.end(job, self._worker, state, reason, result_run))

    def _put_back(self, job: str) -> None:
        self._insist(lambda: self._store.jobs.put_back(job, self._worker, _AGAIN))

    def _insist(self, write: Callable[[], object]) -> None:
        """Write how a job ended, however long the store refuses: there is no other work to be had without it.

        Where the service stops meanwhile one last try is made; whoever comes next finds the job without a worker.
        """
        wait_s = _RETRY_S
        while True:
            last = self.stopping.is_set()
            try:
                write()
                return
            except Unavailable as error:
                _log.warning("how a job ended could not be written: %s", error)
                if last:
                    return
            self.stopping.wait(wait_s)
            wait_s = min(wait_s * 2, _MOST_RETRY_S)


_STOPPED = "the service was stopped"
_TAKEN = "the job is no longer this worker's"
_CANCELLED = "cancelled"
_AGAIN = "the service was stopped; it begins again when that is back"


class _Attempt:
    """One process group at work."""

    def __init__(self, runner: Runner, job: JobRecord, work: Work) -> None:
        self._runner, self._job, self._work = runner, job, work
        self._began_s = time.monotonic()
        self._beaten_s = 0.0

    def run(self) -> str:
        """Why it was ended or failed; "" where it ended well; the reason of a stop where it was put back."""
        runner, store, place = self._runner, self._runner._store, self._runner._place
        process = subprocess.Popen(
            self._work.command(), cwd=self._work.folder, env=environment(store, self._job.id), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        output = Output(process.stdout, place.log(self._job.id))
        output.start()
        try:
            reason = self._watch(process, output)
        finally:
            self._end_all(process)
            output.join(GRACE_S)
        runner._beat(self._job.id, output.said, process.pid)
        if reason == _STOPPED:
            runner._put_back(self._job.id)
        return reason or _failure(process.returncode, output)

    def _watch(self, process: subprocess.Popen[bytes], output: Output) -> str:
        while True:
            try:
                process.wait(POLL_S)
                return ""
            except subprocess.TimeoutExpired:
                reason = self._over_the_caps() or self._asked_to_end(process, output)
            if reason:
                return reason

    def _over_the_caps(self) -> str:
        caps = self._runner._caps
        if time.monotonic() - self._began_s > caps.time_s:
            cap = duration(caps.time_s * 1e6)
            return f"it ran longer than {cap}, the cap of a job; start the service with a longer --job-time"
        held = held_bytes(of_job(os.getpid()), caps.memory_limit)
        if held > caps.memory_limit:
            cap = size(caps.memory_limit)
            return f"it held {size(held)}, more than {cap}, the cap of a job; start the service with more --job-memory"
        return ""

    def _asked_to_end(self, process: subprocess.Popen[bytes], output: Output) -> str:
        if self._runner.stopping.is_set():
            return _STOPPED
        if time.monotonic() - self._beaten_s < BEAT_S:
            return ""
        self._beaten_s = time.monotonic()
        if not self._runner._beat(self._job.id, output.said, process.pid):
            return _TAKEN
        return _CANCELLED if self._runner._is_cancelling(self._job.id) else ""

    def _end_all(self, process: subprocess.Popen[bytes]) -> None:
        known: set[int] = set()

        def left() -> list[Process]:
            process.poll()
            bury(known)
            found = of_job(os.getpid())
            known.update(one.pid for one in found if one.pid != process.pid)
            return found

        end(left, GRACE_S)
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
        bury(known)


def _failure(code: int | None, output: Output) -> str:
    if code == 0:
        return ""
    if code is None:
        return "its process hangs and can't be ended; see its log"
    if output.error:
        return output.error
    if code < 0:
        number = -code
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"it was killed by {name}{' (out of memory?)' if number == signal.SIGKILL else ''}; see its log"
    return f"it ended with exit code {code}; see its log"
