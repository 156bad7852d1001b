"""Stored runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("source", sa.String(32), nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("script", sa.JSON, nullable=False),
        sa.Column("device", sa.String(255), nullable=False),
        sa.Column("exit_code", sa.Integer, nullable=False),
        sa.Column("findings", sa.Integer, nullable=False),
        sa.Column("kernels", sa.Integer, nullable=False),
        sa.Column("unfused_kernels", sa.Integer, nullable=False),
        sa.Column("avoidable_kernels", sa.Integer, nullable=False),
        sa.Column("step_us", sa.Float, nullable=False),
        sa.Column("step_saving_us", sa.Float, nullable=False),
        sa.Column("artefacts", sa.JSON, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_runs_name", "runs", ["name"])


def downgrade() -> None:
    op.drop_index("ix_runs_name", "runs")
    op.drop_table("runs")
