"""The queue: it wakes the worker with a job's id and carries nothing else.

What is to be done, and whether it still is, says the job's row. A message that is lost with a killed worker is sent
again for every row that still waits; one that comes twice finds the row taken.
"""

from __future__ import annotations

from typing import Any

import msgspec
from huey import PostgresHuey, SqliteHuey
from huey.api import Huey
from huey.registry import Message
from huey.serializer import Serializer
from sqlalchemy.engine import make_url

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
        return SqliteHuey(f"jobs-{machine}", filename=str(place.queue), timeout=30, **settings)
    dsn = make_url(location.url).set(drivername="postgresql").render_as_string(hide_password=False)
    return PostgresHuey(f"jobs-{machine}", dsn=dsn, table_prefix="fusion_audit_queue", **settings)


def waker(queue: Huey, work: Any = None) -> Any:
    """The task that is queued by calling it with a job's id; ``work`` is what the worker does then."""

    def run_job(job: str) -> None:
        if work is not None:
            work(job)

    return queue.task(name="run_job")(run_job)
