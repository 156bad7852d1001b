"""Jobs, registrations, tokens, uploads, settings of rules; and what lists of runs show, out of the documents."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_BATCH = 50  # documents can be several MB


def upgrade() -> None:
    for name in ("memory_bound_us", "device_us", "likely_us"):
        op.add_column("runs", sa.Column(name, sa.Float, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("project", sa.String(255), nullable=False, server_default=""))
    op.add_column("runs", sa.Column("patched_from", sa.String(32), nullable=False, server_default=""))
    op.create_index("ix_runs_project", "runs", ["project"])
    op.create_index("ix_runs_patched_from", "runs", ["patched_from"])
    _fill_from_documents(op.get_bind())
    _create_jobs()
    _create_registrations()
    _create_tokens()
    _create_uploads()
    _create_rule_settings()


def downgrade() -> None:
    for table in ("rule_settings", "uploads", "tokens", "registrations", "jobs"):
        op.drop_table(table)
    op.drop_index("ix_runs_patched_from", "runs")
    op.drop_index("ix_runs_project", "runs")
    with op.batch_alter_table("runs") as batch:
        for name in ("patched_from", "project", "likely_us", "device_us", "memory_bound_us"):
            batch.drop_column(name)


def _fill_from_documents(connection: sa.Connection) -> None:
    ids = [row[0] for row in connection.execute(sa.text("SELECT id FROM runs ORDER BY id"))]
    read = sa.text("SELECT id, document FROM runs WHERE id IN :ids").bindparams(sa.bindparam("ids", expanding=True))
    write = sa.text(
        "UPDATE runs SET memory_bound_us = :memory_bound_us, device_us = :device_us, likely_us = :likely_us, "
        "project = :project, patched_from = :patched_from WHERE id = :id"
    )
    for start in range(0, len(ids), _BATCH):
        rows = connection.execute(read, {"ids": ids[start : start + _BATCH]}).all()
        connection.execute(write, [{"id": run, **_facts(text)} for run, text in rows])


def _facts(text: str) -> dict[str, Any]:
    """Of a damaged document nothing is known: it is told when the run is opened."""
    try:
        document = json.loads(text)
        run, totals = document.get("run", {}), document.get("totals", {})
        script = [str(word) for word in run.get("script", [])]
        return {
            "memory_bound_us": float(totals.get("memory_bound_us", 0.0)),
            "device_us": float(totals.get("device_us", 0.0)),
            "likely_us": float(totals.get("saving", {}).get("likely_us", 0.0)),
            "project": str(run.get("project") or _folder(script))[:255],
            "patched_from": str(run.get("patched_from", ""))[:32],
        }
    except (ValueError, TypeError, AttributeError):
        return {"memory_bound_us": 0.0, "device_us": 0.0, "likely_us": 0.0, "project": "", "patched_from": ""}


def _folder(script: list[str]) -> str:
    """Runs of this age don't say their project: the folder that the script was named with, if it was."""
    parts = script[0].split("/") if script else []
    return parts[-2] if len(parts) > 1 and parts[-2] not in ("", ".", "..") else ""


def _text(name: str, length: int | None = None, *, default: str | None = None, key: bool = False) -> sa.Column[str]:
    kind = sa.String(length) if length else sa.Text()
    return sa.Column(name, kind, nullable=False, server_default=default, primary_key=key)


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        _text("id", 32, key=True), _text("kind", 16), _text("run", 32), _text("options"), _text("machine", 64),
        _text("state", 16), _text("progress", default=""), _text("reason", default=""),
        _text("result_run", 32, default=""), _text("retry_of", 32, default=""), _text("created", 40),
        _text("started", 40, default=""), _text("ended", 40, default=""), _text("worker", 128, default=""),
        sa.Column("heartbeat_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("session", sa.Integer, nullable=False, server_default="0"),
        sa.Column("cancelling", sa.Boolean, nullable=False, server_default=sa.false()),
    )  # fmt: skip
    for name in ("run", "machine", "state"):
        op.create_index(f"ix_jobs_{name}", "jobs", [name])


def _create_registrations() -> None:
    op.create_table(
        "registrations",
        _text("run", 32, key=True), _text("machine", 64, key=True), _text("folder"), _text("script"), _text("typed"),
        sa.Column("args", sa.JSON, nullable=False), _text("sha256", 64), _text("created", 40),
    )  # fmt: skip


def _create_tokens() -> None:
    op.create_table(
        "tokens",
        _text("id", 32, key=True), _text("name", 255), _text("sha256", 64), _text("created", 40),
        _text("used", 40, default=""),
    )  # fmt: skip


def _create_uploads() -> None:
    op.create_table(
        "uploads",
        _text("id", 32, key=True), _text("name", 255), _text("kind", 16),
        sa.Column("nbytes", sa.BigInteger, nullable=False), _text("sha256", 64),
        _text("execution_trace", 32, default=""), _text("machine", 64), _text("created", 40),
    )  # fmt: skip


def _create_rule_settings() -> None:
    op.create_table(
        "rule_settings",
        _text("rule", 64, key=True), sa.Column("enabled", sa.Boolean, nullable=False), _text("severity", 16),
        _text("changed", 40),
    )  # fmt: skip
