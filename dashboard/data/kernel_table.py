"""Every kernel of one run as columns: times, and codes into short lists of names. About 80 bytes a kernel."""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain

import numpy as np
import pandas  # noqa: F401 - pyarrow imports it at the first conversion: here, and not in somebody's first request
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from auditor.document import Document
from auditor.store import StoredRun
from dashboard.data.cache import CACHE
from dashboard.data.kinds import KINDS, kind_codes
from dashboard.data.stored import run_id, store_label, stored
from dashboard.data.words import Words, from_arrow, from_texts

__all__ = ["KernelTable", "Words", "kernel_table"]

_OP_COLUMNS = ("name", "module", "module_class", "source_file", "source_line", "phase")


@dataclass(frozen=True)
class KernelTable:
    """The kernels of one run, in the order of their start. A row's number is the id of its kernel in addresses."""

    run: str
    start_us: NDArray[np.float64]
    """From the start of the first kernel."""
    dur_us: NDArray[np.float64]
    stream: NDArray[np.int64]
    device: NDArray[np.int64]
    op: NDArray[np.int64]
    """Row of the run's table of ops; -1 where no op claims the kernel."""
    name: Words
    op_name: Words
    module: Words
    module_class: Words
    source: Words
    """``file:line``."""
    phase: Words
    kind: Words
    """One of :data:`dashboard.data.kinds.KINDS`, in that order."""
    rule: Words
    """Rule and name of its finding (``FUS201 unfused-rms-norm``); empty where it is in none."""
    fingerprint: Words
    """Of its finding."""

    def __len__(self) -> int:
        return len(self.start_us)

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self) if field.name != "run")


def kernel_table(ref: str = "latest") -> KernelTable:
    """The kernels of a run, loaded once. AuditError where there is no such run, or it has no table of kernels."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "kernels"), lambda: load_table(stored(run)))


def load_table(run: StoredRun) -> KernelTable:
    """The kernels of ``run``, read from its Parquet tables."""
    kernels = run.table("kernels", encoded=True)
    start = _numbers(kernels, "start_us", np.float64)
    order = np.argsort(start, kind="stable")
    op = _numbers(kernels, "op", np.int64, null=-1)[order]
    ops = run.table("ops", _OP_COLUMNS, encoded=True)
    name, op_name = from_arrow(kernels.column("name")).reordered(order), from_arrow(ops.column("name"))
    op_codes = np.append(op_name.codes, -1)[op].astype(np.int32)
    rule, fingerprint = _findings(run.document, len(ops))
    return KernelTable(
        run=run.id,
        start_us=start[order] - (start[order[0]] if len(order) else 0.0),
        dur_us=_numbers(kernels, "dur_us", np.float64)[order],
        stream=_numbers(kernels, "stream", np.int64)[order],
        device=_numbers(kernels, "device", np.int64)[order],
        op=op,
        name=name,
        op_name=op_name.reordered(op),
        module=from_arrow(ops.column("module")).reordered(op),
        module_class=from_arrow(ops.column("module_class")).reordered(op),
        source=_sources(ops).reordered(op),
        phase=from_arrow(ops.column("phase")).reordered(op),
        kind=Words(kind_codes(op_name.words, op_codes, name.words, name.codes), KINDS),
        rule=rule.reordered(op),
        fingerprint=fingerprint.reordered(op),
    )


def _numbers(table: pyarrow.Table, name: str, dtype: type[np.generic], null: float = 0) -> NDArray[np.generic]:
    column = table.column(name)
    if column.null_count:
        column = column.fill_null(null)
    return column.to_numpy().astype(dtype, copy=False)


def _sources(ops: pyarrow.Table) -> Words:
    """``file:line`` of each op, made once for each place."""
    file = from_arrow(ops.column("source_file"))
    line = _numbers(ops, "source_line", np.int64)
    places = pyarrow.array(file.codes.astype(np.int64) << 32 | line).dictionary_encode()
    texts = [(file.words[place >> 32], place & 0xFFFFFFFF) for place in places.dictionary.to_pylist()]
    codes = places.indices.to_numpy()
    return from_texts(codes, [f"{name}:{at}" if name else "" for name, at in texts])


def _findings(document: Document, ops: int) -> tuple[Words, Words]:
    """Rule and fingerprint of the finding that each op belongs to."""
    codes = np.zeros(ops, np.int32)
    for number, finding in enumerate(document.findings, 1):
        rows = np.fromiter(chain.from_iterable(site.ops for site in finding.places), np.int64)
        codes[rows[(rows >= 0) & (rows < ops)]] = number
    rules = ["", *(f"{finding.rule} {finding.name}" for finding in document.findings)]
    return from_texts(codes, rules), from_texts(codes, ["", *(f.fingerprint for f in document.findings)])
