"""Jobs in memory, moved on by the test: what pages need of a queue, without a worker."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from auditor import AuditError
from auditor.store import Store
from dashboard.data.rules import all_rules
from dashboard.jobs.model import ENDED, Job, Kind, Options, State
from dashboard.jobs.refusing import doubled, equal, off_here


@dataclass
class MemoryJobs:
    """Implements :class:`dashboard.jobs.model.Jobs`. ``refuse`` is why nothing may be submitted."""

    store: Store
    refuse: str = ""
    jobs: dict[str, Job] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)

    def submit(self, kind: Kind, run: str, options: Options | None = None) -> Job:
        options = options or Options()
        why = self.why_not(kind, run, options)
        if why:
            raise AuditError(why)
        if same := equal(self.jobs.values(), kind, run, options):
            raise AuditError(doubled(same))
        return self._add(Job(id=f"job{len(self.jobs)}", kind=kind, run=run, options=options))

    def why_not(self, kind: Kind, run: str, options: Options | None = None) -> str:
        if kind == "import":
            return ""
        if self.refuse:
            return self.refuse
        loaded = self.store.load(run).document.run
        if loaded.source != "profile":
            return f"Run {run} is a trace: there is no script to run again."
        return off_here(self.store, kind, options or Options(), all_rules)

    def get(self, job: str) -> Job:
        if job not in self.jobs:
            raise AuditError(f"no job {job!r}; see the list of jobs")
        return self.jobs[job]

    def list(self, *, state: State | None = None, run: str = "", limit: int = 100, offset: int = 0) -> list[Job]:
        wanted = [j for j in reversed(self.jobs.values()) if state in (None, j.state) and run in ("", j.run)]
        return wanted[offset : offset + limit]

    def log(self, job: str, after: int = 0) -> tuple[str, int]:
        data = self.logs.get(job, "").encode()
        return data[after:].decode(errors="replace"), len(data)

    def cancel(self, job: str) -> Job:
        if self.get(job).state in ENDED:
            return self.jobs[job]
        return self.move(job, state="cancelled", reason="cancelled by the user", ended="2026-11-30T10:01:00+00:00")

    def retry(self, job: str) -> Job:
        old = self.get(job)
        return self._add(Job(id=f"job{len(self.jobs)}", kind=old.kind, run=old.run, options=old.options, retry_of=job))

    def move(self, job: str, **changes: object) -> Job:
        """What a worker would do."""
        self.jobs[job] = msgspec.structs.replace(self.jobs[job], **changes)
        return self.jobs[job]

    def _add(self, job: Job) -> Job:
        self.jobs[job.id] = msgspec.structs.replace(job, created="2026-11-30T10:00:00+00:00")
        return self.jobs[job.id]
