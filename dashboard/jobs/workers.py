"""Workers and the jobs that they hold: a job whose worker is gone has failed, and what it left running is ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from auditor.store import Store
from auditor.store.jobs import JobRecord
from auditor.store.machine import machine_id
from dashboard.jobs.processes import end, is_alive, marked, name_of

SILENT_S = 60.0
"""A worker of another machine that says nothing for so long is taken for gone."""
_GRACE_S = 3.0
KILLED = "the worker was killed; retry the job"
LOST = "the worker lost sight of it while the store could not be used; retry the job"


def worker_name() -> str:
    """The process that calls: its machine, number and time of start, so that no other is taken for it."""
    return f"{machine_id()}:{name_of(os.getpid())}"


def fail_abandoned(store: Store) -> list[str]:
    """Show every job whose worker is gone as failed. Returns their ids."""
    abandoned = [job for job in store.jobs.find(state="running", limit=1000) if _is_abandoned(job)]
    for job in abandoned:
        if job.worker.startswith(f"{machine_id()}:"):
            end(partial(marked, job.id), _GRACE_S)
        store.jobs.end(job.id, job.worker, "cancelled" if job.cancelling else "failed", KILLED)
    return [job.id for job in abandoned]


def fail_lost(store: Store, worker: str, current: Callable[[], str]) -> list[str]:
    """Show the jobs that ``worker`` holds and does not work on as failed. Returns their ids.

    The store may have refused between taking a job and beginning it. Rows are read before ``current`` is asked: what
    is taken meanwhile is not among them.
    """
    held = [job for job in store.jobs.find(state="running", limit=1000) if job.worker == worker]
    lost = [job for job in held if job.id != current()]
    for job in lost:
        store.jobs.end(job.id, worker, "cancelled" if job.cancelling else "failed", LOST)
    return [job.id for job in lost]


def _is_abandoned(job: JobRecord) -> bool:
    machine, _, process = job.worker.partition(":")
    if machine == machine_id():
        return not is_alive(process)
    return time.time() - job.heartbeat_s > SILENT_S
