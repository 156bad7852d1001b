"""Jobs: the one place where their state is. Every change of state is one conditional update, so that two processes
never both take, end or cancel a job.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from sqlalchemy import func, select, update

from auditor.store.failures import Missing
from auditor.store.models import JobRow
from auditor.store.rowtable import RowTable, now


@dataclass(frozen=True)
class JobRecord:
    """One job as it is stored."""

    id: str
    kind: str
    run: str
    options: str
    machine: str
    state: str
    progress: str
    reason: str
    result_run: str
    retry_of: str
    created: str
    started: str
    ended: str
    worker: str
    heartbeat_s: float
    session: int
    """Process session of the work on its machine; 0 before it has one."""
    cancelling: bool


_COLUMNS = [getattr(JobRow, f.name) for f in fields(JobRecord)]


class JobTable(RowTable):
    """The table of jobs."""

    def add(self, kind: str, run: str, options: str, machine: str, retry_of: str = "") -> JobRecord:
        row = JobRow(
            kind=kind, run=run, options=options, machine=machine, state="queued", retry_of=retry_of, created=now()
        )
        return self.get(self._add(row).id)

    def get(self, job: str) -> JobRecord:
        """Raises :class:`Missing` where there is no such job."""
        with self._reading() as session:
            row = session.execute(select(*_COLUMNS).where(JobRow.id == job)).first() if job.isalnum() else None
        if row is None:
            raise Missing(f"no job {job!r}; see the list of jobs")
        return JobRecord(*row)

    def find(
        self, *, state: str = "", run: str = "", machine: str = "", limit: int = 100, offset: int = 0
    ) -> list[JobRecord]:
        """Jobs, the newest first."""
        asked = {"state": state, "run": run, "machine": machine}
        conditions = [getattr(JobRow, column) == value for column, value in asked.items() if value]
        statement = select(*_COLUMNS).where(*conditions).order_by(JobRow.id.desc()).limit(limit).offset(offset)
        with self._reading() as session:
            return [JobRecord(*row) for row in session.execute(statement)]

    def counts(self) -> dict[str, int]:
        """State → how many jobs are in it."""
        with self._reading() as session:
            found = session.execute(select(JobRow.state, func.count()).group_by(JobRow.state)).all()
        return {str(state): int(number) for state, number in found}

    def claim(self, job: str, worker: str) -> bool:
        """Take a queued job; False where it is no longer queued."""
        return self._change(
            job, ["queued"], state="running", worker=worker, started=now(), heartbeat_s=time.time(), progress="",
        )  # fmt: skip

    def beat(self, job: str, worker: str, progress: str, session: int) -> bool:
        """Say that the worker lives, and how far the work is; False where it no longer holds the job."""
        return self._change(job, ["running"], worker, heartbeat_s=time.time(), progress=progress, session=session)

    def end(self, job: str, worker: str, state: str, reason: str = "", result_run: str = "") -> bool:
        """Of the running job that ``worker`` holds; False where it is no longer so."""
        return self._change(
            job, ["running"], worker, state=state, reason=reason, result_run=result_run, ended=now(), session=0
        )

    def put_back(self, job: str, worker: str, progress: str) -> bool:
        """Queue the running job that ``worker`` holds once more."""
        return self._change(
            job, ["running"], worker, state="queued", worker="", started="", progress=progress, session=0
        )

    def cancel(self, job: str) -> str:
        """End a waiting job, and ask for the end of a running one. Returns the state that it had."""
        if self._change(job, ["queued"], state="cancelled", reason="cancelled before it began", ended=now()):
            return "queued"
        return "running" if self._change(job, ["running"], cancelling=True) else self.get(job).state

    def _change(self, job: str, states: list[str], held_by: str = "", /, **values: object) -> bool:
        held = [JobRow.worker == held_by] if held_by else []
        changed = self._write(update(JobRow).where(JobRow.id == job, JobRow.state.in_(states), *held).values(**values))
        return changed == 1
