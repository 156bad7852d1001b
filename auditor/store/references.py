"""What a person writes for a run: ``latest``, an id, a name, or the unique start of an id."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from auditor.errors import AuditError
from auditor.store.failures import Missing
from auditor.store.models import RunRow

_SHOWN = 5


def resolve(session: Session, ref: str, label: str) -> str:
    """The id of the run that ``ref`` means.

    Raises:
        Missing: none is meant.
        AuditError: several are.
    """
    found = _meant(session, ref)
    if len(found) == 1:
        return found[0]
    if found:
        raise AuditError(f"{ref!r} is the start of {_number(session, ref)} runs ({_some(found)}); write more of the id")
    known = session.execute(select(RunRow.id, RunRow.name).order_by(RunRow.id.desc()).limit(_SHOWN + 1)).all()
    if not known:
        raise Missing(f"{label} holds no audits yet; make one with: fusion-audit run script.py")
    raise Missing(f"no run {ref!r}; there are: {_some([f'{run} ({name})' if name else run for run, name in known])}")


def _meant(session: Session, ref: str) -> list[str]:
    if not ref.isprintable():  # no id and no name; PostgreSQL refuses to look for some of them
        return []
    newest = select(RunRow.id).order_by(RunRow.id.desc())
    if ref == "latest":
        return list(session.scalars(newest.limit(1)))
    for exact in (RunRow.id, RunRow.name):
        found = list(session.scalars(newest.where(exact == ref).limit(1)))
        if found:
            return found
    return list(session.scalars(newest.where(_starts(ref)).limit(_SHOWN + 1))) if ref else []


def _starts(ref: str) -> ColumnElement[bool]:
    return RunRow.id.startswith(ref, autoescape=True)


def _number(session: Session, ref: str) -> int:
    return session.execute(select(func.count()).where(_starts(ref))).scalar_one()


def _some(items: list[str]) -> str:
    return ", ".join(items[:_SHOWN]) + (" and more" if len(items) > _SHOWN else "")
