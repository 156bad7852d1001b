"""Stored fixes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fixes",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("run", sa.String(32), nullable=False),
        sa.Column("after_run", sa.String(32), nullable=False),
        sa.Column("created", sa.String(40), nullable=False),
        sa.Column("kept", sa.Integer, nullable=False),
        sa.Column("predicted_us", sa.Float, nullable=False),
        sa.Column("measured_us", sa.Float, nullable=False),
        sa.Column("document", sa.Text, nullable=False),
    )
    op.create_index("ix_fixes_run", "fixes", ["run"])
    op.create_index("ix_fixes_after_run", "fixes", ["after_run"])


def downgrade() -> None:
    op.drop_table("fixes")
