"""The fix document as JSON."""

from __future__ import annotations

import msgspec

from auditor.fix_document import FixDocument
from auditor.report.json import finite


def render(fix: FixDocument) -> str:
    """The document as indented JSON with a trailing newline; a number that isn't finite becomes its field's default."""
    raw = msgspec.json.encode(finite(fix), order="deterministic")
    return msgspec.json.format(raw, indent=2).decode() + "\n"
