"""Bytes of a trace file: read, decompressed, and decoded into typed structs with errors a user can act on."""

from __future__ import annotations

import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from auditor.collect.file_kind import archive
from auditor.collect.repair import repair
from auditor.collect.salvage import longest_whole
from auditor.errors import AuditError
from auditor.graph.garbage import collection_paused

T = TypeVar("T")

MAX_BYTES = 8 * 10**9
"""Largest trace that is unpacked: more than any profiler writes."""
MAX_RATIO = 200
"""A trace packs to a tenth or a fortieth of its size, and no file of gzip to less than a 1032nd."""
_RATIO_COUNTS_FROM = 64 << 20
MOST_MEMBERS = 1 << 17
"""Of a gzip file: those that ``bgzip``, which writes one for each 64 KiB, makes of the largest trace."""

_CHUNK = 16 << 20
_INPUT, _FINE = 1 << 16, 1 << 8
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_RAISE = "--max-size allows more"
_SALVAGE = "--salvage reads what is whole"


@dataclass(slots=True)
class Reading:
    """How files are read, and what has to be said of them afterwards.

    ``max_bytes`` bounds a file, unpacked; 0 is :data:`MAX_BYTES`, and no more than :data:`MAX_RATIO` times what is
    packed. ``salvage``: of a file that is cut off or damaged take what is whole before that place.
    """

    max_bytes: int = 0
    salvage: bool = False
    notes: list[str] = field(default_factory=list)
    partial: bool = False

    @property
    def limit(self) -> int:
        return self.max_bytes or MAX_BYTES


def read_trace_bytes(path: Path, reading: Reading | None = None) -> bytes:
    """The content of ``path``, unpacked where it is gzip (told by content, not by name).

    Raises:
        AuditError: the file is missing, no regular file, unreadable, empty, of another kind, cut off, or too large.
    """
    reading = reading or Reading()
    data = _content(path, reading.limit)
    if data[:2] == _GZIP_MAGIC:
        data = _gunzip(data, path, reading)
    data = data.removeprefix(_BOM)
    if not data[:_CHUNK].strip(b" \t\r\n") and not data.strip(b" \t\r\n"):  # no second copy of a large file
        raise AuditError(f"{path}: the file is empty; record the trace again.")
    if kind := archive(data):
        raise AuditError(f"{path}: is {kind}; give the .json or .json.gz file that torch.profiler wrote.")
    return data


