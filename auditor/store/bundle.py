"""One run as one file, to be carried to another store: its document, its fixes and its tables in a tar archive.

=============================  ==================================================
``document.json``              the audit document
``fixes/0000.json`` …          its fix documents, the oldest first
``tables/<name>.parquet`` …    its bulk tables
=============================  ==================================================

A bundle may come from anybody: what is in it is read by these names only, and nothing is unpacked by name.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from auditor.document import SCHEMA, Document
from auditor.errors import AuditError
from auditor.fix_document import SCHEMA as FIX_SCHEMA
from auditor.fix_document import FixDocument
from auditor.store import rank_tables
from auditor.store.bounds import check_numbers, check_ranks
from auditor.store.ids import is_id
from auditor.store.rank_tables import documents, table_of

if TYPE_CHECKING:
    import pyarrow

    from auditor.store.store import Store

_MEMBER = re.compile(
    r"^(document\.json|fixes/[0-9]{4}\.json|tables/ranks\.parquet|tables/(rank(0|[1-9][0-9]{0,5})_)?(ops|values|kernels|host)\.parquet)$"
)
_MOST_MEMBERS = 10_000
_MOST_JSON_BYTES = 512_000_000
_MOST_TABLE_BYTES = 8_000_000_000
"""Of all tables in memory."""
_BATCH_ROWS = 4096
_INT32 = 2**31 - 1
_MOST_RANKS = 1_000_000
_Kind = TypeVar("_Kind", Document, FixDocument)


@dataclass
class Bundle:
    """What is in a bundle."""

    document: Document
    fixes: list[FixDocument]
    tables: dict[str, pyarrow.Table]


def write_bundle(store: Store, ref: str, file: IO[bytes]) -> str:
    """Write the run that ``ref`` names into ``file``. Returns its id."""
    import pyarrow.parquet

    run = store.load(ref)
    with tarfile.open(fileobj=file, mode="w") as archive:
        _add(archive, "document.json", msgspec.json.encode(run.document))
        for number, fix in enumerate(store.fixes(run.id)):
            _add(archive, f"fixes/{number:04}.json", msgspec.json.encode(fix))
        for name in run.table_names:
            data = io.BytesIO()
            pyarrow.parquet.write_table(run.table(name), data, compression="zstd")
            _add(archive, f"tables/{name}.parquet", data.getvalue())
    return run.id


def read_bundle(path: Path) -> Bundle:
    """The run in the file ``path``.

    Raises:
        AuditError: it is no bundle, or what it holds is no run that a store can keep.
    """
    document: Document | None = None
    fixes: dict[str, FixDocument] = {}
    tables: dict[str, pyarrow.Table] = {}
    try:
        for name, data in _members(path):
            if name == "document.json":
                document = _decode(data, Document, SCHEMA, name)
            elif name.startswith("fixes/"):
                fixes[name] = _decode(data, FixDocument, FIX_SCHEMA, name)
            else:
                room = _MOST_TABLE_BYTES - sum(table.nbytes for table in tables.values())
                tables[name[len("tables/") : -len(".parquet")]] = _table(data, name, room)
    except (tarfile.TarError, EOFError) as error:
        raise AuditError(f"the upload is no bundle of a run ({error}); make one with: fusion-audit push") from None
    if document is None:
        raise AuditError("the bundle has no document.json; make one with: fusion-audit push")
    _check_document(document)
    _check_fixes(document, list(fixes.values()))
    others = _other_ranks(document, tables)
    _check_ops(document, others, tables)
    return Bundle(document, [fixes[name] for name in sorted(fixes)], tables)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of what the archive holds.

    Headers are read one by one, and only those that we write: others (long names, sparse files) have a reader take
    memory that no byte of the file stands for.
    """
    nbytes, json_bytes, seen = path.stat().st_size, 0, set[str]()
    with path.open("rb") as file:
        while True:
            header = file.read(tarfile.BLOCKSIZE)
            if header == bytes(tarfile.BLOCKSIZE):
                return
            if len(header) < tarfile.BLOCKSIZE:
                raise EOFError("it breaks off")
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            _check_member(member, seen)
            if not 0 <= member.size <= nbytes - file.tell():
                raise AuditError(f"the bundle ends inside of {member.name}; send it again")
            json_bytes += member.size if member.name.endswith(".json") else 0
            if json_bytes > _MOST_JSON_BYTES:
                raise AuditError(f"the documents in the bundle are larger than {_MOST_JSON_BYTES:,} bytes")
            seen.add(member.name)
            yield member.name, file.read(member.size)
            file.seek(-member.size % tarfile.BLOCKSIZE, io.SEEK_CUR)


def _check_member(member: tarfile.TarInfo, seen: set[str]) -> None:
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or not _MEMBER.fullmatch(member.name):
        raise AuditError(
            f"the bundle holds {member.name!r}, which is no part of a run; make one with: fusion-audit push"
        )
    if member.name in seen or len(seen) >= _MOST_MEMBERS:
        raise AuditError(f"the bundle holds {member.name} twice, or too much; make one with: fusion-audit push")


def _decode(data: bytes, kind: type[_Kind], schema: str, name: str) -> _Kind:
    try:
        found = msgspec.json.decode(data, type=kind)
        msgspec.json.encode(found).decode()
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise AuditError(f"the bundle's {name} can't be read: {error}") from None
    if found.schema != schema:
        raise AuditError(f"the bundle's {name} has schema {found.schema!r}, this version reads {schema!r}")
    return found


