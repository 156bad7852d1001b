"""The ops and values of a run as flat columns: who reads which value, and how large values are. No object an op."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray

from auditor.graph.model import ITEMSIZE

Ints = NDArray[np.int64]
_MARK = np.frombuffer(b'{"v":', np.uint8)
"""How an argument that is a value begins in ``args`` (:mod:`auditor.graph.tables`). A quote in a text is escaped."""
_DIGITS = 18
_UNKNOWN_ITEMSIZE = 4


@dataclass(frozen=True)
class Lists:
    """A column of lists: the numbers of row i are ``flat[starts[i]:starts[i + 1]]``."""

    starts: Ints
    flat: Ints

    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def products(self) -> Ints:
        """Product of each list; 1 for an empty one."""
        padded = np.append(self.flat, 1)
        made = np.multiply.reduceat(padded, np.minimum(self.starts[:-1], len(self.flat)))
        return np.where(self.sizes() == 0, 1, made) if len(made) else made

    def at(self, rows: Ints, place: int) -> Ints:
        """The number at ``place`` (from the end where negative) of these rows' lists; 1 where it is not there."""
        size = self.sizes()[rows]
        offset = place if place >= 0 else size + place
        there = (offset >= 0) & (offset < size)
        found = self.flat[np.where(there, self.starts[rows] + offset, 0)] if len(self.flat) else np.ones(len(rows), int)
        return np.where(there, found, 1)


@dataclass(frozen=True)
class Values:
    """Sizes of the values, by row. ``owner`` is the row of the value whose content it shows."""

    nbytes: Ints
    numel: Ints
    shape: Lists
    owner: Ints
    region: Ints
    """The same number for values that show the same part of one content."""
    is_view: NDArray[np.bool_]


@dataclass(frozen=True)
class Uses:
    """Which op (row) uses which value (row), in order."""

    op: Ints
    value: Ints


def lists(column: pyarrow.ChunkedArray) -> Lists:
    """A column of lists of numbers."""
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pyarrow.ChunkedArray) else whole
    starts = np.asarray(whole.offsets, np.int64)
    return Lists(starts - starts[0], np.asarray(whole.flatten(), np.int64))


def values_of(table: pyarrow.Table) -> Values:
    """Sizes from the table of values."""
    shape, strides = lists(table.column("shape")), lists(table.column("strides"))
    itemsize = _itemsizes(table.column("dtype"))
    expanded = Lists(shape.starts, np.where((strides.flat == 0) & (shape.flat != 0), 1, shape.flat))
    extent = expanded.products()
    base = table.column("base")
    owner = _owners(np.asarray(table.column("id")), np.asarray(base.fill_null(-1)))
    offset = np.asarray(table.column("offset").fill_null(0))
    return Values(
        extent * itemsize,
        shape.products(),
        shape,
        owner,
        _regions(owner, offset, extent),
        owner != np.arange(len(owner)),
    )


def _itemsizes(column: pyarrow.ChunkedArray) -> Ints:
    encoded = column if pyarrow.types.is_dictionary(column.type) else column.dictionary_encode()
    whole = encoded.unify_dictionaries().combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pyarrow.ChunkedArray) else whole
    sizes = np.array([ITEMSIZE.get(name, _UNKNOWN_ITEMSIZE) for name in whole.dictionary.to_pylist()], np.int64)
    return sizes[np.asarray(whole.indices)] if len(whole) else np.zeros(0, np.int64)


def _owners(ids: Ints, base: Ints) -> Ints:
    """Row of the value that owns each one's content: views of views are followed to the end."""
    rows = rows_of(ids, base)
    owner = np.where(rows >= 0, rows, np.arange(len(ids)))
    while (further := owner[owner])[:].tobytes() != owner.tobytes():
        owner = further
    return owner


def _regions(owner: Ints, offset: Ints, extent: Ints) -> Ints:
    """One number for each part of a content. A view of all of it is the content itself, wherever it begins."""
    partial = extent < extent[owner]
    keys = np.stack([owner, np.where(partial, offset + 1, 0), np.where(partial, extent, 0)])
    order = np.lexsort(keys)
    differs = (np.diff(keys[:, order], axis=1) != 0).any(axis=0)
    region = np.empty(len(owner), np.int64)
    region[order] = np.cumsum(np.append(0, differs)) if len(owner) else 0
    return region


def rows_of(ids: Ints, wanted: Ints) -> Ints:
    """The row of each wanted id; -1 where there is none."""
    if not len(ids):
        return np.full(len(wanted), -1)
    size = int(ids.max()) + 1
    if ids.min() < 0 or size > 16 * len(ids) + 1000:  # not numbered one after the other
        order = np.argsort(ids, kind="stable")
        rows = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
        return np.where(ids[rows] == wanted, rows, -1)
    row_of = np.full(size + 1, -1)
    row_of[ids] = np.arange(len(ids))
    return row_of[np.where((wanted >= 0) & (wanted < size), wanted, size)]


def reads(args: pyarrow.ChunkedArray, ids: Ints) -> Uses:
    """Every value in the ops' arguments, found in the JSON's bytes: to parse a million texts takes half a minute."""
    ops, values = [], []
    before = 0
    for chunk in args.chunks:
        found, op = _numbers_in(chunk)
        ops.append(op + before)
        values.append(found)
        before += len(chunk)
    op, wanted = np.concatenate([np.zeros(0, np.int64), *ops]), np.concatenate([np.zeros(0, np.int64), *values])
    row = rows_of(ids, wanted)
    return Uses(op[row >= 0], row[row >= 0])


def _numbers_in(chunk: pyarrow.StringArray) -> tuple[Ints, Ints]:
    """The ids after each mark, and the row of the text that holds them."""
    chunk = pc.fill_null(chunk, "").cast(pyarrow.large_string())
    _, offsets, data = chunk.buffers()
    if data is None or not len(chunk):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    starts = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    text = np.frombuffer(data, np.uint8)[starts[0] : starts[-1]]
    at = np.flatnonzero(text == _MARK[0])
    for place, byte in enumerate(_MARK):
        at = at[at + place < len(text)]
        at = at[text[at + place] == byte]
    number = _digits(text, at + len(_MARK))
    return number, np.searchsorted(starts - starts[0], at, "right") - 1


def _digits(text: NDArray[np.uint8], at: Ints) -> Ints:
    """The decimal number that begins at each place."""
    number = np.zeros(len(at), np.int64)
    going = np.ones(len(at), bool)
    for _ in range(_DIGITS):
        digit = text[np.minimum(at, len(text) - 1)].astype(np.int64) - ord("0")
        going &= (digit >= 0) & (digit <= 9) & (at < len(text))
        if not going.any():
            break
        number = np.where(going, number * 10 + digit, number)
        at = at + 1
    return number
