"""Files that were uploaded whole, by the id under which they lie in the service's folder."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from auditor.store.failures import Missing
from auditor.store.models import UploadRow
from auditor.store.rowtable import RowTable, now


@dataclass(frozen=True)
class Upload:
    """One uploaded file. ``name`` is what its sender called it: to be shown, never to be opened."""

    id: str
    name: str
    kind: str
    nbytes: int
    sha256: str
    execution_trace: str
    machine: str
    created: str


_COLUMNS = [getattr(UploadRow, f.name) for f in fields(Upload)]


class UploadTable(RowTable):
    """The table of uploads."""

    def add(self, upload: Upload) -> None:
        """Store the row of a file that is there under ``upload.id``."""
        values = {f.name: getattr(upload, f.name) for f in fields(Upload)} | {"created": upload.created or now()}
        with self._writing() as connection, Session(connection) as session:
            session.add(UploadRow(**values))
            session.flush()

    def get(self, upload: str) -> Upload:
        """Raises :class:`Missing` where there is no such upload."""
        with self._reading() as session:
            row = session.execute(select(*_COLUMNS).where(UploadRow.id == upload)).first() if upload.isalnum() else None
        if row is None:
            raise Missing(f"no upload {upload!r}; see the list of uploads")
        return Upload(*row)

    def find(self, uploads: Collection[str]) -> dict[str, Upload]:
        """Those of these ids that are there, by id."""
        if not uploads:
            return {}
        with self._reading() as session:
            rows = session.execute(select(*_COLUMNS).where(UploadRow.id.in_(uploads)))
            return {row.id: Upload(*row) for row in rows}

    def list(self, machine: str = "", *, limit: int | None = None, offset: int = 0) -> list[Upload]:
        """Uploads, the newest first."""
        statement = select(*_COLUMNS).where(*([UploadRow.machine == machine] if machine else []))
        with self._reading() as session:
            rows = session.execute(statement.order_by(UploadRow.id.desc()).limit(limit).offset(offset or None))
            return [Upload(*row) for row in rows]

    def delete(self, upload: str) -> bool:
        return self._write(delete(UploadRow).where(UploadRow.id == upload)) == 1
