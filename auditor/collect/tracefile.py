"""Bytes of a trace file: read, decompressed, and decoded into typed structs with errors a user can act on."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from auditor.errors import AuditError
from auditor.graph.garbage import collection_paused

T = TypeVar("T")

MAX_BYTES = 8 << 30
"""Largest trace that is unpacked: more than any profiler writes, less than a gzip bomb."""

_CHUNK = 16 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_CONTROL_TO_SPACE = bytes(32 if i < 32 else i for i in range(256))
_STRING_OR_NONFINITE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|nan|Infinity|inf)\b')
_ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')


def read_trace_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of ``path``, unpacked where it is gzip (told by content, not by name).

    Raises:
        AuditError: the file is missing, a folder, unreadable, empty, cut off, or unpacks to more than ``max_bytes``.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise AuditError(f"{path}: cannot be read ({reason}); give the path of a trace file.") from None
    if data[:2] == _GZIP_MAGIC:
        data = _gunzip(data, path, max_bytes)
    if not data[:_CHUNK].strip(b" \t\r\n") and not data.strip(b" \t\r\n"):  # no second copy of a large file
        raise AuditError(f"{path}: the file is empty; record the trace again.")
    return data


def _gunzip(data: bytes, path: Path, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while data[:2] == _GZIP_MAGIC:
        member = zlib.decompressobj(wbits=31)
        try:
            for part in _unpack(member, data):
                parts.append(part)
                total += len(part)
                if total > max_bytes:
                    raise AuditError(f"{path}: unpacks to more than {max_bytes >> 20} MiB; record fewer steps.")
        except zlib.error as error:
            raise AuditError(f"{path}: damaged gzip after {total} unpacked bytes ({error}); copy it again.") from None
        if not member.eof:
            raise AuditError(f"{path}: gzip is cut off after {total} unpacked bytes; copy or record it again.")
        data = member.unused_data
    return b"".join(parts)


def _unpack(member: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    part = member.decompress(data, _CHUNK)
    while part:
        yield part
        part = member.decompress(member.unconsumed_tail, _CHUNK)


def decode_trace(data: bytes, kind: type[T], path: Path, *, nonfinite_as_text: bool = False) -> T:
    """Decode ``data`` as ``kind``; a second try repairs what real profilers write and JSON forbids.

    Repaired: bad UTF-8, control characters in names, single backslashes of Windows paths, NaN and Infinity
    (``null``, or their name as text where ``nonfinite_as_text``).

    Raises:
        AuditError: still not valid; names the file, line and reason.
    """
    decoder = msgspec.json.Decoder(kind, strict=False)
    with collection_paused():
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            repaired = repair(data, nonfinite_as_text=nonfinite_as_text)
        try:
            return decoder.decode(repaired)
        except msgspec.ValidationError as error:
            raise AuditError(f"{path}: not a trace of a known form ({error}); give a profiler's JSON file.") from None
        except msgspec.DecodeError as error:
            raise AuditError(f"{path}{_place(data, repaired, str(error))}: {_reason(error)}") from None


def repair(data: bytes, *, nonfinite_as_text: bool = False) -> bytes:
    """``data`` as strict JSON: valid UTF-8, no control characters, every backslash escaped, no NaN or Infinity."""
    text = data.decode("utf-8", errors="replace").encode("utf-8", errors="replace").translate(_CONTROL_TO_SPACE)

    def fix(match: re.Match[bytes]) -> bytes:
        token = match.group()
        if token[:1] != b'"':
            return b'"%s"' % token if nonfinite_as_text else b"null"
        return _ESCAPE.sub(lambda m: m.group() if len(m.group()) > 1 else b"\\\\", token) if b"\\" in token else token

    return _STRING_OR_NONFINITE.sub(fix, text)


def _place(data: bytes, repaired: bytes, message: str) -> str:
    """``", line N"`` of the byte that ``message`` names: repairs keep line breaks' number, not their place."""
    found = re.search(r"byte (\d+)", message)
    if not found:
        return f", line {data.count(10) + 1}"
    byte = int(found.group(1))
    if len(repaired) != len(data):
        return f", near byte {byte}"
    return f", line {data.count(10, 0, byte) + 1} (byte {byte})"


def _reason(error: msgspec.DecodeError) -> str:
    if "truncated" in str(error):
        return "the JSON is cut off here; the profiler did not finish writing it: record or copy it again."
    return f"not valid JSON ({error}); record or copy it again."