def _table(data: bytes, name: str, room: int) -> pyarrow.Table:
    import pyarrow.parquet

    expected = _schema(name[len("tables/") : -len(".parquet")])
    try:
        with pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False) as parquet:
            schema = parquet.schema_arrow
            if not schema.equals(expected):
                raise AuditError(f"the bundle's {name} has other columns than this version reads")
            meta = parquet.metadata
            groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
            values = sum(group.column(i).num_values for group in groups for i in range(group.num_columns))
            _check_room(max(sum(group.total_byte_size for group in groups), values), room, name)
            batches, held = [], 0
            for batch in parquet.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                held += batch.nbytes  # what a file declares may be less: repeated values take next to no room in it
                _check_room(held, room, name)
                batches.append(batch)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise AuditError(f"the bundle's {name} can't be read: {' '.join(str(error).split())}") from None
    if not batches:
        return schema.empty_table()
    return pyarrow.Table.from_batches(batches).replace_schema_metadata(schema.metadata)


def _schema(table: str) -> pyarrow.Schema:
    from auditor.graph.tables import HOST, SCHEMAS

    return rank_tables.schema() if table == rank_tables.TABLE else {**SCHEMAS, "host": HOST}[table_of(table)[1]]


def _check_room(needed: int, room: int, name: str) -> None:
    if needed > room:
        raise AuditError(f"the bundle's {name} needs {needed:,} bytes of memory, more than can be read here")


def _other_ranks(document: Document, tables: dict[str, pyarrow.Table]) -> dict[int, Document]:
    """The documents of the other ranks, as far to be trusted as that of the run."""
    found = documents(tables[rank_tables.TABLE]) if rank_tables.TABLE in tables else {}
    run = document.run
    for rank, other in found.items():
        if rank == run.rank or rank >= run.world_size:
            whose = "the run's own" if rank == run.rank else f"none of its {run.world_size}"
            raise AuditError(f"the bundle's table of ranks has a rank {rank}, which is {whose}; record the run again")
        try:
            msgspec.json.encode(other).decode()
        except (ValueError, OverflowError, RecursionError) as error:
            raise AuditError(f"the document of rank {rank} can't be read: {error}") from None
        check_numbers(other, f"the document of rank {rank}")
        check_ranks(other, f"the document of rank {rank}", _MOST_RANKS)
    return found


def _check_document(document: Document) -> None:
    run, totals = document.run, document.totals
    counts = (totals.kernels, totals.unfused_kernels, totals.avoidable_kernels, run.exit_code)
    if not is_id(run.id) or (run.patched_from and not is_id(run.patched_from)):
        raise AuditError("the bundle's document names no run by an id; make one with: fusion-audit push")
    if run.source not in ("profile", "trace", "simulation"):
        raise AuditError(f"the bundle's document has the source {run.source!r}; expected profile, trace or simulation")
    if not all(-_INT32 <= number <= _INT32 for number in counts):
        raise AuditError("the bundle's document has totals that can't be stored")
    check_numbers(document, "the bundle's document")
    check_ranks(document, "the bundle's document", _MOST_RANKS)
    if not _is_moment(run.created):
        raise AuditError("the bundle's document has no time of creation that can be read")


def _check_fixes(document: Document, fixes: list[FixDocument]) -> None:
    for fix in fixes:
        wrong = fix.run != document.run.id or (fix.after_run and not is_id(fix.after_run))
        if wrong or not _is_moment(fix.created):
            raise AuditError("the bundle holds a fix that is none of its run; make one with: fusion-audit push")
        check_numbers(fix, "a fix in the bundle")


def _is_moment(text: str) -> bool:
    """Whether it is a time of ISO 8601 that UTC has, too, or none at all."""
    if len(text) > 40 or not text.isascii() or not text.isprintable():
        return False
    try:
        return not text or bool(datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc))
    except (ValueError, OverflowError):
        return False


def _check_ops(document: Document, others: dict[int, Document], tables: dict[str, pyarrow.Table]) -> None:
    """Sites and kernels name ops by their rows: a row that is not there would fail on every page of the run."""
    owned: dict[int | None, dict[str, pyarrow.Table]] = {}
    for name, table in tables.items():
        rank, kind = table_of(name)
        owned.setdefault(rank, {})[kind] = table
    for rank, held in owned.items():
        _check_ops_of(document if rank is None else others.get(rank), held)


def _check_ops_of(document: Document | None, tables: dict[str, pyarrow.Table]) -> None:
    import pyarrow.compute

    ops = tables["ops"].num_rows if "ops" in tables else 0
    for name in ("kernels", "host"):
        if name in tables:
            ends = pyarrow.compute.min_max(tables[name].column("op")).as_py()
            _check_rows([row for row in ends.values() if row is not None], ops, f"{name}.parquet")
    loose = tables["kernels"].column("op").null_count if "kernels" in tables else 0
    if "ops" in tables and document is not None:
        for finding in document.findings:
            for site in finding.places:
                _check_rows(site.ops, ops, "document.json")
                _check_rows(site.unlinked, loose, "document.json")


def _check_rows(rows: list[int], ops: int, name: str) -> None:
    if not all(0 <= row < ops for row in rows):
        raise AuditError(
            f"the bundle's {name} names an op or a kernel that its tables don't have; record the run again"
        )
