"""The store: save, list, load and delete audits and fixes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import Engine, delete, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from auditor.document import SCHEMA, Document
from auditor.errors import AuditError
from auditor.fix_document import SCHEMA as FIX_SCHEMA
from auditor.fix_document import FixDocument
from auditor.store.artefacts import Artefacts
from auditor.store.connection import connect, writing
from auditor.store.failures import readable
from auditor.store.ids import new_id
from auditor.store.location import Location, locate
from auditor.store.models import Base, FixRow, RunRow
from auditor.store.schema import bring_up_to_date

if TYPE_CHECKING:
    import pyarrow

_Stored = TypeVar("_Stored", Document, FixDocument)
_TRIES = 8  # ids to try; two equal ones in a row are already a chance of 1 in 10^9


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


@dataclass
class StoredRun:
    """One stored audit. Tables are read from disk when asked for."""

    id: str
    name: str
    document: Document
    table_names: tuple[str, ...]
    _artefacts: Artefacts = field(repr=False)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """One table, or those of its columns that are named: a million ops are mostly their arguments.

        Raises:
            AuditError: the run has no such table or column, or its file can't be read.
        """
        if name not in self.table_names:
            raise AuditError(f"run {self.id} has no table {name!r}; it has: {', '.join(self.table_names) or 'none'}")
        return self._artefacts.read(self.id, name, columns)

    @cached_property
    def tables(self) -> dict[str, pyarrow.Table]:
        return {name: self.table(name) for name in self.table_names}


class Store(AbstractContextManager["Store"]):
    """Audits in one database. Several processes may use one at the same time."""

    def __init__(self, location: Location, engine: Engine, artefacts: Artefacts) -> None:
        self.location = location
        self._engine = engine
        self._artefacts = artefacts

    @classmethod
    def open(cls, place: str | Path | None = None, *, create: bool = True) -> Store:
        """Open the store at ``place`` (see :func:`auditor.store.location.locate`), making it if need be.

        With ``create=False`` a missing store is an :class:`AuditError` instead, and nothing is written.
        """
        location = locate(place)
        with readable(location.label):
            if location.file is not None:
                _prepare_file(location.file, create)
            store = cls(location, connect(location), Artefacts(location.artefacts))
            bring_up_to_date(store._engine, location.label)
            store._sweep()
        return store

    def save(self, document: Document, tables: dict[str, pyarrow.Table]) -> str:
        """Store an audit and return its new id, which is also written into ``document.run``."""
        document.run.created = document.run.created or _now()
        with readable(self.location.label):
            for _ in range(_TRIES):
                document.run.id = new_id()
                if self._try_save(document, tables):
                    return document.run.id
        raise AuditError(f"{self.location.label}: no free id was found for the run; is the clock right?")

    def save_fix(self, fix: FixDocument, after: tuple[Document, dict[str, pyarrow.Table]] | None = None) -> None:
        """Store a fix, and with it the audit ``after`` it: both or neither. Sets ``fix.after_run``.

        The audit's own id, and the link to the run that was fixed, are written into its document.
        """
        fix.created = fix.created or _now()
        with readable(self.location.label):
            for _ in range(_TRIES):
                if self._try_save_fix(fix, after):
                    return
        raise AuditError(f"{self.location.label}: no free id was found for the fix; is the clock right?")

    def load_fix(self, ref: str = "latest") -> FixDocument:
        """The newest fix of the run that ``ref`` names, or that this run is the audit after.

        Raises:
            AuditError: there is none.
        """
        run = self._resolve(ref)
        newest = select(FixRow.document).where(or_(FixRow.run == run, FixRow.after_run == run))
        with readable(self.location.label), Session(self._engine) as session:
            text = session.execute(newest.order_by(FixRow.id.desc())).scalars().first()
        if text is None:
            raise AuditError(f"no fix of run {run} is stored; make one with: fusion-audit fix {run}")
        name = f"{self.location.label}: the fix of run {run}"
        return _decode(text, FixDocument, FIX_SCHEMA, name, "make it again")

    def list_runs(self) -> list[RunSummary]:
        """Every stored run, the newest first."""
        columns = [getattr(RunRow, f.name) for f in fields(RunSummary)]
        with readable(self.location.label), Session(self._engine) as session:
            rows = session.execute(select(*columns).order_by(RunRow.id.desc())).all()
        return [RunSummary(*row) for row in rows]

    def load(self, ref: str = "latest") -> StoredRun:
        """The run that ``ref`` names: ``latest``, an id, a name (its newest run) or the unique start of an id."""
        run = self._resolve(ref)
        with readable(self.location.label), Session(self._engine) as session:
            row = session.get(RunRow, run)
            if row is None:
                raise AuditError(f"{self.location.label}: run {run} was deleted meanwhile")
            text, name, names = row.document, row.name, tuple(row.artefacts)
        what = f"{self.location.label}: the document of run {run}"
        document = _decode(text, Document, SCHEMA, what, "record the run again")
        return StoredRun(run, name, document, names, self._artefacts)

    def resolve(self, ref: str = "latest") -> str:
        """The id of the run that ``ref`` names, as :meth:`load` understands it."""
        with readable(self.location.label):
            return self._resolve(ref)

    def delete(self, ref: str) -> str:
        """Remove a run and its fixes: first the rows, then its files. Returns its id."""
        run = self._resolve(ref)
        with readable(self.location.label):
            with writing(self._engine.connect()) as connection, connection.begin():
                connection.execute(delete(RunRow).where(RunRow.id == run))
                connection.execute(delete(FixRow).where(FixRow.run == run))
            self._artefacts.delete(run)
        return run

    def close(self) -> None:
        self._engine.dispose()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _try_save_fix(self, fix: FixDocument, after: tuple[Document, dict[str, pyarrow.Table]] | None) -> bool:
        if after is None:
            fix.after_run = ""
            return self._add_rows([_fix_row(fix)])
        document, tables = after
        document.run.created = document.run.created or _now()
        document.run.id = fix.after_run = new_id()
        document.run.patched_from = fix.run
        return self._try_save(document, tables, fix)

    def _try_save(self, document: Document, tables: dict[str, pyarrow.Table], fix: FixDocument | None = None) -> bool:
        """Files first, the row last: a process killed in between leaves files that nobody lists."""
        try:
            self._artefacts.write(document.run.id, tables)
        except FileExistsError:
            return False
        rows: list[Base] = [_row(document, list(tables)), *([_fix_row(fix)] if fix else [])]
        stored = False
        try:
            stored = self._add_rows(rows)
        finally:
            if not stored:
                self._artefacts.delete(document.run.id)
        return stored

    def _add_rows(self, rows: Sequence[Base]) -> bool:
        """All in one transaction; False where an id is taken: that row is not touched."""
        try:
            with writing(self._engine.connect()) as connection, Session(connection) as session, session.begin():
                session.add_all(rows)
        except IntegrityError:
            return False
        return True

    def _sweep(self) -> None:
        with Session(self._engine) as session:
            self._artefacts.sweep(set(session.scalars(select(RunRow.id))))

    def _resolve(self, ref: str) -> str:
        runs = self.list_runs()
        if not runs:
            raise AuditError(f"{self.location.label} holds no audits yet; make one with: fusion-audit run script.py")
        found = _matches(ref, runs)
        if len(found) == 1:
            return found[0]
        if found:
            raise AuditError(f"{ref!r} is the start of {len(found)} runs ({_some(found)}); write more of the id")
        raise AuditError(f"no run {ref!r}; there are: {_some([_label(run) for run in runs])}")


def _prepare_file(file: Path, create: bool) -> None:
    if file.is_dir():
        raise AuditError(f"{file} is a folder, a database file was expected")
    if file.exists():
        return
    if file.parent.is_file():
        raise AuditError(
            f"{file.parent} is a file and not a store; --db takes a folder, a database file "
            "(.db, .sqlite or .sqlite3) or a URL"
        )
    if not create:
        raise AuditError(f"no audits are stored in {file.parent}; make one with: fusion-audit run script.py")
    new_folder = not file.parent.exists()
    file.parent.mkdir(parents=True, exist_ok=True)
    if new_folder:  # results don't belong into the user's repository
        (file.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    file.touch()


def _matches(ref: str, runs: list[RunSummary]) -> list[str]:
    """Ids that ``ref`` can mean; ``runs`` are the newest first."""
    if ref == "latest":
        return [runs[0].id]
    for exact in ([run.id for run in runs if run.id == ref], [run.id for run in runs if run.name == ref]):
        if exact:
            return exact[:1]
    return [run.id for run in runs if ref and run.id.startswith(ref)]


def _label(run: RunSummary) -> str:
    return f"{run.id} ({run.name})" if run.name else run.id


def _some(items: list[str], limit: int = 5) -> str:
    more = f", and {len(items) - limit} more" if len(items) > limit else ""
    return ", ".join(items[:limit]) + more


def _row(document: Document, tables: list[str]) -> RunRow:
    run, totals = document.run, document.totals
    return RunRow(
        id=run.id, name=run.name[:255], source=run.source, created=run.created, script=run.script,
        device=run.device.name[:255], exit_code=run.exit_code, findings=len(document.findings),
        kernels=totals.kernels, unfused_kernels=totals.unfused_kernels, avoidable_kernels=totals.avoidable_kernels,
        step_us=totals.step_us, step_saving_us=totals.saving.step_us, artefacts=tables,
        document=msgspec.json.encode(document).decode(),
    )  # fmt: skip


def _fix_row(fix: FixDocument) -> FixRow:
    return FixRow(
        id=new_id(), run=fix.run, after_run=fix.after_run, created=fix.created,
        kept=sum(site.state == "kept" for site in fix.sites), predicted_us=fix.predicted_us,
        measured_us=fix.measured_us, document=msgspec.json.encode(fix).decode(),
    )  # fmt: skip


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _decode(text: str, kind: type[_Stored], schema: str, name: str, again: str) -> _Stored:
    """The stored document ``name``; ``again`` says how to get another where it can't be read."""
    try:
        document = msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise AuditError(f"{name} can't be read ({error}); {again}") from error
    if document.schema != schema:
        raise AuditError(f"{name} has schema {document.schema!r}, this version reads {schema!r}")
    return document
