"""Ids of runs: short, and sorted by time when sorted as text."""

from __future__ import annotations

import secrets
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_TIME_CHARS = 9  # 45 bits of milliseconds: until the year 3084
_RANDOM_CHARS = 3


def new_id(now_s: float | None = None) -> str:
    """Twelve characters: milliseconds since 1970, then 15 random bits against two runs in one of them.

    Two equal ids are still possible; whoever stores one takes another when it is taken.
    """
    ms = int((time.time() if now_s is None else now_s) * 1000)
    return _encode(ms, _TIME_CHARS) + _encode(secrets.randbits(5 * _RANDOM_CHARS), _RANDOM_CHARS)


def is_id(text: str) -> bool:
    """Whether ``text`` is of the form that :func:`new_id` gives (a digit first, until the year 2318)."""
    whole = len(text) == _TIME_CHARS + _RANDOM_CHARS
    return whole and text[0].isdigit() and all(char in _ALPHABET for char in text)


def _encode(number: int, length: int) -> str:
    return "".join(_ALPHABET[number >> 5 * i & 31] for i in reversed(range(length)))
