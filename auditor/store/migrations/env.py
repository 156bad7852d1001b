"""Alembic's entry: migrations run on the connection, and inside the transaction, of the store that opens."""

from __future__ import annotations

from alembic import context

from auditor.store.models import Base

context.configure(connection=context.config.attributes["connection"], target_metadata=Base.metadata)
context.run_migrations()
