"""The gate's verdict, and a comparison of two runs, as JSON."""

from __future__ import annotations

import msgspec

from auditor.gate_document import Comparison, GateDocument
from auditor.report.json import finite


def render(document: GateDocument | Comparison) -> str:
    """The document as indented JSON with a trailing newline; a number that isn't finite becomes its field's default."""
    raw = msgspec.json.encode(finite(document), order="deterministic")
    return msgspec.json.format(raw, indent=2).decode() + "\n"
