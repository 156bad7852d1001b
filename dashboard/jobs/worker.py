"""The worker: ``python -m dashboard.jobs.worker``. It takes jobs of this machine from the queue, one at a time.

It stops on SIGTERM or SIGINT, and when its parent is gone: then after the job at hand, which nobody else could end.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from types import FrameType

from huey.api import Huey
from huey.consumer import Consumer

from auditor.store import Store
from auditor.store.machine import machine_id
from dashboard.jobs.place import Place
from dashboard.jobs.processes import adopt_orphans
from dashboard.jobs.running import GRACE_S, Caps, Runner
from dashboard.jobs.waking import open_queue, waker
from dashboard.jobs.workers import fail_abandoned, fail_lost, worker_name

LOOK_S = 2.0
"""How often rows are looked at: a message may be lost with whoever was to send or to take it."""
_log = logging.getLogger("fusion_audit.worker")


class _Consumer(Consumer):  # type: ignore[misc]
    """Huey's, but for the signals: those are ours."""

    def _set_signal_handlers(self) -> None:
        return None


class Worker:
    """One worker of ``store``, started by the process ``parent``."""

    def __init__(self, store: Store, caps: Caps, parent: int) -> None:
        self._store = store
        self._parent = parent
        self._runner = Runner(store, Place.beside(store.location), worker_name(), caps)
        self._queue: Huey = open_queue(store.location, Place.beside(store.location), machine_id())
        self._wake = waker(self._queue, self._runner)
        self._consumer = _Consumer(self._queue, workers=1, periodic=False, max_delay=0.5)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        adopt_orphans()
        fail_abandoned(self._store)
        threading.Thread(target=self._look_at_rows, name="rows", daemon=True).start()
        self._consumer.run()
        for _worker, thread in self._consumer.worker_threads:
            thread.join(GRACE_S * 2 if self._runner.stopping.is_set() else None)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._runner.stopping.set()
        self._consumer.stop_flag.set()

    def _look_at_rows(self) -> None:
        sent: dict[str, float] = {}
        while not self._consumer.stop_flag.is_set():
            if os.getppid() != self._parent:
                self._consumer.stop_flag.set()
                return
            try:
                fail_abandoned(self._store)
                fail_lost(self._store, worker_name(), lambda: self._runner.current)
                self._send_again(sent)
            except Exception:
                _log.exception("the rows of jobs could not be read")
            time.sleep(LOOK_S)

    def _send_again(self, sent: dict[str, float]) -> None:
        """Messages for rows that wait while the queue is empty: theirs got lost."""
        waiting = self._store.jobs.find(state="queued", machine=machine_id(), limit=1000)
        if waiting and not self._queue.pending_count():
            for job in reversed(waiting):
                if time.monotonic() - sent.get(job.id, -60.0) > 30.0:
                    sent[job.id] = time.monotonic()
                    self._wake(job.id)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dashboard.jobs.worker")
    parser.add_argument("--parent", type=int, default=os.getppid())
    parser.add_argument("--job-time-s", type=float, default=Caps.time_s)
    parser.add_argument("--job-memory-bytes", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="fusion-audit worker: %(message)s")
    with Store.open() as store:  # its place is in the environment: a URL may hold a password
        Worker(store, Caps(args.job_time_s, args.job_memory_bytes), args.parent).run()


if __name__ == "__main__":
    main()
