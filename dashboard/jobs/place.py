"""Where the service keeps its files: uploads, and one folder for each job with its log, result and plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from auditor.store.failures import Unavailable
from auditor.store.ids import is_id
from auditor.store.location import Location, service_folder


@dataclass(frozen=True)
class Place:
    """The service's folder. Every name in it is an id of ours or fixed: nothing from a request becomes a path."""

    root: Path

    @classmethod
    def beside(cls, location: Location) -> Place:
        return cls(service_folder(location))

    @property
    def uploads(self) -> Path:
        return self._made(self.root / "uploads")

    @property
    def queue(self) -> Path:
        """The queue's database, where it is a file."""
        return self._made(self.root) / "queue.db"

    @property
    def service_log(self) -> Path:
        """What the service notes of its requests and mishaps."""
        return self._made(self.root) / "service.log"

    def upload(self, upload: str, kind: str) -> Path:
        """The file of an upload; ``kind`` is its suffix: ``json`` or ``json.gz``."""
        if kind not in ("json", "json.gz"):
            raise ValueError(f"no kind of upload: {kind!r}")
        return self.uploads / f"{_checked(upload)}.{kind}"

    def job(self, job: str) -> Path:
        return self._made(self.root / "jobs" / _checked(job))

    def log(self, job: str) -> Path:
        return self.root / "jobs" / _checked(job) / "log.txt"

    def result(self, job: str) -> Path:
        """The document that the work writes when it is through."""
        return self.root / "jobs" / _checked(job) / "result.json"

    def plan(self, job: str) -> Path:
        return self.root / "jobs" / _checked(job) / "fusion-plan.yaml"

    def _made(self, folder: Path) -> Path:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"{folder}: the service can't keep files here: {error.strerror or error}") from None
        return folder


def _checked(name: str) -> str:
    if not is_id(name):
        raise ValueError(f"not an id: {name!r}")
    return name
