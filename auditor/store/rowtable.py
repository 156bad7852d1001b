"""What the tables of the service have in common: short transactions, and the database's complaints as one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TypeVar

from sqlalchemy import Connection, CursorResult, Engine, Executable
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from auditor.errors import AuditError
from auditor.store.connection import writing
from auditor.store.failures import readable
from auditor.store.ids import new_id
from auditor.store.models import Base

_TRIES = 8

Row = TypeVar("Row", bound=Base)


class RowTable:
    """One table of the database at ``label``."""

    def __init__(self, engine: Engine, label: str) -> None:
        self._engine = engine
        self._label = label

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with readable(self._label), Session(self._engine) as session:
            yield session

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with readable(self._label), writing(self._engine.connect()) as connection, connection.begin():
            yield connection

    def _write(self, statement: Executable) -> int:
        """Run one statement; how many rows it changed."""
        with self._writing() as connection:
            result: CursorResult[Any] = connection.execute(statement)
            return result.rowcount

    def _put(self, table: type[Base], values: dict[str, Any]) -> None:
        """Store a row in place of the one with the same primary key, in one statement: two writers can't collide."""
        insert = postgresql.insert if self._engine.dialect.name == "postgresql" else sqlite.insert
        keys = [column.name for column in table.__table__.primary_key]
        others = {name: value for name, value in values.items() if name not in keys}
        self._write(insert(table).values(**values).on_conflict_do_update(index_elements=keys, set_=others))

    def _add(self, row: Row) -> Row:
        """Store ``row`` under a new id."""
        for _ in range(_TRIES):
            row.id = new_id()  # type: ignore[attr-defined]
            try:
                with self._writing() as connection, Session(connection, expire_on_commit=False) as session:
                    session.add(row)
                    session.flush()
                    session.expunge(row)
                return row
            except AuditError as error:
                if not isinstance(error.__cause__, IntegrityError):
                    raise
        raise AuditError(f"{self._label}: no free id was found; is the clock right?")


def now() -> str:
    """The time as the database keeps it: ISO 8601 in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
