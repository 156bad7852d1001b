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
import math
import re
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeVar

import msgspec

from auditor.document import SCHEMA, Document
from auditor.errors import AuditError
from auditor.fix_document import SCHEMA as FIX_SCHEMA
from auditor.fix_document import FixDocument
from auditor.store.ids import is_id

if TYPE_CHECKING:
    import pyarrow

    from auditor.store.store import Store

_MEMBER = re.compile(r"^(document\.json|fixes/\d{4}\.json|tables/(ops|values|kernels)\.parquet)$")
_MOST_MEMBERS = 1000
_MOST_JSON_BYTES = 256_000_000
_MOST_TABLE_BYTES = 8_000_000_000
"""Of one table in memory, as its file declares it."""
_INT32 = 2**31 - 1
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
        with tarfile.open(path, "r:") as archive:
            for number, member in enumerate(archive):
                data = _checked_member(archive, member, number)
                if member.name == "document.json":
                    document = _decode(data, Document, SCHEMA, member.name)
                elif member.name.startswith("fixes/"):
                    fixes[member.name] = _decode(data, FixDocument, FIX_SCHEMA, member.name)
                else:
                    tables[member.name[len("tables/") : -len(".parquet")]] = _table(data, member.name)
    except (tarfile.TarError, EOFError) as error:
        raise AuditError(f"the upload is no bundle of a run ({error}); make one with: fusion-audit push") from None
    if document is None:
        raise AuditError("the bundle has no document.json; make one with: fusion-audit push")
    _check_document(document)
    _check_fixes(document, list(fixes.values()))
    return Bundle(document, [fixes[name] for name in sorted(fixes)], tables)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def _checked_member(archive: tarfile.TarFile, member: tarfile.TarInfo, number: int) -> bytes:
    if not member.isreg() or not _MEMBER.match(member.name) or number >= _MOST_MEMBERS:
        raise AuditError(
            f"the bundle holds {member.name!r}, which is no part of a run; make one with: fusion-audit push"
        )
    if member.name.endswith(".json") and member.size > _MOST_JSON_BYTES:
        raise AuditError(f"the bundle's {member.name} is larger than {_MOST_JSON_BYTES:,} bytes")
    file = archive.extractfile(member)
    assert file is not None
    data = file.read()
    if len(data) != member.size:
        raise AuditError(f"the bundle ends inside of {member.name}; send it again")
    return data


def _decode(data: bytes, kind: type[_Kind], schema: str, name: str) -> _Kind:
    try:
        found = msgspec.json.decode(data, type=kind)
        msgspec.json.encode(found).decode()
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise AuditError(f"the bundle's {name} can't be read: {error}") from None
    if found.schema != schema:
        raise AuditError(f"the bundle's {name} has schema {found.schema!r}, this version reads {schema!r}")
    return found


def _table(data: bytes, name: str) -> pyarrow.Table:
    import pyarrow.parquet

    from auditor.graph.tables import SCHEMAS

    try:
        with pyarrow.parquet.ParquetFile(io.BytesIO(data), pre_buffer=False) as parquet:
            wanted = SCHEMAS[name[len("tables/") : -len(".parquet")]]
            if not parquet.schema_arrow.equals(wanted):
                raise AuditError(f"the bundle's {name} has other columns than this version reads")
            meta = parquet.metadata
            held = sum(meta.row_group(i).total_byte_size for i in range(meta.num_row_groups))
            if held > _MOST_TABLE_BYTES:
                raise AuditError(f"the bundle's {name} needs {held:,} bytes of memory, more than can be read here")
            return parquet.read(use_threads=False)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise AuditError(f"the bundle's {name} can't be read: {' '.join(str(error).split())}") from None


def _check_document(document: Document) -> None:
    run, totals = document.run, document.totals
    counts = (totals.kernels, totals.unfused_kernels, totals.avoidable_kernels, run.exit_code)
    times = (totals.step_us, totals.saving.step_us, totals.memory_bound_us, totals.device_us, totals.saving.likely_us)
    if not is_id(run.id) or (run.patched_from and not is_id(run.patched_from)):
        raise AuditError("the bundle's document names no run by an id; make one with: fusion-audit push")
    if run.source not in ("profile", "trace", "simulation"):
        raise AuditError(f"the bundle's document has the source {run.source!r}; expected profile, trace or simulation")
    if not all(-_INT32 <= number <= _INT32 for number in counts) or not all(map(math.isfinite, times)):
        raise AuditError("the bundle's document has totals that can't be stored")
    if len(run.created) > 40 or not run.created.isascii() or not run.created.isprintable():
        raise AuditError("the bundle's document has no time of creation that can be read")


def _check_fixes(document: Document, fixes: list[FixDocument]) -> None:
    for fix in fixes:
        times = (fix.predicted_us, fix.measured_us)
        wrong = fix.run != document.run.id or (fix.after_run and not is_id(fix.after_run))
        if wrong or not all(map(math.isfinite, times)) or len(fix.created) > 40 or not fix.created.isprintable():
            raise AuditError("the bundle holds a fix that is none of its run; make one with: fusion-audit push")
