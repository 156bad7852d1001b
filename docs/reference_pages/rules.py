"""docs/reference/rules.md: what each rule file says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from auditor.cli.rules import CODE, summary
from auditor.engine.rulefile import builtin_folder
from auditor.engine.rules import Rule, load_rules
from reference_pages.text import fence, page, table

INTRODUCTION = """\
`fusion-audit rules show ID` prints the same in a terminal, for your own rules too. Which rules run, and how severe they
are, stands in the [configuration](configuration.md)."""
HEADINGS = {"what": "What it finds", "why": "Why it costs", "instead": "Use instead"}


def pages() -> dict[str, str]:
    found = load_rules()
    rows = [(f"[{r.id}](#{_anchor(r)})", f"{r.name}: {summary(r)}", r.family, r.severity, r.status) for r in found]
    listed = table(("id", "rule", "family", "severity", "status"), rows)
    return {"rules.md": page("Rules", INTRODUCTION, listed, *(part for rule in found for part in _rule(rule)))}


def _anchor(rule: Rule) -> str:
    return f"{rule.id.lower()}-{rule.name}"


def _rule(rule: Rule) -> Iterator[str]:
    yield f"## {rule.id} {rule.name}"
    yield " · ".join(_facts(rule))
    for section, text in rule.docs.items():
        yield f"**{HEADINGS.get(section, section.capitalize())}**"
        yield fence("text", text) if section in CODE else _prose(text)


def _facts(rule: Rule) -> Iterator[str]:
    yield f"Family {rule.family}"
    yield rule.status
    yield rule.severity
    if rule.replacement:
        yield f"replacement [{rule.replacement}](../replacements/{rule.replacement}.md)"
    if rule.yields_to:
        yield f"gives way to {', '.join(rule.yields_to)}"
    yield f"{len(rule.tests)} tests in `rules/{rule.path.relative_to(builtin_folder())}`"


def _prose(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text.strip()))
