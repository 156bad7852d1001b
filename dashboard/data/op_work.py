"""Bytes and arithmetic of every op, estimated from its shapes: what a roofline is drawn from.

Bytes are those of :mod:`auditor.graph.traffic`, with columns instead of objects. Arithmetic, in FLOP:

============================ =====================================================================================
matrix product               2 · results · summed dimension
convolution                  2 · results · weights of one output channel; its backward twice that
attention                    4 · elements of q · keys (no mask taken off); its backward 2.5 times that
pointwise                    1 for each result
reduction                    1 for each element read
norm, softmax                5 for each element
============================ =====================================================================================

Other ops (copies, gathers, random numbers) count none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from auditor.graph.ops import base_name, kind_of, reads_shape_only
from auditor.store import StoredRun
from dashboard.data.cache import CACHE
from dashboard.data.op_columns import Ints, Lists, Uses, Values, lists, reads, rows_of, values_of
from dashboard.data.stored import head, run_id, store_label
from dashboard.data.words import Words, from_arrow

Floats = NDArray[np.float64]

_NORM_FLOPS = 5.0
_WITH_BIAS = frozenset({"aten.addmm", "aten.baddbmm", "aten.addmv", "aten.addbmm", "aten._addmm_activation"})
"""Their factors are the second and third tensor."""
_PURE_WRITES = frozenset({"aten.copy", "aten.fill", "aten.zero"})


@dataclass(frozen=True)
class OpWork:
    """By row of the run's table of ops. ``dtype`` is that of the first result."""

    bytes: Floats
    flops: Floats
    dtype: Words

    @property
    def nbytes(self) -> int:
        return int(self.bytes.nbytes + self.flops.nbytes) + self.dtype.nbytes


def op_work(ref: str = "latest") -> OpWork:
    """The work of a run's ops, estimated once. AuditError where it has no tables of ops and values."""
    run = run_id(ref)
    return CACHE.get((store_label(), run, "work"), lambda: load_work(head(run)))


def load_work(run: StoredRun) -> OpWork:
    """The work of the ops of ``run``, from its Parquet tables."""
    ops = run.table("ops", ("name", "args", "outputs", "mutates"))
    table = run.table("values", ("id", "dtype", "shape", "strides", "offset", "base"))
    values, ids = values_of(table), np.asarray(table.column("id"))
    read = reads(ops.column("args"), ids)
    made, changed = (_uses(lists(ops.column(name)), ids) for name in ("outputs", "mutates"))
    name = from_arrow(ops.column("name"))
    size = len(ops)
    first = _first(made, size)
    dtype = from_arrow(table.column("dtype")).reordered(first)
    return OpWork(_bytes(name, read, made, changed, values), _flops(name, read, made, values), dtype)


def _uses(column: Lists, ids: Ints) -> Uses:
    op = np.repeat(np.arange(len(column.starts) - 1), column.sizes())
    row = rows_of(ids, column.flat)
    return Uses(op[row >= 0], row[row >= 0])


def _bytes(name: Words, read: Uses, made: Uses, changed: Uses, values: Values) -> Floats:
    """What each op reads and writes, each part of a content once (see ``traffic_of``)."""
    size = len(name.codes)
    shape_only, rows, sources, pure = (
        _of_names(name, test) for test in (reads_shape_only, _is_kind("gather"), _is_kind("random"), _writes)
    )
    owned = ~values.is_view[made.value]
    written = _sum(made.op[owned], values.nbytes[made.value[owned]], size)
    in_place = np.zeros(size, bool)
    in_place[changed.op] = True
    direct = _is_changed(read, changed, values)
    target = _distinct(Uses(read.op[direct], read.value[direct]), values)
    overwritten = _sum(target.op, values.nbytes[target.value], size)
    written = np.where(in_place & (overwritten > 0), overwritten, written)
    first = _first(read, size)
    table_of = np.where(rows & (first >= 0), values.nbytes[first], 0) if len(values.nbytes) else np.zeros(size)
    skipped = (direct & (sources | pure)[read.op]) | (rows[read.op] & (read.value == first[read.op]))
    kept = _distinct(Uses(read.op[~skipped], read.value[~skipped]), values)
    taken = _sum(kept.op, values.nbytes[kept.value], size) + np.minimum(table_of, np.maximum(written, 1.0))
    return np.where(shape_only, 0.0, taken) + written


