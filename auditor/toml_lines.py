"""Lines of a TOML file, by path: what messages about a setting point at. The standard parser keeps none."""

from __future__ import annotations

import re
from collections.abc import Sequence

Step = str | int
"""A key, or the index of an entry in a list."""

_KEY = r"""(?:"[^"\n]*"|'[^'\n]*'|[\w-]+)"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"^\s*(\[\[?)\s*({_DOTTED})\s*\]", re.MULTILINE)
_SETTING = re.compile(rf"^\s*({_DOTTED})\s*=", re.MULTILINE)
_TEXTS = re.compile(r"""\"[^"\n]*\"|'[^'\n]*'|\#[^\n]*""")
_INLINE = re.compile(rf"[{{,]\s*({_KEY})\s*=")


class TomlLines:
    """Where the tables, keys and entries of a document begin, 1-based."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[Step, ...], int] = {}
        self._entries: dict[tuple[Step, ...], int] = {}
        self._text = text
        headers = list(_HEADER.finditer(text))
        bounds = [*(match.start() for match in headers), len(text)]
        self._settings((), 0, bounds[0])
        for match, end in zip(headers, bounds[1:], strict=True):
            path = self._table(_keys(match[2]), listed=match[1] == "[[")
            self._put(path, match.end(1))
            self._settings(path, match.end(), end)

    def of(self, path: Sequence[Step]) -> int | None:
        """The line of ``path``, or of the nearest thing around it; None where nothing of it is there."""
        for length in range(len(path), 0, -1):
            line = self._lines.get(tuple(path[:length]))
            if line is not None:
                return line
        return None

    def _table(self, keys: list[str], *, listed: bool) -> tuple[Step, ...]:
        """The path that a header means: of a list of tables, its next entry or, further down, its last."""
        path: tuple[Step, ...] = ()
        for i, key in enumerate(keys):
            path = (*path, key)
            if listed and i == len(keys) - 1:
                self._entries[path] = self._entries.get(path, -1) + 1
            if path in self._entries:
                path = (*path, self._entries[path])
        return path

    def _settings(self, table: tuple[Step, ...], start: int, end: int) -> None:
        found: list[re.Match[str]] = []
        for match in _SETTING.finditer(self._text, start, end):
            if not found or not _is_open(self._text[found[-1].end() : match.start()]):
                found.append(match)
        bounds = [*(match.start() for match in found[1:]), end]
        for match, stop in zip(found, bounds, strict=False):  # without a setting the one bound is of none
            path = (*table, *_keys(match[1]))
            self._put(path, match.start(1))
            self._inline(path, match.end(), stop)

    def _inline(self, path: tuple[Step, ...], start: int, stop: int) -> None:
        """Keys of inline tables; in a list of them each ``{`` begins the next entry."""
        value = self._text[start:stop]
        listed = value.lstrip().startswith("[")
        for match in _INLINE.finditer(value):
            entry = (max(value.count("{", 0, match.start() + 1) - 1, 0),) if listed else ()
            self._put((*path, *entry), start + match.start())
            self._put((*path, *entry, *_keys(match[1])), start + match.start(1))

    def _put(self, path: tuple[Step, ...], offset: int) -> None:
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], self._text.count("\n", 0, offset) + 1)


def _is_open(value: str) -> bool:
    """Whether a list or table that begins in ``value`` does not end there, so that what follows is part of it."""
    bare = _TEXTS.sub("", value)
    return sum(map(bare.count, "[{")) > sum(map(bare.count, "]}"))


def _keys(dotted: str) -> list[str]:
    return [key.strip("\"'") for key in re.findall(_KEY, dotted)]
