"""The gate's verdict as JUnit XML: a test case for each limit."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree as ET

from auditor.gate_document import Check, GateDocument
from auditor.report import gate_facts as facts
from auditor.report.format import safe
from auditor.report.gate_plain import message


def render(gate: GateDocument) -> str:
    """One test suite. A broken limit is a failure; a warning passes and says so on its standard output."""
    states = Counter(check.status for check in gate.checks)
    totals = {"tests": str(len(gate.checks)), "failures": str(states["failed"]), "errors": "0"}
    root = ET.Element("testsuites", {"name": "fusion-audit", **totals})
    attributes = {"name": f"fusion gate of {facts.title(gate.run)}", **totals, "skipped": str(states["skipped"])}
    suite = ET.SubElement(root, "testsuite", {**attributes, "time": "0"})
    if gate.run.created:
        suite.set("timestamp", safe(gate.run.created[:19]))
    for check in gate.checks:
        _case(suite, gate, check)
    if gate.remarks:
        ET.SubElement(suite, "system-out").text = "\n".join(map(safe, gate.remarks))
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(suite: ET.Element, gate: GateDocument, check: Check) -> None:
    name = f"{safe(check.id)}: {check.title}"
    case = ET.SubElement(suite, "testcase", {"name": name, "classname": "fusion-audit.gate", "time": "0"})
    file = facts.in_repository(gate, check.file)
    if file:
        case.set("file", safe(file))
        case.set("line", str(max(check.line, 1)))
    if check.status == "failed":
        failure = ET.SubElement(case, "failure", {"message": facts.sentence(check), "type": safe(check.key)})
        failure.text = message(gate, check)
    elif check.status == "skipped":
        ET.SubElement(case, "skipped", {"message": check.message})
    else:
        text = f"warning: {message(gate, check)}" if check.status == "warned" else facts.sentence(check)
        ET.SubElement(case, "system-out").text = text
