"""The gate's verdict, and a comparison of two runs, as JSON."""

from __future__ import annotations

import json

import msgspec

from auditor.gate_document import Comparison, GateDocument
from auditor.report.json import finite


def render(document: GateDocument | Comparison) -> str:
    """The document as indented JSON in ASCII, ending in a newline: names of the run can't steer a terminal."""
    return json.dumps(msgspec.to_builtins(finite(document)), indent=2) + "\n"
