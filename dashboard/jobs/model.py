"""A job and what can be done with jobs: the seam between the pages, the API and the queue."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

Kind = Literal["fix", "audit", "import"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})


class Options(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """The closed list of what a job may be told. No path and no command is among it."""

    select: list[str] = []
    """Rule ids."""
    min_gain: float = 0.0
    """Share, 0 to 10."""
    keep_all: bool = False
    limit: int | None = None
    steps: int = 5


class Job(msgspec.Struct, kw_only=True, frozen=True):
    """One job as it is now. Times are ISO 8601 in UTC, empty where there is none yet."""

    id: str
    kind: Kind
    run: str
    """The run that it is about; for an import the id of the upload."""
    files: tuple[str, ...] = ()
    """Of an import: what the trace is called, and then its execution trace, as long as the upload is there."""
    options: Options = Options()
    state: State = "queued"
    progress: str = ""
    """The last sentence that the work said."""
    reason: str = ""
    """Why it failed or was cancelled: one sentence."""
    result_run: str = ""
    """The run that came of it: the audit after a fix, the new audit, what was imported."""
    retry_of: str = ""
    created: str = ""
    started: str = ""
    ended: str = ""


def is_bad_file(job: Job) -> bool:
    """Whether an import failed for what its files hold: such a sentence begins with the file's name, and another try
    ends in the same.
    """
    return job.kind == "import" and job.state == "failed" and job.reason.startswith(job.files or ("/",))


class Jobs(Protocol):
    """What pages and API need of the queue. Every method may raise :class:`auditor.AuditError` with one sentence."""

    def submit(self, kind: Kind, run: str, options: Options | None = None) -> Job:
        """Queue work. AuditError where the run is not there or may not be re-run on this machine, where the rules are
        switched off here, and where a job that waits or runs does the same.
        """

    def why_not(self, kind: Kind, run: str, options: Options | None = None) -> str:
        """Why ``submit`` would refuse, in one sentence, but for an equal job; "" where it would not."""

    def get(self, job: str) -> Job:
        """The job of that id."""

    def list(self, *, state: State | None = None, run: str = "", limit: int = 100, offset: int = 0) -> list[Job]:
        """Jobs, the newest first."""

    def log(self, job: str, after: int = 0) -> tuple[str, int]:
        """What the work printed from byte ``after`` on, and where to go on from."""

    def cancel(self, job: str) -> Job:
        """End it: at once where it waits, with its process group where it runs. What has ended stays as it is."""

    def retry(self, job: str) -> Job:
        """A new job like one that failed or was cancelled."""
