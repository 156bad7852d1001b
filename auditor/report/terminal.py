"""Colours and widths of a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from auditor.report.format import clip

_LONGEST_CELL = 40

_CODES = {
    "bold": "1", "dim": "2", "error": "1;31", "warning": "1;33", "info": "1;36", "good": "32", "frame": "1;34",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Palette:
    """Paints text by its role; does nothing where ``color`` is off. Paint after wrapping: codes have no width."""

    color: bool

    def __call__(self, role: str, text: str) -> str:
        if not self.color or not text or role not in _CODES:
            return text
        return f"\x1b[{_CODES[role]}m{text}\x1b[0m"


def columns(text: str) -> int:
    """Terminal columns that ``text`` takes: wide and full-width characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def fit(text: str, width: int) -> str:
    """``text`` cut to ``width`` columns, an ellipsis where something was cut."""
    if columns(text) <= width:
        return text
    return f"{next(_pieces(text, max(width - 1, 1)))}…"


def wrap(text: str, width: int) -> list[str]:
    """``text`` in lines of at most ``width`` columns, broken at spaces and only then inside a word."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        joined = f"{line} {word}" if line else word
        if columns(joined) <= width:
            line = joined
            continue
        if line:
            lines.append(line)
        *full, line = _pieces(word, width)
        lines += full
    return [*lines, line]


def table(rows: Iterable[tuple[str, ...]], numbers: Collection[int] = ()) -> list[str]:
    """Rows in columns, all to the left but ``numbers``; a long name loses its middle."""
    cut = [tuple(clip(cell, _LONGEST_CELL) for cell in row) for row in rows]
    widths = [max(map(columns, column)) for column in zip(*cut, strict=True)]
    lines = ([_cell(cell, w, i in numbers) for i, (cell, w) in enumerate(zip(row, widths, strict=True))] for row in cut)
    return ["  ".join(line).rstrip() for line in lines]


def _cell(text: str, width: int, right: bool) -> str:
    pad = " " * (width - columns(text))
    return pad + text if right else text + pad


def _pieces(word: str, width: int) -> Iterator[str]:
    piece = ""
    for char in word:
        if piece and columns(piece + char) > width:
            yield piece
            piece = ""
        piece += char
    yield piece
