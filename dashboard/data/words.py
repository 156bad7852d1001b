"""A column of texts as codes into its few different ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from auditor.report.format import safe

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True)
class Words:
    """One code a row, into ``words``, which are sorted so that codes sort as the texts do."""

    codes: NDArray[np.int32]
    words: tuple[str, ...]

    def at(self, row: int) -> str:
        return self.words[int(self.codes[row])]

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """The texts of these rows."""
        words = self.words
        return [words[code] for code in self.codes[rows].tolist()]

    def reordered(self, order: NDArray[np.int64]) -> Words:
        """The same column, its rows in another order; -1 stands for a row without text."""
        if not len(order) or order.min() >= 0:
            return Words(self.codes[order], self.words)
        words = self.words if self.words[:1] == ("",) else ("", *self.words)
        codes = self.codes + (len(words) - len(self.words))
        return Words(np.append(codes, 0)[order].astype(np.int32), words)

    @property
    def nbytes(self) -> int:
        return int(self.codes.nbytes) + sum(map(len, self.words)) + 60 * len(self.words)


def from_texts(codes: NDArray[np.int32], texts: list[str]) -> Words:
    """A column from codes into ``texts``, which are neither sorted nor distinct. Names are made :func:`safe`."""
    shown = [safe(text) for text in texts]
    words = sorted(set(shown))
    place = {word: i for i, word in enumerate(words)}
    renumber = np.array([place[text] for text in shown], np.int32)
    return Words(renumber[codes] if len(codes) else np.zeros(0, np.int32), tuple(words))


def from_arrow(column: pyarrow.ChunkedArray) -> Words:
    """A column from Arrow's strings; null is the empty text."""
    encoded = _combined(column)
    codes = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int32, copy=False)
    return from_texts(codes, [*(text or "" for text in encoded.dictionary.to_pylist()), ""])


def _combined(column: pyarrow.ChunkedArray) -> pyarrow.DictionaryArray:
    """One dictionary over all chunks, whether or not it was read as one."""
    import pyarrow

    if not pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    return whole.chunk(0) if isinstance(whole, pyarrow.ChunkedArray) else whole
