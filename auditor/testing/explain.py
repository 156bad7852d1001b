"""Why an assertion about a count fails: the findings that it is made of, where they are, and what to type now."""

from __future__ import annotations

import shlex
from pathlib import Path

from auditor.gate.budget import Scope
from auditor.gate.culprits import culprits
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Culprit, Place
from auditor.report.facts import short_path
from auditor.report.format import clip, plural, safe
from auditor.report.gate_words import line_of, number
from auditor.testing.count import Count

SHOWN = 3
_LONGEST = 150
"""Findings, and characters of each: pytest cuts an explanation after 8 lines or 640 characters."""
_LONGEST_SIDE = 60
_NOUNS = {"bytes": "bytes moved", "peak_bytes": "bytes alive at once"}


def comparison(count: Count, op: str, left: object, right: object, root: Path) -> list[str]:
    """The lines that pytest shows for ``assert left op right``; files are named from ``root`` on."""
    sides = [_side(side) for side in (left, right)]
    name = safe(count.audit.document.run.name)
    return [f"{sides[0]} {op} {sides[1]} in {name or 'the audit'}", *found_lines(count, root)]


def _side(side: object) -> str:
    if not isinstance(side, Count):
        return clip(safe(repr(side)), _LONGEST_SIDE)
    return f"{number(side)} {_NOUNS.get(side.key, side.key.replace('_', ' '))}"


def found_lines(count: Count, root: Path) -> list[str]:
    """The largest findings, how many are left out, and the next command."""
    audit = count.audit
    listed = culprits(count.key, Scope(), audit.document, snapshot_of(audit.document), [], grown_only=False)
    shown = [_finding(culprit, root) for culprit in listed[:SHOWN]]
    left = len({finding.fingerprint for finding in audit.findings}) - len(shown)
    if left > 0:
        shown.append(f"and {plural(left, 'finding')} more")
    return [*shown, *(f"next: {command}" for command in next_commands(count.test, audit.document.run.id)[:1])]


def _finding(culprit: Culprit, root: Path) -> str:
    source = culprit.source
    place = Place(file=short_path(source.file, root), line=source.line, function=source.function) if source else None
    where = " · ".join(part for part in (line_of(place), safe(culprit.module)) if part)
    head = f"{safe(culprit.rule)} {safe(culprit.name)}: {culprit.what}"
    return clip(f"{head}, at {where}" if where else head, _LONGEST)


def next_commands(test: str, run: str) -> list[str]:
    """What shows more of the audit that ``test`` made: it has to be a stored run for that."""
    if run:
        return [f"fusion-audit show {shlex.quote(safe(run))}"]
    return [f"pytest --fusion-store {shlex.quote(safe(test))}; fusion-audit show latest"]