def _is_changed(read: Uses, changed: Uses, values: Values) -> NDArray[np.bool_]:
    """Whether each value read belongs to a content that the op overwrites."""
    size = len(values.owner) + 1
    keys = np.unique(changed.op * size + values.owner[changed.value]) if len(changed.op) else np.zeros(0, np.int64)
    return np.isin(read.op * size + values.owner[read.value], keys) if len(keys) else np.zeros(len(read.op), bool)


def _distinct(uses: Uses, values: Values) -> Uses:
    """Each op's values, one for each part of a content."""
    keys = uses.op * (int(values.region.max(initial=0)) + 1) + values.region[uses.value]
    order = np.argsort(keys)
    kept = order[np.append(True, np.diff(keys[order]) != 0)] if len(order) else order
    return Uses(uses.op[kept], uses.value[kept])


def _flops(name: Words, read: Uses, made: Uses, values: Values) -> Floats:
    size = len(name.codes)
    results = _sum(made.op, values.numel[made.value], size)
    first_out = _first(made, size)
    inputs = [_nth(read, size, n) for n in range(3)]
    flops = np.zeros(size)
    for kind, each in (("pointwise", 1.0), ("norm", _NORM_FLOPS)):
        flops = np.where(_of_names(name, _is_kind(kind)), each * _numel(values, first_out), flops)
    flops = np.where(_of_names(name, _is_kind("reduction")), _numel(values, inputs[0]), flops)
    products = _of_names(name, _is_kind("gemm"))
    biased = _of_names(name, lambda n: base_name(n) in _WITH_BIAS)
    left = np.where(biased, inputs[1], inputs[0])
    flops = np.where(products, 2.0 * _numel(values, first_out) * _last(values, left, -1), flops)
    return _convolutions(name, inputs, _attention(name, inputs, flops, values), results, values)


def _convolutions(name: Words, inputs: list[Ints], flops: Floats, results: Floats, values: Values) -> Floats:
    """A weight's first dimension is the output channel (of a transposed one the input channel: an estimate)."""
    forward = _of_names(name, lambda n: "conv" in n and kind_of(n) == "gemm" and "backward" not in n)
    backward = _of_names(name, lambda n: "convolution_backward" in n)
    for chosen, weight, out, factor in ((forward, inputs[1], results, 2.0), (backward, inputs[2], None, 4.0)):
        elements = _numel(values, inputs[0]) if out is None else out
        each = _numel(values, weight) / np.maximum(_last(values, weight, 0), 1)
        flops = np.where(chosen, factor * elements * each, flops)
    return flops


def _attention(name: Words, inputs: list[Ints], flops: Floats, values: Values) -> Floats:
    forward = _of_names(name, lambda n: kind_of(n) == "attention" and "backward" not in n)
    backward = _of_names(name, lambda n: kind_of(n) == "attention" and "backward" in n)
    for chosen, query, key, factor in ((forward, inputs[0], inputs[1], 4.0), (backward, inputs[1], inputs[2], 10.0)):
        flops = np.where(chosen, factor * _numel(values, query) * _last(values, key, -2), flops)
    return flops


def _of_names(name: Words, test: Callable[[str], bool]) -> NDArray[np.bool_]:
    """Ops whose name passes ``test``, which is asked once for each different name."""
    by_code = np.fromiter((bool(word) and test(word) for word in name.words), np.bool_)
    return by_code[name.codes] if len(by_code) else np.zeros(0, np.bool_)


def _is_kind(kind: str) -> Callable[[str], bool]:
    return lambda name: kind_of(name) == kind


def _writes(name: str) -> bool:
    return base_name(name) in _PURE_WRITES


def _sum(op: Ints, weights: NDArray[np.generic], size: int) -> Floats:
    return np.bincount(op, weights, minlength=size).astype(np.float64)


def _first(uses: Uses, size: int) -> Ints:
    """Row of each op's first value; -1 where it has none."""
    return _nth(uses, size, 0)


def _nth(uses: Uses, size: int, n: int) -> Ints:
    starts = np.append(0, np.cumsum(np.bincount(uses.op, minlength=size)))
    there = starts[:-1] + n < starts[1:]
    found = np.full(size, -1)
    found[there] = uses.value[starts[:-1][there] + n]
    return found


def _numel(values: Values, rows: Ints) -> Floats:
    return np.where(rows >= 0, values.numel[rows], 0).astype(np.float64) if len(values.numel) else np.zeros(len(rows))


def _last(values: Values, rows: Ints, place: int) -> Floats:
    """One dimension of these values; 0 where there is no value."""
    if not len(values.numel):
        return np.zeros(len(rows))
    return np.where(rows >= 0, values.shape.at(np.maximum(rows, 0), place), 0).astype(np.float64)
