"""The other ranks of a run in its store: documents in the table ``ranks``, op tables under names of their own.

============================  ====================================================================
``ranks``                     one row for each rank but the one that the run's document is of: its
                              number, and its document as JSON
``rank3_ops`` …               the op tables of rank 3
============================  ====================================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from auditor.document import SCHEMA, Document
from auditor.errors import AuditError

if TYPE_CHECKING:
    import pyarrow

    from auditor.store.store import StoredRun

TABLE = "ranks"
_OF_RANK = re.compile(r"rank(\d+)_(\w+)")


def schema() -> pyarrow.Schema:
    """Of the table of documents."""
    import pyarrow as pa

    return pa.schema([("rank", pa.int64()), ("document", pa.string())])


def with_ranks(
    tables: dict[str, pyarrow.Table], others: Mapping[int, tuple[Document, dict[str, pyarrow.Table]]]
) -> dict[str, pyarrow.Table]:
    """``tables`` of a run with those of its other ranks."""
    import pyarrow as pa

    if not others:
        return tables
    texts = [msgspec.json.encode(document).decode() for document, _ in others.values()]
    made = {**tables, TABLE: pa.Table.from_arrays([list(others), texts], schema=schema())}
    for rank, (_, owned) in others.items():
        made |= {f"rank{rank}_{name}": table for name, table in owned.items()}
    return made


def table_of(name: str) -> tuple[int | None, str]:
    """The rank that a table of a run is of, and what the table is; no rank: the one of the run's document."""
    match = _OF_RANK.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def documents(table: pyarrow.Table) -> dict[int, Document]:
    """The documents of the other ranks, by rank.

    Raises:
        AuditError: one of them can't be read, or is of no rank, or there twice.
    """
    found: dict[int, Document] = {}
    for rank, text in zip(*(table.column(name).to_pylist() for name in ("rank", "document")), strict=True):
        if rank is None or rank < 0 or rank in found:
            raise AuditError(f"the table of ranks has rank {rank} twice, or it is none; record the run again")
        try:
            document = msgspec.json.decode(text, type=Document)
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise AuditError(f"the document of rank {rank} can't be read ({error}); record the run again") from None
        if document.schema != SCHEMA:
            raise AuditError(
                f"the document of rank {rank} has schema {document.schema!r}, this version reads {SCHEMA!r}"
            )
        found[rank] = document
    return found


def rank_of(run: StoredRun, rank: int) -> tuple[Document, Callable[[], dict[str, pyarrow.Table]]]:
    """Document of one rank of ``run``, and what reads its op tables.

    Raises:
        AuditError: the run has no such rank, or nothing was recorded of it.
    """
    whole = run.document
    if rank == whole.run.rank:
        return whole, lambda: run.tables
    if not 0 <= rank < whole.run.world_size:
        has = f"it has ranks 0 to {whole.run.world_size - 1}" if whole.ranks else "it is of one process"
        raise AuditError(f"run {run.id} has no rank {rank}: {has}")
    found = documents(run.table(TABLE)) if TABLE in run.table_names else {}
    if rank not in found:
        why = next((each.reason for each in whole.ranks if each.rank == rank), "")
        raise AuditError(f"run {run.id} holds nothing of rank {rank}{f': {why}' if why else ''}")
    document = found[rank]
    document.run.id, document.run.created = run.id, whole.run.created
    document.run.world_size, document.run.rank = whole.run.world_size, rank
    owned = {name: table_of(name) for name in run.table_names}
    return document, lambda: {kind: run.table(name) for name, (of, kind) in owned.items() if of == rank}