def _content(path: Path, limit: int) -> bytes:
    """Nothing is opened that could block or never end: a pipe, a device."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise AuditError(f"{path}: cannot be read (it is a folder); give the path of the trace file in it.")
        if not stat.S_ISREG(found.st_mode):
            raise AuditError(f"{path}: cannot be read (it is a pipe or a device); write the trace to a file first.")
        if found.st_size > limit:
            raise AuditError(f"{path}: is larger than {_size(limit)}; record fewer steps ({_RAISE}).")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        reason = getattr(error, "strerror", None) or str(error)
        raise AuditError(f"{path}: cannot be read ({reason}); give the path of a trace file.") from None
    except MemoryError:
        raise _out_of_memory(path) from None


def _gunzip(data: bytes, path: Path, reading: Reading) -> bytes:
    parts: list[bytes] = []
    total = 0
    try:
        for part, used in _unpacked(data, _FINE if reading.salvage else _INPUT):
            parts.append(part)
            total += len(part)
            _check_size(path, total, used, reading)
    except (zlib.error, EOFError) as error:
        cut = isinstance(error, EOFError)
        if reading.salvage and total:
            reading.partial = True
            reading.notes.append(
                f"The gzip file is {'cut off' if cut else 'damaged'} after {total:,} unpacked bytes: "
                "what follows is lost."
            )
        elif cut:
            raise AuditError(
                f"{path}: gzip is cut off after {total} unpacked bytes; copy or record it again ({_SALVAGE})."
            ) from None
        else:
            raise AuditError(
                f"{path}: damaged gzip after {total} unpacked bytes ({error}); copy it again ({_SALVAGE})."
            ) from None
    except MemoryError:
        raise _out_of_memory(path) from None
    return b"".join(parts)


def _unpacked(data: bytes, step: int) -> Iterator[tuple[bytes, int]]:
    """All members in parts, and how much of ``data`` was used for what came so far.

    ``step`` bytes at a time: what damage is among is lost.

    Raises:
        zlib.error: damaged, or of more members than any tool writes.
        EOFError: cut off.
    """
    at = members = 0
    while data[at : at + 2] == _GZIP_MAGIC:
        members += 1
        if members > MOST_MEMBERS:
            raise zlib.error(f"of more than {MOST_MEMBERS:,} members")
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            packed = member.unconsumed_tail
            if not packed:
                packed = data[at : at + step]
                at += len(packed)
            part = member.decompress(packed, _CHUNK)
            if not part and not packed:
                raise EOFError
            yield part, at
        at -= len(member.unused_data)


def _check_size(path: Path, unpacked: int, packed: int, reading: Reading) -> None:
    """A gzip bomb is told by its ratio long before it fills the memory."""
    if unpacked > reading.limit:
        raise AuditError(f"{path}: unpacks to more than {_size(reading.limit)}; record fewer steps ({_RAISE}).")
    if not reading.max_bytes and unpacked > max(_RATIO_COUNTS_FROM, MAX_RATIO * packed):
        raise AuditError(
            f"{path}: unpacks to more than {MAX_RATIO} times its size ({_size(unpacked)} so far), as no trace does; "
            f"give the file that torch.profiler wrote ({_RAISE})."
        )


def decode_trace(
    data: bytes, kind: type[T], path: Path, reading: Reading | None = None, *, nonfinite_as_text: bool = False
) -> T:
    """Decode ``data`` as ``kind``; a second try repairs what real profilers write and JSON forbids.

    Repaired: bad UTF-8, control characters in names, single backslashes of Windows paths, halves of characters,
    commas too many, NaN and Infinity (``null``, or their name as text where ``nonfinite_as_text``). A third one takes
    what is whole, where ``reading`` says so.

    Raises:
        AuditError: still not valid; names the file, line and reason.
        msgspec.ValidationError: valid JSON, but not of this kind.
    """
    decoder = msgspec.json.Decoder(kind, strict=False)
    with collection_paused():
        try:
            return decoder.decode(data)
        except (msgspec.ValidationError, RecursionError, MemoryError) as error:
            if not isinstance(error, msgspec.ValidationError):
                raise _too_much(path, error) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            repaired = repair(data, nonfinite_as_text=nonfinite_as_text)
            return decoder.decode(repaired)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:
            if reading is not None and reading.salvage:
                return _whole_part(decoder, repaired, error, path, reading)
            raise AuditError(f"{path}{_place(data, repaired, str(error))}: {_reason(error)}") from None
        except (RecursionError, MemoryError) as error:
            raise _too_much(path, error) from None


def _whole_part(
    decoder: msgspec.json.Decoder[T], data: bytes, error: msgspec.DecodeError, path: Path, reading: Reading
) -> T:
    found = longest_whole(decoder, data, _byte(str(error)))
    if found is None:
        raise AuditError(f"{path}: {_cause(error)} before anything in it is whole; record or copy it again.")
    decoded, end = found
    reading.partial = True
    reading.notes.append(f"The JSON {_cause(error)} after {end:,} bytes of {len(data):,}: what follows is lost.")
    return decoded


def _byte(message: str) -> int | None:
    found = re.search(r"byte (\d+)", message)
    return int(found.group(1)) if found else None


def _place(data: bytes, repaired: bytes, message: str) -> str:
    """``", line N"`` of the byte that ``message`` names: repairs keep line breaks' number, not their place."""
    byte = _byte(message)
    if byte is None:
        return f", line {data.count(10) + 1}"
    if len(repaired) != len(data):
        return f", near byte {byte}"
    return f", line {data.count(10, 0, byte) + 1} (byte {byte})"


def _cause(error: msgspec.DecodeError) -> str:
    return "is cut off" if "truncated" in str(error) else "is damaged"


def _reason(error: msgspec.DecodeError) -> str:
    if "truncated" in str(error):
        return f"the JSON is cut off here, the profiler did not finish it; record or copy it again ({_SALVAGE})."
    return f"not valid JSON ({error}); record or copy it again ({_SALVAGE})."


def _too_much(path: Path, error: RecursionError | MemoryError) -> AuditError:
    if isinstance(error, MemoryError):
        return _out_of_memory(path)
    return AuditError(f"{path}: is nested deeper than any profiler writes; give the file of export_chrome_trace.")


def _out_of_memory(path: Path) -> AuditError:
    return AuditError(f"{path}: needs more memory than there is; record fewer steps, or import it on a larger machine.")


def _size(nbytes: int) -> str:
    return f"{nbytes // 10**6:,} MB" if nbytes >= 10**6 else f"{nbytes:,} bytes"
