"""From a kernel's name to what is known of it."""

from __future__ import annotations

from functools import cache, lru_cache

from auditor.graph.model import is_transfer
from auditor.kernels.inductor import decode
from auditor.kernels.name import MAX_READ, read_name
from auditor.kernels.row import Known, Pattern, patterns_of
from auditor.kernels.tables import ROWS

_KEPT = 16_384
"""Names that are remembered, 64 MiB at the very most; a trace of 60,000 kernels has 2,000."""

_LETTERS = 3
"""Every pattern begins with at least as many."""

UNKNOWN = Known()


def classify(name: str) -> Known:
    """Family, library and fusion of the kernel called ``name``, ``other`` where nothing is known.

    Args:
        name: as a trace has it, demangled or not, of any length and content.
    """
    return _classify(name[:MAX_READ])


@lru_cache(maxsize=_KEPT)
def _classify(name: str) -> Known:
    if is_transfer(name):
        return Known("memcpy" if name.startswith("Memcpy") else "memset")
    generated = decode(name)
    if generated is not None:
        return generated
    index = row_of(name)
    return UNKNOWN if index is None else _known()[index]


def row_of(name: str) -> int | None:
    """Index of the first of the rows that ``name`` fits."""
    read = read_name(name)
    head, by_letters = read.head, _patterns()
    letters = {head[at : at + _LETTERS] for at in range(len(head) - _LETTERS + 1)}
    near = [entry for key in letters & by_letters.keys() for entry in by_letters[key]]
    for _, pattern, index in sorted(near, key=_order):
        if pattern.fits(read):
            return index
    return None


@cache
def _known() -> list[Known]:
    return [row.known for row in ROWS]


@cache
def _patterns() -> dict[str, list[tuple[int, Pattern, int]]]:
    """By the first letters of a pattern: its place in the order, the pattern and its row.

    A thousand patterns held against two thousand names would take longer than reading the trace.
    """
    found: dict[str, list[tuple[int, Pattern, int]]] = {}
    every = [(pattern, index) for index, row in enumerate(ROWS) for pattern in patterns_of(row)]
    for order, (pattern, index) in enumerate(every):
        found.setdefault(pattern.first[:_LETTERS], []).append((order, pattern, index))
    return found


def _order(entry: tuple[int, Pattern, int]) -> int:
    return entry[0]
