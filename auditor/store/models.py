"""The tables of the database. Change them together with a new script in ``migrations/versions``."""

from __future__ import annotations

from sqlalchemy import JSON, Float, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

HEAD = "0002"
"""The newest migration: the schema that this code reads and writes."""


class Base(DeclarativeBase):
    """Everything that Fusion Auditor keeps in the database."""


class RunRow(Base):
    """One stored audit. The counts repeat what the document says, so that lists need not open it."""

    __tablename__ = "runs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(255), index=True)
    source: Mapped[str] = mapped_column(String(32))
    created: Mapped[str] = mapped_column(String(40))  # ISO 8601, UTC
    script: Mapped[list[str]] = mapped_column(JSON)
    device: Mapped[str] = mapped_column(String(255))
    exit_code: Mapped[int] = mapped_column(Integer)
    findings: Mapped[int] = mapped_column(Integer)
    kernels: Mapped[int] = mapped_column(Integer)
    unfused_kernels: Mapped[int] = mapped_column(Integer)
    avoidable_kernels: Mapped[int] = mapped_column(Integer)
    step_us: Mapped[float] = mapped_column(Float)
    step_saving_us: Mapped[float] = mapped_column(Float)
    artefacts: Mapped[list[str]] = mapped_column(JSON)  # names of the Parquet tables
    document: Mapped[str] = mapped_column(Text, deferred=True)  # the audit document as JSON


class FixRow(Base):
    """One stored fix. The times repeat what the document says: predictions are judged over many fixes."""

    __tablename__ = "fixes"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    run: Mapped[str] = mapped_column(String(32), index=True)  # the audited run
    after_run: Mapped[str] = mapped_column(String(32), index=True)  # empty where nothing was kept
    created: Mapped[str] = mapped_column(String(40))  # ISO 8601, UTC
    kept: Mapped[int] = mapped_column(Integer)  # sites
    predicted_us: Mapped[float] = mapped_column(Float)
    measured_us: Mapped[float] = mapped_column(Float)
    document: Mapped[str] = mapped_column(Text, deferred=True)  # the fix document as JSON
