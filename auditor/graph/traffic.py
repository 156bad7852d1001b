"""Bytes that a kernel moves through device memory, from the shapes of what it reads and writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from auditor.graph.model import Op, Value, owner_of
from auditor.graph.ops import base_name, kind_of, reads_shape_only

Region = tuple[int, int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes read from and written to memory, each once: caches are the savings model's concern."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written


def region_of(value: Value) -> Region:
    """The part of its owner that a value shows: two reshapes of one content are one region."""
    if value.base is None:
        return value.id, 0, ()
    owner = owner_of(value)
    if value.extent >= owner.extent:
        return owner.id, 0, ()
    dims = tuple(sorted((s, n) for s, n in zip(value.strides, value.shape, strict=True) if s != 0 and n != 1))
    return owner.id, value.offset, dims


def bytes_of(values: Iterable[Value]) -> int:
    """Bytes of distinct regions: what is read twice, or broadcast, counts once, and so does a part of what is read."""
    regions = {region_of(v): v.nbytes for v in values}
    whole = {owner for owner, _, dims in regions if not dims}
    return sum(size for (owner, _, dims), size in regions.items() if not dims or owner not in whole)


def traffic_of(op: Op, inputs: tuple[Value, ...] | None = None) -> Traffic:
    """What one op reads and writes; ``inputs`` are its distinct inputs where the caller has them.

    A gather reads the rows it takes, not the whole table; ``copy_``, ``fill_`` and other pure writes
    don't read their target.
    """
    read = tuple(dict.fromkeys(op.inputs())) if inputs is None else inputs
    written = _written(op)
    way = _way_of_reading(op.name)
    if way == "all":
        return Traffic(read[0].nbytes if len(read) == 1 else bytes_of(read), written)
    if way == "shape":
        return Traffic(0, written)
    if way == "size" and len(op.args) > 1:
        return Traffic(bytes_of(v for v in read if v is not op.args[1]), written)
    if way == "rows" and read:
        table, *others = read
        return Traffic(min(table.nbytes, max(written, 1)) + bytes_of(others), written)
    return Traffic(bytes_of(v for v in read if v not in op.mutates), written)


_READ_FOR_SIZE = frozenset({"aten.nll_loss_backward", "aten.nll_loss2d_backward"})
"""Their second argument, the log-probabilities, only says how large the gradient is."""
_PURE_WRITES = frozenset({"aten.copy", "aten.fill", "aten.zero"})


@cache
def _way_of_reading(name: str) -> Literal["all", "shape", "rows", "sources", "size"]:
    if reads_shape_only(name):
        return "shape"
    kind = kind_of(name)
    if base_name(name) in _READ_FOR_SIZE:
        return "size"
    if kind == "gather":
        return "rows"
    return "sources" if kind == "random" or base_name(name) in _PURE_WRITES else "all"


def _written(op: Op) -> int:
    """Results that own their content; an in-place op on a view writes that view, not the whole storage."""
    if op.mutates:
        direct = [
            a for a in op.args if isinstance(a, Value) and any(a is m or owner_of(a) is owner_of(m) for m in op.mutates)
        ]
        if direct:
            return bytes_of(direct)
    return sum([v.nbytes for v in op.outputs if v.base is None])
