"""A broken limit as plain text of several lines: for formats that hold a message and no structure."""

from __future__ import annotations

from auditor.gate_document import Check, GateDocument
from auditor.report import gate_facts as facts
from auditor.report.format import safe


def message(gate: GateDocument, check: Check) -> str:
    """The sentence, and under it a line for each particular."""
    lines = [facts.sentence(check)]
    lines += [f"{fact.label}: {fact.value}" for fact in facts.standing_alone(gate, check)]
    return "\n".join(safe(line) for line in lines)
