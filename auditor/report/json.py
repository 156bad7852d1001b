"""The audit document as JSON, and back."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from auditor.document import SCHEMA, Document
from auditor.errors import AuditError
from auditor.report.format import safe


def render(document: Document) -> str:
    """The document as indented JSON with a trailing newline; equal documents give equal bytes.

    Keys keep the order of the schema and those of dictionaries are sorted. JSON has no infinity and no NaN: a number
    that is not finite is written as its field's default, which the schema reads as *unknown*.
    """
    raw = msgspec.json.encode(finite(document), order="deterministic")
    return msgspec.json.format(raw, indent=2).decode() + "\n"


def load_json(path: str | Path) -> Document:
    """Read a document that :func:`render` wrote.

    Raises:
        AuditError: the file cannot be read, is not JSON, is no audit, or has a schema that this version doesn't know.
    """
    raw = _read(Path(path))
    _check_schema(path, _decode(path, raw))
    try:
        return msgspec.json.decode(raw, type=Document)
    except msgspec.ValidationError as error:
        raise _refuse(path, f"is not a valid audit: {safe(str(error))}; write it again with --format json") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise _refuse(path, f"cannot be read ({reason}); give the path of an audit in JSON") from None


def _decode(path: str | Path, raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refuse(path, f"is not JSON ({safe(str(error))}); was it cut short, or is it compressed?") from None


def _check_schema(path: str | Path, data: Any) -> None:
    found = data.get("schema") if isinstance(data, dict) else None
    if found == SCHEMA:
        return
    if isinstance(found, str) and found.startswith("fusion-audit/"):
        other = safe(found)
        raise _refuse(path, f"has schema {other}, this version reads {SCHEMA}; use the version that wrote it")
    raise _refuse(path, f'is JSON but no audit: it lacks "schema": "{SCHEMA}"; use fusion-audit import for a trace')


def _refuse(path: str | Path, sentence: str) -> AuditError:
    return AuditError(f"{safe(str(path))} {sentence}.")


def finite(node: Any) -> Any:
    """A document or a part of one, every non-finite float of its structs replaced by the field's default."""
    if isinstance(node, list):
        return [finite(item) for item in node]
    if not isinstance(node, msgspec.Struct):
        return node
    return type(node)(**{name: _finite_field(getattr(node, name), default) for name, default in _fields(type(node))})


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    """Names and defaults: they take longer to find out than a document of 10,000 findings to go through."""
    return [(field.name, field.default) for field in msgspec.structs.fields(kind)]


def _finite_field(value: Any, default: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else default
    return finite(value)
