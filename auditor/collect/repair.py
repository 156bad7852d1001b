"""What real profilers write and JSON forbids, made strict JSON."""

from __future__ import annotations

import re

_CONTROL_TO_SPACE = bytes(32 if i < 32 else i for i in range(256))
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|Infinity|inf)\b|,(?=\s*[\]}])')
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_KEPT_OR_STRAY = re.compile(rb'\\(["\\])|\\')
_SURROGATES = re.compile(
    rb"(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)


def repair(data: bytes, *, nonfinite_as_text: bool = False) -> bytes:
    """``data`` as strict JSON: valid UTF-8, no control characters, no stray backslash, comma or half of a character.

    NaN and Infinity become ``null``, or their name as text where ``nonfinite_as_text``.
    """
    text = data.decode("utf-8", errors="replace").encode("utf-8", errors="replace").translate(_CONTROL_TO_SPACE)

    def fix(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[:1] == b'"':
            return _string(token) if b"\\" in token else token
        if token == b",":
            return b""
        return b'"%s"' % token if nonfinite_as_text else b"null"

    return _TOKEN.sub(fix, text)


def _string(token: bytes) -> bytes:
    """Where one backslash escapes nothing none does, but before quotes: Kineto wrote the paths of Windows as they are.

    Source: https://github.com/pytorch/kineto/issues/617.
    """
    if any(len(found.group()) == 1 for found in _ESCAPE.finditer(token)):
        return _KEPT_OR_STRAY.sub(lambda m: m.group() if m.group(1) else b"\\\\", token)
    return _SURROGATES.sub(lambda m: m.group() if m.group(1) else b"\\ufffd", token)
