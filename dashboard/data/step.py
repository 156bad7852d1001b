"""Where the time of a step goes, as the report tells it, with kernels of no known op apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from auditor.document import Document
from auditor.graph.ops import is_memory_bound
from auditor.report.waterfall import Part, Waterfall, split
from dashboard.data.cache import CACHE
from dashboard.data.kernel_table import KernelTable, kernel_table
from dashboard.data.kinds import code
from dashboard.data.stored import head, run_id, store_label, with_ops
from dashboard.data.words import Words


def step_time(ref: str = "latest") -> Waterfall | None:
    """The parts of the step's time; ``None`` where nothing was timed. Loads the kernels: ask for it in a callback."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "step"), lambda: _Held(_of_run(run))).parts


@dataclass(frozen=True)
class _Held:
    parts: Waterfall | None
    nbytes: int = 5000


def _of_run(ref: str) -> Waterfall | None:
    run = head(ref)
    if not {"kernels", "ops"} <= set(run.table_names):
        return split(run.document, None)
    mixed = not all(is_memory_bound(op) for finding in run.document.findings for op in finding.ops)
    document = with_ops(ref).document if mixed else run.document  # only findings of several kinds need their ops
    return step_parts(document, kernel_table(run.id))


def step_parts(document: Document, table: KernelTable) -> Waterfall | None:
    """The same from a document and its kernels."""
    found = split(document, _Times(_OpTimes(table)))
    return None if found is None else _apart(found, table)


@dataclass(frozen=True)
class _OpTime:
    name: str
    dur_us: float


class _OpTimes(Sequence[_OpTime]):
    """Name and time of each op that launched kernels, by its row, from the columns of the kernels."""

    def __init__(self, table: KernelTable) -> None:
        linked = table.op >= 0
        ops = table.op[linked]
        self._dur: NDArray[np.float64] = np.bincount(ops, table.dur_us[linked]).astype(np.float64)
        self._names: Words = table.op_name
        self._name = np.zeros(len(self._dur), np.int64)
        self._name[ops] = table.op_name.codes[linked]

    def __len__(self) -> int:
        return len(self._dur)

    @overload
    def __getitem__(self, at: int) -> _OpTime: ...

    @overload
    def __getitem__(self, at: slice) -> list[_OpTime]: ...

    def __getitem__(self, at: int | slice) -> _OpTime | list[_OpTime]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        return _OpTime(self._names.words[int(self._name[at])], float(self._dur[at]))


@dataclass(frozen=True)
class _Times:
    ops: _OpTimes


def _apart(found: Waterfall, table: KernelTable) -> Waterfall:
    """Kernels of no known op as a part of its own, taken out of the compute-bound ones: the report can't tell them."""
    there = sum(part.us or 0.0 for part in found.parts if part.css == "compute")
    unknown = min(_us(table, table.kind.codes == code("unlinked")), there)
    if not unknown:
        return found
    parts = [replace(p, us=(p.us or 0.0) - unknown) if p.css == "compute" else p for p in found.parts]
    at = next((i for i, part in enumerate(parts) if part.css == "idle"), len(parts))
    return replace(found, parts=tuple(_placed([*parts[:at], Part("of no known op", "unlinked", unknown), *parts[at:]])))


def _placed(parts: list[Part]) -> list[Part]:
    """Each bar begins where the one before it ends; the first and the last are of the whole step."""
    placed, start = [], 0.0
    for part in parts:
        whole = part.css in ("whole", "after")
        placed.append(part if whole else replace(part, start_us=start))
        start += 0.0 if whole else part.us or 0.0
    return placed


def _us(table: KernelTable, chosen: NDArray[np.bool_]) -> float:
    return float(table.dur_us[chosen].sum())
