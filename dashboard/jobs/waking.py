"""The queue: it wakes the worker with a job's id and carries nothing else.

What is to be done, and whether it still is, says the job's row. A message that is lost with a killed worker is sent
again for every row that still waits; one that comes twice finds the row taken.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec
from huey import PostgresHuey, SqliteHuey
from huey.api import Huey
from huey.registry import Message
from huey.serializer import Serializer
from sqlalchemy.engine import make_url

from auditor.store.failures import Unavailable
from auditor.store.location import Location
from dashboard.jobs.place import Place


class _Plain(Serializer):  # type: ignore[misc]
    """JSON: a pickle would run whatever stands in the database."""

    def _serialize(self, data: Any) -> bytes:
        return msgspec.json.encode(list(data))

    def _deserialize(self, data: bytes) -> Message:
        return Message(*msgspec.json.decode(data))


def open_queue(location: Location, place: Place, machine: str) -> Huey:
    """The queue of one machine: a file beside the store's, or tables in its PostgreSQL database."""
    settings: dict[str, Any] = {"results": False, "serializer": _Plain()}
    if location.file is not None:
        return _in_file(f"jobs-{machine}", place.queue, settings)
    dsn = make_url(location.url).set(drivername="postgresql").render_as_string(hide_password=False)
    return PostgresHuey(f"jobs-{machine}", dsn=dsn, table_prefix="fusion_audit_queue", **settings)


def _in_file(name: str, file: Path, settings: dict[str, Any]) -> Huey:
    """A file that is damaged is thrown away: it holds nothing that the rows of the jobs do not."""
    try:
        return SqliteHuey(name, filename=str(file), timeout=30, **settings)
    except sqlite3.OperationalError as error:
        raise Unavailable(f"{file}: the queue of jobs can't be opened: {error}") from None
    except sqlite3.DatabaseError:
        try:
            file.unlink(missing_ok=True)
            return SqliteHuey(name, filename=str(file), timeout=30, **settings)
        except (OSError, sqlite3.DatabaseError) as error:
            raise Unavailable(f"{file}: the queue of jobs is damaged and can't be made anew: {error}") from None


def waker(queue: Huey, work: Any = None) -> Any:
    """The task that is queued by calling it with a job's id; ``work`` is what the worker does then."""

    def run_job(job: str) -> None:
        if work is not None:
            work(job)

    return queue.task(name="run_job")(run_job)
