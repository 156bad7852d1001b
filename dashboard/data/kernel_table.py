"""Every kernel of one run as columns: times, and codes into short lists of names. About 80 bytes a kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, count

import numpy as np
import pandas  # noqa: F401 - pyarrow imports it at the first conversion: here, and not in somebody's first request
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray

from auditor.document import Document
from auditor.store import StoredRun
from dashboard.data.cache import CACHE
from dashboard.data.kinds import KINDS, kind_codes
from dashboard.data.stored import run_id, store_label, with_ops
from dashboard.data.words import Words, from_arrow, from_texts

__all__ = ["KernelTable", "Words", "kernel_table"]

_OP_COLUMNS = ("name", "module", "module_class", "source_file", "source_line", "phase")


@dataclass(frozen=True, eq=False)
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
    serial: int = field(default_factory=count().__next__)
    """Tells this table from every other of the process."""

    def __len__(self) -> int:
        return len(self.start_us)

    @cached_property
    def dur_rank(self) -> NDArray[np.int64]:
        """Place of each kernel's time among the different times of all: sorts as they do, in fewer bits."""
        order = np.argsort(self.dur_us)
        times = self.dur_us[order]
        rank = np.empty(len(self), np.int64)
        rank[order] = np.cumsum(np.append(0, times[1:] > times[:-1])) if len(self) else 0
        return rank

    @property
    def nbytes(self) -> int:
        """With what it makes for itself later."""
        columns = (getattr(self, each.name) for each in fields(self) if each.name not in ("run", "serial"))
        return sum(int(column.nbytes) for column in columns) + 8 * len(self)


def noun(table: KernelTable, number: int) -> str:
    """What the rows are: a run's own count of kernels has no copies and fills by the copy engine in it."""
    if bool((table.kind.codes == KINDS.index("transfer")).any()):
        return "kernels and copies"
    return "kernel" if number == 1 else "kernels"


def kernel_table(ref: str = "latest") -> KernelTable:
    """The kernels of a run, loaded once. AuditError where there is no such run, or it has no table of kernels."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "kernels"), lambda: load_table(with_ops(run)))


def load_table(run: StoredRun) -> KernelTable:
    """The kernels of ``run``, read from its Parquet tables."""
    kernels = run.table("kernels", encoded=True)
    start = _floats(kernels, "start_us")
    order: NDArray[np.int64] = np.argsort(start, kind="stable")
    owner = _integers(kernels, "op", null=-1)
    op = owner[order]
    ops = run.table("ops", _OP_COLUMNS, encoded=True)
    name, op_name = from_arrow(kernels.column("name")).reordered(order), from_arrow(ops.column("name"))
    op_codes = np.append(op_name.codes, -1)[op].astype(np.int32)
    rule, fingerprint = _findings(run.document, owner, len(ops))
    return KernelTable(
        run=run.id,
        start_us=start[order] - (start[order[0]] if len(order) else 0.0),
        dur_us=_floats(kernels, "dur_us")[order],
        stream=_integers(kernels, "stream")[order],
        device=_integers(kernels, "device")[order],
        op=op,
        name=name,
        op_name=op_name.reordered(op),
        module=from_arrow(ops.column("module")).reordered(op),
        module_class=from_arrow(ops.column("module_class")).reordered(op),
        source=_sources(ops).reordered(op),
        phase=from_arrow(ops.column("phase")).reordered(op),
        kind=Words(kind_codes(op_name.words, op_codes, name.words, name.codes), KINDS),
        rule=rule.reordered(order),
        fingerprint=fingerprint.reordered(order),
    )


def _floats(table: pyarrow.Table, name: str) -> NDArray[np.float64]:
    return np.nan_to_num(np.asarray(table.column(name).fill_null(0.0).to_numpy(), np.float64))


def _integers(table: pyarrow.Table, name: str, null: int = 0) -> NDArray[np.int64]:
    return np.asarray(table.column(name).fill_null(null).to_numpy(), np.int64)


def _sources(ops: pyarrow.Table) -> Words:
    """``file:line`` of each op, made once for each place."""
    file = from_arrow(ops.column("source_file"))
    line = _integers(ops, "source_line")
    places = pyarrow.array(file.codes.astype(np.int64) << 32 | line).dictionary_encode()
    texts = [(file.words[place >> 32], place & 0xFFFFFFFF) for place in places.dictionary.to_pylist()]
    codes = places.indices.to_numpy()
    return from_texts(codes, [f"{name}:{at}" if name else "" for name, at in texts])


def _findings(document: Document, owner: NDArray[np.int64], ops: int) -> tuple[Words, Words]:
    """Rule and fingerprint of the finding that each kernel belongs to: by its op ``owner``, or where it has none, by
    its place among those without one.
    """
    loose = np.flatnonzero(owner < 0)
    of_op, codes = np.zeros(ops + 1, np.int32), np.zeros(len(owner), np.int32)
    for number, finding in enumerate(document.findings, 1):
        of_op[_rows((site.ops for site in finding.places), ops)] = number
        codes[loose[_rows((site.unlinked for site in finding.places), len(loose))]] = number
    codes = np.where(owner < 0, codes, of_op[owner])
    rules = ["", *(f"{finding.rule} {finding.name}" for finding in document.findings)]
    return from_texts(codes, rules), from_texts(codes, ["", *(f.fingerprint for f in document.findings)])


def _rows(held: Iterable[list[int]], size: int) -> NDArray[np.int64]:
    """All of ``held`` that a table of ``size`` rows has."""
    rows = np.fromiter(chain.from_iterable(held), np.int64)
    return rows[(rows >= 0) & (rows < size)]
