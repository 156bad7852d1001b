"""The report of a fix as GitHub-flavoured Markdown. Names from the run only ever appear in code spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from auditor.fix_document import FixDocument
from auditor.report import fix_facts as facts
from auditor.report.format import plural, safe
from auditor.report.markdown import code

_NAMES = ("rule", "module", "replacement", "provider")
_ROWS = 60


def render(fix: FixDocument) -> str:
    """Verdict, figures, and a table of the sites in each state; ends in a newline."""
    blocks = [
        f"### Fusion fix of {code(facts.title(fix))}",
        f"**{facts.verdict(fix)}**",
        _table(("", ""), ([f"**{fact.label}**", code(fact.value, table=True)] for fact in facts.headline(fix))),
        _figures(facts.TIMING_HEAD, facts.timing_rows(fix)),
        *(_sites(fix, state) for state in facts.STATES),
        _figures(facts.PREDICTION_HEAD, facts.prediction_rows(fix)),
        "\n".join(f"- {code(one.what)}: {code(one.evidence)}" for one in fix.recommendations),
        "\n".join(f"> {code(note)}" for note in fix.notes),
        "\n".join(f"- {code(line)}" for line in facts.usage(fix)),
        _diff(fix.diff),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _sites(fix: FixDocument, state: str) -> str:
    found = facts.groups(fix.sites, state, dry=fix.dry)
    if not found:
        return ""
    rows = [
        [
            *(_cell(name, cell) for name, cell in zip(facts.HEAD, group.cells, strict=True)),
            code(group.reason, table=True),
        ]
        for group in found[:_ROWS]
    ]
    left = f"\n\n{plural(len(found) - _ROWS, 'group')} left out." if len(found) > _ROWS else ""
    name = "to be tried" if fix.dry and state == "kept" else facts.UNITS[state]
    return f"#### {name.capitalize()}\n\n{_table((*facts.HEAD, 'reason'), rows)}{left}"


def _cell(name: str, cell: str) -> str:
    return code(cell, table=True) if name in _NAMES else cell


def _figures(head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> str:
    return _table(head, ([code(row[0], table=True), *row[1:]] for row in rows)) if rows else ""


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def _diff(diff: str) -> str:
    """In a fence that is longer than any run of backticks in it."""
    if not diff:
        return ""
    fence = "```"
    while fence in diff:
        fence += "`"
    lines = "\n".join(safe(line.expandtabs(4)) for line in diff.splitlines())
    return f"{fence}diff\n{lines}\n{fence}"
