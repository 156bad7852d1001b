"""The store: save, list, load and delete audits and fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TypeVar

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
from auditor.store.failures import Missing, Unavailable, readable
from auditor.store.ids import new_id
from auditor.store.jobs import JobTable
from auditor.store.listing import RunFilter, RunSummary, count, distinct, summaries, summary
from auditor.store.location import Location, locate
from auditor.store.machine import machine_id
from auditor.store.models import Base, FixRow, RegistrationRow, RunRow
from auditor.store.rank_tables import TABLE as RANKS
from auditor.store.rank_tables import table_of
from auditor.store.references import resolve
from auditor.store.registrations import RegistrationTable, registration_row
from auditor.store.rows import fix_row, run_row
from auditor.store.rule_settings import RuleSettingTable
from auditor.store.schema import bring_up_to_date
from auditor.store.tokens import TokenTable
from auditor.store.uploads import UploadTable

if TYPE_CHECKING:
    import pyarrow

_Stored = TypeVar("_Stored", bound=Document | FixDocument)
_TRIES = 8  # ids to try; two equal ones in a row are already a chance of 1 in 10^9


@dataclass
class StoredRun:
    """One stored audit. Tables are read from disk when asked for."""

    id: str
    name: str
    document: Document
    table_names: tuple[str, ...]
    _artefacts: Artefacts = field(repr=False)

    def table(self, name: str, columns: Sequence[str] | None = None, *, encoded: bool = False) -> pyarrow.Table:
        """One table, or those of its columns that are named: a million ops are mostly their arguments.

        ``encoded``: texts as Arrow dictionaries, several times faster where few are different.

        Raises:
            AuditError: the run has no such table or column, or its file can't be read.
        """
        if name not in self.table_names:
            raise AuditError(f"run {self.id} has no table {name!r}; it has: {', '.join(self.table_names) or 'none'}")
        return self._artefacts.read(self.id, name, columns, encoded=encoded)

    @cached_property
    def tables(self) -> dict[str, pyarrow.Table]:
        """The op tables of the rank that the document is of; see :mod:`auditor.store.rank_tables` for other ranks."""
        return {name: self.table(name) for name in self.table_names if table_of(name)[0] is None and name != RANKS}


class Store(AbstractContextManager["Store"]):
    """Audits in one database. Several processes may use one at the same time."""

    def __init__(self, location: Location, engine: Engine, artefacts: Artefacts) -> None:
        self.location = location
        self._engine = engine
        self._artefacts = artefacts
        self.jobs = JobTable(engine, location.label)
        self.registrations = RegistrationTable(engine, location.label)
        self.tokens = TokenTable(engine, location.label)
        self.uploads = UploadTable(engine, location.label)
        self.rule_settings = RuleSettingTable(engine, location.label)

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

    def put(self, document: Document, tables: dict[str, pyarrow.Table], fixes: Sequence[FixDocument] = ()) -> bool:
        """Store an audit that another store made, with its fixes, under the id that it has there.

        Returns False, and changes nothing, where that id is taken.

        Raises:
            Unavailable: another process is about to store a run of that id, or was killed at that a moment ago.
        """
        run = document.run.id
        with readable(self.location.label):
            if self._try_save(document, tables, fixes):
                return True
            if self._has(run):
                return False
            if not self._artefacts.is_abandoned(run):
                raise Unavailable(f"run {run} is being stored by another process; try again in two minutes")
            self._artefacts.delete(run)
            return self._try_save(document, tables, fixes)

    def put_fixes(self, run: str, fixes: Sequence[FixDocument]) -> int:
        """Store the fixes of ``run`` that are not there yet. Returns how many that were."""
        known = {msgspec.json.encode(fix) for fix in self.fixes(run)}
        new = [fix for fix in fixes if msgspec.json.encode(fix) not in known]
        with readable(self.location.label):
            self._add_rows([fix_row(fix) for fix in new])
        return len(new)

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
        run = self.resolve(ref)
        newest = select(FixRow.document).where(or_(FixRow.run == run, FixRow.after_run == run))
        with self._reading() as session:
            text = session.execute(newest.order_by(FixRow.id.desc())).scalars().first()
        if text is None:
            raise Missing(f"no fix of run {run} is stored; make one with: fusion-audit fix {run}")
        name = f"{self.location.label}: the fix of run {run}"
        return _decode(text, FixDocument, FIX_SCHEMA, name, "make it again")

    def list_runs(
        self, found: RunFilter | None = None, *, sort: str = "created", descending: bool = True,
        limit: int | None = None, offset: int = 0,
    ) -> list[RunSummary]:  # fmt: skip
        """The stored runs that are wanted, the newest first unless sorted by another column (see ``COLUMNS``)."""
        with self._reading() as session:
            return summaries(
                session, found or RunFilter(), sort=sort, descending=descending, limit=limit, offset=offset
            )

    def count_runs(self, found: RunFilter | None = None) -> int:
        with self._reading() as session:
            return count(session, found or RunFilter())

    def summary(self, ref: str = "latest") -> RunSummary:
        """The line of one run."""
        with self._reading() as session:
            return summary(session, resolve(session, ref, self.location.label))

    def values_of(self, column: Literal["name", "project", "source", "device"]) -> list[str]:
        """The names, projects, sources or devices that the stored runs have, in order."""
        with self._reading() as session:
            return distinct(session, column)

    def resolve(self, ref: str = "latest") -> str:
        """The id of the run that ``ref`` names. Raises :class:`Missing` where none is meant."""
        with self._reading() as session:
            return resolve(session, ref, self.location.label)

    def document_text(self, ref: str = "latest") -> str:
        """The audit document of a run as it is stored, in JSON."""
        with self._reading() as session:
            run = resolve(session, ref, self.location.label)
            return session.execute(select(RunRow.document).where(RunRow.id == run)).scalar_one()

    def table_names(self, ref: str = "latest") -> tuple[str, ...]:
        with self._reading() as session:
            run = resolve(session, ref, self.location.label)
            return tuple(session.execute(select(RunRow.artefacts).where(RunRow.id == run)).scalar_one())

    def fixes(self, ref: str) -> list[FixDocument]:
        """Every fix of a run, the oldest first."""
        run = self.resolve(ref)
        with self._reading() as session:
            texts = session.scalars(select(FixRow.document).where(FixRow.run == run).order_by(FixRow.id)).all()
        name = f"{self.location.label}: a fix of run {run}"
        return [_decode(text, FixDocument, FIX_SCHEMA, name, "make it again") for text in texts]

    def load(self, ref: str = "latest", kind: type[Document] = Document) -> StoredRun:
        """The run that ``ref`` names: ``latest``, an id, a name (its newest run) or the unique start of an id.

        ``kind`` may leave out parts of the document that the caller does not need: a large run has 100,000 sites.
        """
        run = self.resolve(ref)
        with self._reading() as session:
            row = session.get(RunRow, run)
            if row is None:
                raise Missing(f"{self.location.label}: run {run} was deleted meanwhile")
            text, name, names = row.document, row.name, tuple(row.artefacts)
        what = f"{self.location.label}: the document of run {run}"
        document = _decode(text, kind, SCHEMA, what, "record the run again")
        return StoredRun(run, name, document, names, self._artefacts)

    def delete(self, ref: str) -> str:
        """Remove a run, its fixes and registrations: first the rows, then its files. Returns its id."""
        run = self.resolve(ref)
        with readable(self.location.label):
            with writing(self._engine.connect()) as connection, connection.begin():
                connection.execute(delete(RunRow).where(RunRow.id == run))
                connection.execute(delete(FixRow).where(FixRow.run == run))
                connection.execute(delete(RegistrationRow).where(RegistrationRow.run == run))
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
            return self._add_rows([fix_row(fix)])
        document, tables = after
        document.run.created = document.run.created or _now()
        document.run.id = fix.after_run = new_id()
        document.run.patched_from = fix.run
        document.run.project = document.run.project or self._project(fix.run)
        return self._try_save(document, tables, [fix], self._registered_as(fix.run, fix.after_run))

    def _registered_as(self, fixed: str, after: str) -> list[Base]:
        """The audit after a fix that is made here is this machine's own, as the run that was fixed."""
        known = self.registrations.get(fixed, machine_id())
        return [registration_row(replace(known, run=after, created=""))] if known else []

    def _project(self, run: str) -> str:
        with self._reading() as session:
            return session.execute(select(RunRow.project).where(RunRow.id == run)).scalar() or ""

    def _try_save(
        self, document: Document, tables: dict[str, pyarrow.Table], fixes: Sequence[FixDocument] = (),
        more: Sequence[Base] = (),
    ) -> bool:  # fmt: skip
        """Files first, the row last: a process killed in between leaves files that nobody lists."""
        try:
            self._artefacts.write(document.run.id, tables)
        except FileExistsError:
            return False
        rows: list[Base] = [run_row(document, list(tables)), *map(fix_row, fixes), *more]
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

    def _has(self, run: str) -> bool:
        with Session(self._engine) as session:
            return session.get(RunRow, run) is not None

    def _sweep(self) -> None:
        with Session(self._engine) as session:
            self._artefacts.sweep(set(session.scalars(select(RunRow.id))))

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with readable(self.location.label), Session(self._engine) as session:
            yield session


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
