"""What is whole of JSON that is cut off or damaged: everything up to the end of the last whole event before that."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")

MOST_TRIES = 12
"""Ends of objects that are tried, from the last on. A cut event holds few: its ``args``, and text with braces."""

_END = re.compile(rb"\}[ \t\r\n]*(?=[,\]])")
_IN_OBJECT, _IN_LIST = (b"]}", b"}"), (b"]",)
"""What closes all that is open behind an event: the list in the file's object, or that alone; a bare list."""
_WINDOW = 1 << 16


def longest_whole(decoder: msgspec.json.Decoder[T], data: bytes, damaged: int | None = None) -> tuple[T, int] | None:
    """The decoded start of ``data``, and how many bytes of it that is; ``None`` where nothing is whole.

    ``damaged`` is the first byte that can't be right, where it is known.

    Raises:
        msgspec.ValidationError: what is whole is not of the decoder's kind.
    """
    stop = len(data) if damaged is None else damaged
    if damaged is not None and (found := _decoded(decoder, data[:stop], b"")) is not None:
        return found, stop  # a whole document, and something behind it
    closings = _IN_LIST if data[:_WINDOW].lstrip()[:1] == b"[" else _IN_OBJECT
    for end in _ends(data, stop):
        for closing in closings:
            if (found := _decoded(decoder, data[:end], closing)) is not None:
                return found, end
    return None


def _decoded(decoder: msgspec.json.Decoder[T], whole: bytes, closing: bytes) -> T | None:
    try:
        return decoder.decode(whole + closing)
    except msgspec.ValidationError:
        raise  # it is whole, but not of this kind
    except (msgspec.DecodeError, RecursionError):
        return None


def _ends(data: bytes, stop: int) -> list[int]:
    """One past the brace of the last objects that end before ``stop``, the last first."""
    found: list[int] = []
    begin, window = stop, _WINDOW
    while begin > 0 and len(found) < MOST_TRIES:
        begin, window = max(stop - window, 0), 2 * window  # twice as much each time: a text may be of any length
        found = [match.start() + 1 for match in _END.finditer(data, begin, stop)]
    last = data[begin:stop].rstrip()
    if last.endswith(b"}"):
        found.append(begin + len(last))
    return found[: -MOST_TRIES - 1 : -1]
