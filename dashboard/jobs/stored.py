"""Jobs as rows of the store, for the pages and the API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
from huey.api import Huey

from auditor.api import rules_of
from auditor.config import load_config
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.store import Missing, Store
from auditor.store.jobs import JobRecord
from auditor.store.machine import machine_id
from auditor.store.registering import registered, why_not
from dashboard.jobs.commands import checked
from dashboard.jobs.model import ENDED, Job, Kind, Options, State
from dashboard.jobs.naming import Names, names_of, told
from dashboard.jobs.output import read_log
from dashboard.jobs.place import Place
from dashboard.jobs.refusing import doubled, equal, off_here
from dashboard.jobs.waking import open_queue, waker
from dashboard.jobs.workers import fail_abandoned

_log = logging.getLogger("fusion_audit.jobs")
MOST_WAITING = 500
"""A queue that is longer is a mistake, or worse."""


class StoredJobs:
    """The jobs of a store, queued for this machine. An implementation of :class:`dashboard.jobs.model.Jobs`."""

    def __init__(self, store: Store, place: Place | None = None, queue: Huey | None = None) -> None:
        self._store = store
        self._place = place or Place.beside(store.location)
        self._submitting = threading.Lock()
        """So that of two equal jobs that are asked for at once the second sees the first."""
        self._wake = waker(queue or open_queue(store.location, self._place, machine_id()))

    def submit(self, kind: Kind, run: str, options: Options | None = None) -> Job:
        return self._submit(kind, run, checked(options or Options()))

    def why_not(self, kind: Kind, run: str, options: Options | None = None) -> str:
        try:
            return self._refusal(kind, run, options or Options())
        except AuditError as error:
            return str(error)

    def get(self, job: str) -> Job:
        return self._shown([self._store.jobs.get(job)])[0]

    def list(self, *, state: State | None = None, run: str = "", limit: int = 100, offset: int = 0) -> list[Job]:
        fail_abandoned(self._store)
        found = self._store.jobs.find(state=state or "", run=run, limit=limit, offset=offset)
        return [*self._shown(found)]

    def log(self, job: str, after: int = 0) -> tuple[str, int]:
        known = self._store.jobs.get(job)
        text, following = read_log(self._place.log(known.id), max(0, after))
        return told(text, names_of([known], self._store, self._place).get(known.id, {})), following

    def cancel(self, job: str) -> Job:
        self._store.jobs.cancel(job)
        fail_abandoned(self._store)
        return self.get(job)

    def retry(self, job: str) -> Job:
        known = self._store.jobs.get(job)
        if known.state not in ENDED - {"done"}:
            raise AuditError(f"job {job} is {known.state}; only one that failed or was cancelled can be retried")
        options = msgspec.json.decode(known.options, type=Options)
        return self._submit(_kind(known.kind), known.run, options, retry_of=known.id)

    def plan(self, job: str) -> str:
        """The plan that the job wrote. Raises :class:`Missing` where it wrote none."""
        known = self._store.jobs.get(job)
        try:
            return self._place.plan(known.id).read_text(encoding="utf-8")
        except OSError:
            raise Missing(f"job {job} has no plan: it is no fix, or nothing was kept") from None

    def _submit(self, kind: Kind, run: str, options: Options, retry_of: str = "") -> Job:
        reason = self._refusal(kind, run, options)
        if reason:
            raise AuditError(reason)
        if self._store.jobs.counts().get("queued", 0) >= MOST_WAITING:
            raise AuditError(f"{MOST_WAITING} jobs are waiting already; cancel some, or wait until they are through")
        about = run if kind == "import" else self._store.resolve(run)
        with self._submitting:
            if same := equal(self._alive(about), kind, about, options):
                raise AuditError(doubled(same))
            job = self._store.jobs.add(kind, about, msgspec.json.encode(options).decode(), machine_id(), retry_of)
        try:
            self._wake(job.id)
        except Exception:  # the job is stored, and the worker looks at the rows, too: asking again would double it
            _log.exception("job %s is queued, but the worker could not be woken", job.id)
        return self._shown([job])[0]

    def _shown(self, jobs: Sequence[JobRecord]) -> Sequence[Job]:
        names = names_of(jobs, self._store, self._place)
        return [_shown(job, names.get(job.id, {})) for job in jobs]

    def _alive(self, run: str) -> Sequence[Job]:
        """The jobs of ``run`` that wait or run; one whose worker is gone is no obstacle."""
        fail_abandoned(self._store)
        find, states = self._store.jobs.find, ("queued", "running")
        return self._shown([job for state in states for job in find(state=state, run=run, limit=MOST_WAITING)])

    def _refusal(self, kind: Kind, run: str, options: Options) -> str:
        if kind == "import":
            upload = self._store.uploads.get(run)
            if upload.machine != machine_id():
                return f"Upload {run} lies on another machine; upload the trace to this one."
            return ""
        known = self._store.resolve(run)
        return why_not(self._store, known) or off_here(self._store, kind, options, lambda: self._rules(known))

    def _rules(self, run: str) -> Sequence[Rule]:
        """The rules that a job of ``run`` would have: those of the project that its script lies in."""
        registration = registered(self._store, run)
        return rules_of(load_config(Path(registration.folder))) if registration else []


def _shown(job: JobRecord, names: Names) -> Job:
    columns = ("id", "run", "result_run", "retry_of", "created", "started", "ended")
    options = msgspec.json.decode(job.options, type=Options)
    said = "being cancelled" if job.cancelling and job.state == "running" else job.progress
    facts = {column: getattr(job, column) for column in columns}
    facts |= {"progress": told(said, names), "reason": told(job.reason, names), "files": tuple(names.values())}
    return Job(kind=_kind(job.kind), state=_state(job.state), options=options, **facts)


def _kind(text: str) -> Kind:
    kind: Kind = msgspec.convert(text, Kind)
    return kind


def _state(text: str) -> State:
    state: State = msgspec.convert(text, State)
    return state
