"""What a file is that is no trace, as far as its first bytes or its keys tell: for the sentence that refuses it."""

from __future__ import annotations

import msgspec

_MAGIC = (
    (b"PK\x03\x04", "a zip archive (unpack it first)"),
    (b"\x1f\x8b", "gzip in gzip (unpack it first)"),
    (b"\x28\xb5\x2f\xfd", "packed with zstd (unpack it first)"),
    (b"BZh", "packed with bzip2 (unpack it first)"),
    (b"\xfd7zXZ\x00", "packed with xz (unpack it first)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive (unpack it first)"),
    (b"SQLite format 3\x00", "an SQLite database, such as Nsight Systems exports, not a profiler's trace"),
    (b"\x80\x02", "a pickle, such as a memory snapshot, not a profiler's trace"),
    (b"\x80\x04", "a pickle, such as a memory snapshot, not a profiler's trace"),
    (b"version https://git-lfs", "a Git LFS pointer (git lfs pull fetches the file)"),
    (b"<", "an HTML or XML page, as a failed download leaves (fetch the file itself)"),
    (b"\xff\xfe", "UTF-16 text (save it as UTF-8)"),
    (b"\xfe\xff", "UTF-16 text (save it as UTF-8)"),
)
_BEGIN = 256
_TAR_AT, _TAR = 257, b"ustar"


def archive(data: bytes) -> str:
    """What ``data`` is by its first bytes, with its article; ``""`` where it may be JSON."""
    if data[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        return "a tar archive (unpack it first)"
    begin = data[:_BEGIN].lstrip() or data[:_BEGIN]
    return next((kind for magic, kind in _MAGIC if begin.startswith(magic)), "")


class _Keys(msgspec.Struct):
    """The keys that tell tools apart; their values stay undecoded."""

    nodes: msgspec.Raw = msgspec.Raw(b"")
    schema: msgspec.Raw = msgspec.Raw(b"")
    traceEvents: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815
    segments: msgspec.Raw = msgspec.Raw(b"")
    cells: msgspec.Raw = msgspec.Raw(b"")


def described(data: bytes) -> str:
    """What JSON of another tool is, with what to give instead; ``""`` where nothing tells."""
    try:
        keys = msgspec.json.decode(data, type=_Keys)
    except (msgspec.DecodeError, RecursionError):
        return ""
    if bytes(keys.schema).startswith(b'"fusion-audit'):
        return "is an audit document, not a trace; look at its run with fusion-audit show"
    if bytes(keys.traceEvents).startswith(b"["):
        return "is a profiler's trace, not an execution trace; give it as the trace, the observer's file beside it"
    if bytes(keys.nodes).startswith(b"["):
        return "is an execution trace, not a profiler's; give it with --execution-trace, beside the trace of that run"
    if keys.segments:
        return "is a memory snapshot, not a trace; give the file of export_chrome_trace"
    if keys.cells:
        return "is a notebook, not a trace; give the file of export_chrome_trace"
    return ""
