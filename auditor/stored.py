"""An audit among the project's stored runs, with what it is of: the one way in for all that records in a project."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from auditor.commit import commit_of
from auditor.project import project_of

if TYPE_CHECKING:
    from auditor.audit import Audit
    from auditor.store import Store


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that a run is of."""

    project: str
    commit: str

    @classmethod
    def here(cls) -> Origin:
        """That of the current folder. To be asked for when the run starts: it can take an hour, and code changes."""
        return cls(project_of(Path.cwd()), commit_of(Path.cwd()))


def save(store: Store, audit: Audit, origin: Origin) -> str:
    """Store ``audit`` as a run of ``origin``; its new id.

    Raises:
        AuditError: the store can't be written.
    """
    run = audit.document.run
    run.project, run.commit = origin.project, origin.commit
    return store.save(audit.document, audit.tables())
