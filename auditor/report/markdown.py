"""The report as GitHub-flavoured Markdown, made for a pull request's comment.

Names from the run are untrusted: they only ever appear in code spans, where neither markup nor ``@mentions`` work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from auditor.document import Document, Finding
from auditor.report import facts, headline, kernels, ranks, steps
from auditor.report.facts import Fact
from auditor.report.format import UNKNOWN, clip, count, duration, plural, safe, share
from auditor.report.svg import escape

_ROWS, _FOLDED = 40, 15
"""Findings in the table and with details: a comment on GitHub holds 65,536 characters."""
_LONGEST = 160


def render(document: Document) -> str:
    """Summary table, findings table, and the rest folded; ends in a newline."""
    findings = facts.ranked(document)
    blocks = [
        f"### Fusion audit of {code(facts.title(document))}",
        _verdict(document),
        tabular(["", ""], ([f"**{f.label}**", value(f, table=True)] for f in headline.headline(document))),
        _ranks(document),
        _steps(document),
        *([_findings(findings), *(_details(document, f) for f in findings[:_FOLDED])] if findings else []),
        _refused(document),
        _suppressed(document),
        _kernels(kernels.live_title(document), kernels.LIVE, kernels.live_rows(document, _FOLDED), 2),
        _kernels(kernels.other_title(document), kernels.OTHER, kernels.other_rows(document, _FOLDED), 1),
        "\n".join(f"> {code(note)}" for note in document.run.notes),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def code(text: str, *, table: bool = False, longest: int = _LONGEST) -> str:
    """``text`` as a code span that it cannot leave; in a table ``|`` becomes ``¦``, which splits no cell."""
    shown = clip(safe(text), longest).strip()
    if table:
        shown = shown.replace("|", "¦")
    if not shown:
        return "–"
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def value(fact: Fact, *, table: bool = False, longest: int = _LONGEST) -> str:
    """What a fact says: as code where it holds names from the run."""
    return (
        code(fact.value, table=table, longest=longest)
        if fact.literal
        else fact.value.replace("<", "&lt;").replace("|", "¦")
    )


def _verdict(document: Document) -> str:
    totals = document.totals
    if not document.findings:
        return headline.looked_at(document)
    line = f"**{count(totals.avoidable_kernels)} of {plural(totals.kernels, 'kernel')} are avoidable.**"
    if not totals.step_us:
        return line
    saved = totals.saving.step_us
    return f"{line} Fusing them would likely take {duration(saved)} ({share(saved, totals.step_us)}) off the step."


def tabular(head: list[str], rows: Iterable[list[str]], align: str = "") -> str:
    """A table; ``align`` has an ``l`` or ``r`` for each column."""
    marks = {"r": "--:", "l": "---"}
    rule = [marks[a] for a in (align or "l" * len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in ([*head], rule, *rows))


def _ranks(document: Document) -> str:
    if not document.ranks:
        return ""
    align = "".join("r" if i in ranks.NUMBERS else "l" for i in range(len(ranks.HEAD)))
    plain = {"–", "differs", "failed", "missing"}
    made = [
        [cell if i in ranks.NUMBERS or cell in plain else code(cell, table=True) for i, cell in enumerate(row)]
        for row in ranks.rows(document)
    ]
    grid = tabular(list(ranks.HEAD), made, align)
    told = "\n".join(f"- {code(sentence, longest=600)}" for sentence in ranks.sentences(document))
    return fold(ranks.title(document), f"{grid}\n\n{told}")


def _steps(document: Document) -> str:
    held = steps.shown(document)
    if held is None:
        return ""
    align = "".join("r" if i in steps.NUMBERS else "l" for i in range(len(steps.HEAD)))
    made = [[code(row[0], table=True), *row[1:]] for row in steps.rows(held)]
    grid = tabular(list(steps.HEAD), made, align)
    return fold(steps.title(held), "\n\n".join(part for part in (grid, steps.left_out(held)) if part))


def _findings(findings: list[Finding]) -> str:
    head = ["rule", "where", "sites", "kernels", "memory", "kernel time", "likely saving", "off the step"]
    table = tabular(head, (_row(f) for f in findings[:_ROWS]), "llrrrrrr")
    left = len(findings) - _ROWS
    return f"{table}\n\n{plural(left, 'smaller finding')} left out." if left > 0 else table


def _row(finding: Finding) -> list[str]:
    saving = finding.saving
    doubt = " (inferred)" if finding.provenance == "inferred" else ""
    return [
        f"{code(finding.rule, table=True)} {code(finding.name, table=True)}{doubt}",
        code(facts.place(finding.source) or finding.module_class, table=True),
        count(finding.sites),
        facts.kernels(finding),
        facts.traffic(finding),
        facts.kernel_time(finding),
        facts.time_saved(finding),
        UNKNOWN if facts.unpriced(finding) else duration(saving.step_us),
    ]


def _details(document: Document, finding: Finding) -> str:
    summary = f"<code>{escape(clip(f'{finding.rule} {finding.name}', _LONGEST))}</code> · "
    where = facts.place(finding.source)
    at = code(where) if where else "source line not recorded"
    lines = [f"- {at} · {code(facts.owner(finding))}"]
    lines += [f"- **{fact.label}** {value(fact)}" for fact in facts.particulars(document, finding)]
    return fold(summary + plural(finding.sites, "site"), "\n".join(lines))


def _refused(document: Document) -> str:
    groups = facts.refusals(document)
    if not groups:
        return ""
    rows = ([code(g.rule, table=True), count(g.count), code(g.reason, table=True), code(g.at, table=True)]
            for g in groups[:_ROWS])  # fmt: skip
    left = f"\n\n{plural(len(groups) - _ROWS, 'rarer reason')} left out." if len(groups) > _ROWS else ""
    table = tabular(["rule", "sites", "reason", "first at"], rows, "lrll")
    return fold(f"{plural(sum(g.count for g in groups), 'refused site')}", table + left)


def _suppressed(document: Document) -> str:
    lines = []
    for s in document.suppressed:
        what, why = f"{code(s.rule)} in {code(s.modules)}", code(s.reason)
        if s.sites:
            lines.append(f"- {what} is suppressed, {plural(s.sites, 'site')}: {why}")
        else:
            lines.append(f"- the suppression of {what} suppresses nothing: remove it ({why})")
    return "\n".join(lines)


def _kernels(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]], names: int) -> str:
    """A folded table whose first ``names`` columns hold names from the run."""
    if not title:
        return ""
    made = ([code(cell, table=True) if i < names else cell for i, cell in enumerate(row)] for row in rows)
    return fold(escape(title), tabular(list(head), made, "l" * names + "r" * (len(head) - names)))


def fold(summary: str, body: str) -> str:
    """``body`` under a ``summary`` that opens it; the summary is HTML."""
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"
