"""Lists of runs: what a line says, which lines are wanted, and in what order. No document is opened for them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Select, func, or_, select
from sqlalchemy.orm import Session

from auditor.errors import AuditError
from auditor.store.models import RunRow

Column = Literal[
    "created", "name", "project", "source", "device", "findings", "kernels", "unfused_kernels", "avoidable_kernels",
    "step_us", "step_saving_us", "memory_bound_us", "device_us", "likely_us",
]  # fmt: skip
COLUMNS: tuple[str, ...] = get_args(Column)
"""What lists can be sorted by."""


@dataclass(frozen=True)
class RunSummary:
    """A line of the list of runs. Times in microseconds."""

    id: str
    name: str
    source: str
    created: str
    script: list[str]
    device: str
    exit_code: int
    findings: int
    kernels: int
    unfused_kernels: int
    avoidable_kernels: int
    step_us: float
    step_saving_us: float
    memory_bound_us: float = 0.0
    device_us: float = 0.0
    likely_us: float = 0.0
    """Device time that the findings would likely save."""
    project: str = ""
    patched_from: str = ""
    """The run that was fixed, where this one was recorded under the plan of that fix."""


@dataclass(frozen=True)
class RunFilter:
    """Which runs are wanted; an empty field asks for nothing. Times are ISO 8601 in UTC, or the start of one."""

    text: str = ""
    """Part of the id, name, project or device, in any case."""
    name: str = ""
    project: str = ""
    source: str = ""
    device: str = ""
    since: str = ""
    until: str = ""
    patched_from: str = ""


def wanted(found: RunFilter) -> list[ColumnElement[bool]]:
    exact = ("name", "project", "source", "device", "patched_from")
    conditions: list[ColumnElement[bool]] = [
        getattr(RunRow, column) == getattr(found, column) for column in exact if getattr(found, column)
    ]
    if found.text:
        part = found.text.lower()
        columns = (RunRow.id, RunRow.name, RunRow.project, RunRow.device)
        conditions.append(or_(*(func.lower(column).contains(part, autoescape=True) for column in columns)))
    if found.since:
        conditions.append(RunRow.created >= found.since)
    if found.until:
        conditions.append(RunRow.created <= found.until)
    return conditions


def summaries(
    session: Session, found: RunFilter, *, sort: str, descending: bool, limit: int | None, offset: int
) -> list[RunSummary]:
    statement = select(*_columns()).where(*wanted(found))
    rows = session.execute(_ordered(statement, sort, descending).limit(limit).offset(offset or None)).all()
    return [RunSummary(*row) for row in rows]


def summary(session: Session, run: str) -> RunSummary:
    row = session.execute(select(*_columns()).where(RunRow.id == run)).one()
    return RunSummary(*row)


def count(session: Session, found: RunFilter) -> int:
    return session.execute(select(func.count()).select_from(RunRow).where(*wanted(found))).scalar_one()


def distinct(session: Session, column: Literal["name", "project", "source", "device"]) -> list[str]:
    """The values that a column has, in order."""
    found = getattr(RunRow, column)
    return list(session.scalars(select(found).where(found != "").distinct().order_by(found)))


def _columns() -> list[Any]:
    return [getattr(RunRow, f.name) for f in fields(RunSummary)]


def _ordered(statement: Select[Any], sort: str, descending: bool) -> Select[Any]:
    if sort not in COLUMNS:
        raise AuditError(f"runs can't be sorted by {sort!r}; there are: {', '.join(COLUMNS)}")
    # An id starts with the time at which it was given: two runs of one second stay in order
    columns = [RunRow.id] if sort == "created" else [getattr(RunRow, sort), RunRow.id]
    return statement.order_by(*(column.desc() if descending else column.asc() for column in columns))
