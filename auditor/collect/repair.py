"""What real profilers write and JSON forbids, made strict JSON.

A trace is hundreds of megabytes of mostly right JSON: what may be wrong is looked for with searches that run at the
speed of memory, and only around what they find it is asked whether that stands in a string.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_CONTROL_TO_SPACE = bytes(32 if i < 32 else i for i in range(256))
_WORDS = (b"NaN", b"nan", b"Infinity", b"inf")
_BEFORE_VALUE, _AFTER_VALUE = b":,[ ", b",]} "
_COMMA = re.compile(rb",(?=\s*[\]}])")
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_PAIR = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_KEPT_OR_STRAY = re.compile(rb'\\(["\\])|\\')
_HALF, _HIGH, _LOW = re.compile(rb"\\u[dD][89a-fA-F]"), re.compile(rb"\\u[dD][89abAB]"), re.compile(rb"\\u[dD][c-fC-F]")
_MOST_QUOTES = 1000
"""Escaped ones, that a text with stray backslashes is searched back for its beginning."""
_UNKNOWN = rb"\ufffd"


class _Edit(NamedTuple):
    """Bytes ``start`` to ``end`` become ``text``, if ``start`` is inside of a string or not as ``in_string`` says."""

    start: int
    end: int
    text: bytes
    in_string: bool


def repair(data: bytes, *, nonfinite_as_text: bool = False) -> bytes:
    """``data`` as strict JSON: valid UTF-8, no control characters, no stray backslash, comma or half of a character.

    NaN and Infinity become ``null``, or their name as text where ``nonfinite_as_text``.
    """
    text = data.decode("utf-8", errors="replace").encode("utf-8", errors="replace").translate(_CONTROL_TO_SPACE)
    commas = (_Edit(found.start(), found.end(), b"", in_string=False) for found in _COMMA.finditer(text))
    return _applied(text, sorted([*_nonfinite(text, nonfinite_as_text), *commas, *_escapes(text)]))


def _nonfinite(text: bytes, as_text: bool) -> Iterator[_Edit]:
    for word in _WORDS:
        at = text.find(word)
        while at >= 0:
            end = at + len(word)
            start = at - (text[at - 1 : at] == b"-")
            if (text[start - 1 : start] or b" ") in _BEFORE_VALUE and (text[end : end + 1] or b" ") in _AFTER_VALUE:
                yield _Edit(start, end, b'"%s"' % text[start:end] if as_text else b"null", in_string=False)
            at = text.find(word, end)


def _escapes(text: bytes) -> Iterator[_Edit]:
    at = 0
    while found := _ESCAPE.search(text, at):
        at = found.end()
        if at - found.start() == 1:
            string = _STRING.match(text, _opening(text, found.start()))
            if string is None:
                return  # it never ends: there is no string after it
            at = max(at, string.end())
            yield _Edit(string.start(), string.end(), _unescaped(string.group()), in_string=False)
        elif _HALF.match(text, found.start()):
            if _HIGH.match(text, found.start()) and _LOW.match(text, at):
                at += len(_UNKNOWN)
            else:
                yield _Edit(found.start(), at, _UNKNOWN, in_string=True)


def _opening(text: bytes, inside: int) -> int:
    """Where the string begins that holds byte ``inside``: at the last quote before that is not escaped itself."""
    at = inside
    for _ in range(_MOST_QUOTES):
        at = text.rfind(b'"', 0, at)
        before = text[max(at - 64, 0) : max(at, 0)]
        if at < 0 or (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            break
    return max(at, 0)


def _unescaped(string: bytes) -> bytes:
    """Where one backslash escapes nothing none does, but before quotes: Kineto wrote the paths of Windows as they are.

    Source: https://github.com/pytorch/kineto/issues/617.
    """
    return _KEPT_OR_STRAY.sub(lambda m: m.group() if m.group(1) else b"\\\\", string)


def _applied(text: bytes, edits: Iterable[_Edit]) -> bytes:
    parts: list[bytes] = []
    copied = seen = 0
    inside = False
    for edit in edits:
        if edit.start < copied:
            continue
        inside ^= _quotes(text, seen, edit.start) % 2 == 1
        seen = edit.start
        if inside == edit.in_string:
            parts += (text[copied : edit.start], edit.text)
            copied = seen = edit.end
    return b"".join((*parts, text[copied:]))


def _quotes(text: bytes, start: int, end: int) -> int:
    """Quotes that begin or end a string."""
    escaped = 0
    if text.find(b"\\", start, end) >= 0:
        escaped = sum(pair.group() == b'\\"' for pair in _PAIR.finditer(text, start, end))
    return text.count(b'"', start, end) - escaped
