"""The tables of the database. Change them together with a new script in ``migrations/versions``."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Float, Integer, String, Text, false
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

HEAD = "0003"
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
    memory_bound_us: Mapped[float] = mapped_column(Float, server_default="0")
    device_us: Mapped[float] = mapped_column(Float, server_default="0")
    likely_us: Mapped[float] = mapped_column(Float, server_default="0")  # device time that findings would save
    project: Mapped[str] = mapped_column(String(255), server_default="", index=True)
    patched_from: Mapped[str] = mapped_column(String(32), server_default="", index=True)  # the run that was fixed
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


class JobRow(Base):
    """One piece of work for a machine: its state is here and nowhere else; the queue only carries ids."""

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    run: Mapped[str] = mapped_column(String(32), index=True)  # of an import the upload
    options: Mapped[str] = mapped_column(Text)  # JSON
    machine: Mapped[str] = mapped_column(String(64), index=True)  # the one that may do it
    state: Mapped[str] = mapped_column(String(16), index=True)
    progress: Mapped[str] = mapped_column(Text, server_default="")
    reason: Mapped[str] = mapped_column(Text, server_default="")
    result_run: Mapped[str] = mapped_column(String(32), server_default="")
    retry_of: Mapped[str] = mapped_column(String(32), server_default="")
    created: Mapped[str] = mapped_column(String(40))  # ISO 8601, UTC
    started: Mapped[str] = mapped_column(String(40), server_default="")
    ended: Mapped[str] = mapped_column(String(40), server_default="")
    worker: Mapped[str] = mapped_column(String(128), server_default="")  # machine:pid:start time of the process
    heartbeat_s: Mapped[float] = mapped_column(Float, server_default="0")  # Unix time
    session: Mapped[int] = mapped_column(Integer, server_default="0")  # process session of the work
    cancelling: Mapped[bool] = mapped_column(Boolean, server_default=false())


class RegistrationRow(Base):
    """That a machine may run a run's script again, as the command line ran it there."""

    __tablename__ = "registrations"

    run: Mapped[str] = mapped_column(String(32), primary_key=True)
    machine: Mapped[str] = mapped_column(String(64), primary_key=True)
    folder: Mapped[str] = mapped_column(Text)
    script: Mapped[str] = mapped_column(Text)  # absolute
    typed: Mapped[str] = mapped_column(Text)  # as it stood on the command line
    args: Mapped[list[str]] = mapped_column(JSON)
    sha256: Mapped[str] = mapped_column(String(64))
    created: Mapped[str] = mapped_column(String(40))


class TokenRow(Base):
    """A token's hash; the token itself is shown once and kept by whoever asked for it."""

    __tablename__ = "tokens"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(255))
    sha256: Mapped[str] = mapped_column(String(64))
    created: Mapped[str] = mapped_column(String(40))
    used: Mapped[str] = mapped_column(String(40), server_default="")  # to the minute


class UploadRow(Base):
    """A file that was uploaded whole; it lies in the service's folder under this id."""

    __tablename__ = "uploads"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    name: Mapped[str] = mapped_column(String(255))  # as the sender called it: for reading only, never a path
    kind: Mapped[str] = mapped_column(String(16))
    nbytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str] = mapped_column(String(64))
    execution_trace: Mapped[str] = mapped_column(String(32), server_default="")  # another upload, of the same run
    machine: Mapped[str] = mapped_column(String(64))  # whose disk it is on
    created: Mapped[str] = mapped_column(String(40))


class RuleSettingRow(Base):
    """What the dashboard set for a rule."""

    __tablename__ = "rule_settings"

    rule: Mapped[str] = mapped_column(String(64), primary_key=True)
    enabled: Mapped[bool] = mapped_column(Boolean)
    severity: Mapped[str] = mapped_column(String(16))  # empty: as the rule says
    changed: Mapped[str] = mapped_column(String(40))
