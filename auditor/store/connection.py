"""Connections to the database: several processes, one file, no half transaction."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from auditor.store.location import Location

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for the others before it gives up."""


def connect(location: Location) -> Engine:
    """An engine for ``location``; opens nothing yet."""
    if location.file is None:
        return create_engine(location.url, pool_pre_ping=True)
    writable = os.access(location.file.parent, os.W_OK) and os.access(location.file, os.W_OK)
    # mode=rw: a reader must not make an empty store, the store creates the file itself. A store in a read-only
    # place (a mounted CI artefact) can be read only as "immutable": WAL needs a writable folder otherwise.
    mode = "mode=rw" if writable else "mode=ro&immutable=1"
    uri = f"file:{quote(os.fsencode(location.file))}?{mode}"  # a name on disk is bytes, not always UTF-8
    engine = create_engine(
        "sqlite://",
        poolclass=NullPool,
        # Not by SQLAlchemy's URL: it decodes the path, and a "?" in it would be lost.
        creator=lambda: sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None),
    )
    if writable:
        event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def writing(connection: Connection) -> Connection:
    """Let the next transaction take the write lock at its start, so that it waits there and never fails midway."""
    return connection.execution_options(fusion_audit_write=True)


def _prepare(connection: sqlite3.Connection, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA synchronous=FULL")
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        _switch_to_wal(connection)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    # SQLite doesn't wait for this switch as it does for a write: two first openers meet, one is told "locked".
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _begin(connection: Connection) -> None:
    write = connection.get_execution_options().get("fusion_audit_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
