"""The database's schema: made and brought up to date when a store is opened."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from auditor.errors import AuditError
from auditor.store.connection import writing
from auditor.store.models import HEAD

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 0x66757361  # "fusa": PostgreSQL's advisory lock around a migration
_ONE_THREAD = threading.Lock()  # Alembic's context is global


def bring_up_to_date(engine: Engine, label: str) -> None:
    """Run the migrations that the database lacks. Safe when several processes open a new store at once.

    Raises :class:`AuditError` when a newer version of Fusion Auditor has written the database.
    """
    with engine.connect() as connection:
        if version(connection, label) == HEAD:
            return
    with _ONE_THREAD, writing(engine.connect()) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        if version(connection, label) != HEAD:  # another process may have done it while this one waited
            _upgrade(connection)


def version(connection: Connection, label: str) -> str | None:
    """The schema's version, ``None`` for an empty database."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is not None and not (found.isdigit() and int(found) <= int(HEAD)):
        raise AuditError(
            f"{label}: written by a newer Fusion Auditor (schema {found}, this one reads up to {HEAD}); "
            "upgrade with pip install -U fusion-auditor, or name another place with --db"
        )
    return None if found is None else str(found)


def alembic_config() -> Config:
    """Alembic's configuration without a file: the scripts lie in this package."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _upgrade(connection: Connection) -> None:
    from alembic import command

    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
