"""The report for a terminal, written like a compiler's diagnostics."""

from __future__ import annotations

from pathlib import Path

from auditor.document import Document, Finding
from auditor.report import facts, headline, kernels, ranks
from auditor.report.excerpt import quote
from auditor.report.facts import Fact
from auditor.report.format import clip, plural, safe
from auditor.report.terminal import Palette, columns, fit, table, wrap

_NARROWEST = 48
_LABEL = 13
_ROWS = 8
"""Live fusions, and names of unknown kernels, that are shown."""
_MARK = 14
"""Characters of a rule's id, and of a severity, that are shown: names come from documents that anyone may write."""


def render(document: Document, *, color: bool = False, width: int = 100) -> str:
    """The whole report, ending in a newline, no line wider than ``width`` (at least 48 columns)."""
    writer = _Writer(document, Palette(color), max(width, _NARROWEST))
    parts = [
        writer.header(),
        writer.ranks(),
        *([writer.finding(f) for f in facts.ranked(document)] or [writer.nothing()]),
        writer.refused(),
        writer.suppressed(),
        writer.live(),
        writer.other(),
        writer.notes(),
        writer.next(),
        writer.summary(),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Writer:
    """Writes one document; every method returns the lines of one block, none for a block with nothing to say."""

    def __init__(self, document: Document, paint: Palette, width: int) -> None:
        self.document, self.paint, self.width = document, paint, width

    def header(self) -> list[str]:
        lines = [self.paint("bold", fit(f"fusion audit of {facts.title(self.document)}", self.width))]
        for fact in headline.headline(self.document):
            lines += self._fact(f"  {fact.label:<{_LABEL}}", "  ", fact)
        return lines

    def ranks(self) -> list[str]:
        if not self.document.ranks:
            return []
        grid = [tuple(name.upper() for name in ranks.HEAD), *ranks.rows(self.document)]
        head, *rows = [fit(f"  {row}", self.width) for row in table(grid, ranks.NUMBERS)]
        lines = [self.paint("bold", ranks.title(self.document)), self.paint("dim", head), *rows]
        return lines + [line for sentence in ranks.sentences(self.document) for line in self._indented(sentence)]

    def finding(self, finding: Finding) -> list[str]:
        severity = clip(safe(finding.severity), _MARK)
        mark = f"{severity}[{clip(safe(finding.rule), _MARK)}]"
        doubt = " (inferred)" if finding.provenance == "inferred" else ""
        name = f" {fit(safe(finding.name), self.width - columns(mark + doubt) - 1)}{doubt}"
        lines = [self.paint(severity, mark) + self.paint("bold", name)]
        source = finding.source
        gutter = len(str(source.line)) if source else 1
        lines += self._arrow(finding, gutter) + self._quote(finding, gutter)
        for fact in facts.particulars(self.document, finding):
            lines += self._fact(f"{' ' * gutter} = {fact.label:<{_LABEL}}", " " * gutter + " = ", fact)
        return lines

    def _arrow(self, finding: Finding, gutter: int) -> list[str]:
        source = finding.source
        path = facts.short_path(source.file, Path.cwd()) if source else ""
        where = facts.place(source, path) or "source line not recorded"
        lead = " " * gutter + "--> "
        lines = wrap(f"{where} · {facts.owner(finding)}", self.width - len(lead))
        pad = " " * len(lead)
        return [(pad if i else self.paint("frame", lead)) + line for i, line in enumerate(lines)]

    def _quote(self, finding: Finding, gutter: int) -> list[str]:
        excerpt = quote(finding.source, self.document.run.created)
        if excerpt is None:
            return []
        bar = self.paint("frame", f"{' ' * gutter} |")
        number = self.paint("frame", f"{excerpt.line} |")
        text = fit(excerpt.text, self.width - gutter - 3)
        changed = [f"{bar} {self.paint('dim', '(the file has changed since the run)')}"] if excerpt.changed else []
        return [bar, f"{number} {text}", *changed, bar]

    def _fact(self, lead: str, frame: str, fact: Fact) -> list[str]:
        """``fact`` behind ``lead``, of which ``frame`` is drawn and the rest is its label."""
        head = self.paint("frame", frame) + self.paint("bold", lead[len(frame) :])
        lines = wrap(fact.value, self.width - len(lead) - 1)
        return [f"{' ' * len(lead) if i else head} {line}" for i, line in enumerate(lines)]

    def nothing(self) -> list[str]:
        return [self.paint("good", "no findings"), *self._indented(headline.looked_at(self.document))]

    def refused(self) -> list[str]:
        groups = facts.refusals(self.document, Path.cwd())
        if not groups:
            return []
        sites = plural(sum(g.count for g in groups), "site")
        lines = [self.paint("bold", f"refused: {sites} that must not be fused")]
        for group in groups:
            at = f", first at {safe(group.at)}" if group.at else ""
            lines += self._item(f"{clip(safe(group.rule), _MARK)} × {group.count}", f"{safe(group.reason)}{at}")
        return lines

    def suppressed(self) -> list[str]:
        lines = []
        for s in self.document.suppressed:
            what = f"{safe(s.rule)} in {safe(s.modules) or 'every module'}"
            reason = f" ({safe(s.reason)})" if s.reason else ""
            if s.sites:
                lines += self._item("note", f"{what} is suppressed, {plural(s.sites, 'site')}{reason}")
            else:
                lines += self._item("warning", f"the suppression of {what} suppresses nothing: remove it{reason}")
        return lines

    def live(self) -> list[str]:
        return self._grid(kernels.live_title(self.document), kernels.LIVE, kernels.live_rows(self.document, _ROWS))

    def other(self) -> list[str]:
        return self._grid(kernels.other_title(self.document), kernels.OTHER, kernels.other_rows(self.document, _ROWS))

    def _grid(self, title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
        """A title and a table under it, whose last two columns are numbers."""
        if not title:
            return []
        grid = table([tuple(name.upper() for name in head), *rows], (len(head) - 2, len(head) - 1))
        first, *others = [fit(f"  {row}", self.width) for row in grid]
        return [self.paint("bold", fit(title, self.width)), self.paint("dim", first), *others]

    def notes(self) -> list[str]:
        return [line for note in self.document.run.notes for line in self._item("note", safe(note))]

    def next(self) -> list[str]:
        steps = facts.next_steps(self.document)
        lines = [self.paint("bold", "what next")] if steps else []
        for step in steps:
            # A command is never broken: it is there to be pasted.
            joined = f"  {step.command}  # {step.why}"
            lines += [joined] if columns(joined) <= self.width else [f"  # {step.why}", f"  {step.command}"]
        return lines

    def summary(self) -> list[str]:
        document = self.document
        sites = sum(f.sites for f in document.findings)
        findings = f"{plural(len(document.findings), 'finding')} at {plural(sites, 'site')}"
        avoidable = plural(document.totals.avoidable_kernels, "avoidable kernel")
        return [f"{findings}, {avoidable}"] if document.findings else []

    def _item(self, mark: str, text: str) -> list[str]:
        lines = wrap(text, self.width - columns(mark) - 4)
        role = mark if mark == "warning" else "info" if mark == "note" else "bold"
        pad = " " * (columns(mark) + 4)
        return [(pad if i else f"  {self.paint(role, mark)}  ") + line for i, line in enumerate(lines)]

    def _indented(self, text: str) -> list[str]:
        return [f"  {line}" for line in wrap(text, self.width - 2)]
