"""The report of a fix for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from auditor.fix_document import FixDocument
from auditor.report import fix_facts as facts
from auditor.report.facts import Fact
from auditor.report.format import clip, plural, safe
from auditor.report.terminal import Palette, columns, table, wrap

_NARROWEST = 48
_LABEL = 13
_COLORS = {"kept": "good", "rolled_back": "warning", "refused": "info", "failed": "error"}


def render(fix: FixDocument, *, color: bool = False, width: int = 100) -> str:
    """The whole report, ending in a newline. Tables keep their rows whole; prose is wrapped to ``width``."""
    writer = _Writer(fix, Palette(color), max(width, _NARROWEST))
    parts = [
        writer.header(),
        *(writer.sites(state) for state in facts.STATES),
        writer.timing(),
        writer.predictions(),
        writer.recommendations(),
        writer.notes(),
        writer.usage(),
        writer.diff(),
        writer.verdict(),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Writer:
    """Writes one document; every method returns the lines of one block, none for a block with nothing to say."""

    def __init__(self, fix: FixDocument, paint: Palette, width: int) -> None:
        self.fix, self.paint, self.width = fix, paint, width

    def header(self) -> list[str]:
        lines = [self.paint("bold", f"fusion fix of {clip(facts.title(self.fix), self.width - 14)}")]
        return lines + [line for fact in facts.headline(self.fix) for line in self._fact(fact)]

    def sites(self, state: str) -> list[str]:
        found = facts.groups(self.fix.sites, state, dry=self.fix.dry)
        if not found:
            return []
        name = "to be tried" if self.fix.dry and state == "kept" else facts.UNITS[state]
        total = plural(sum(len(group.sites) for group in found), "site")
        lines = [f"{self.paint(_COLORS[state], name)}: {total}"]
        head, *rows = table([tuple(h.upper() for h in facts.HEAD), *(group.cells for group in found)])
        lines.append(f"  {self.paint('dim', head)}")
        for group, row in zip(found, rows, strict=True):
            lines.append(f"  {row}")
            lines += [f"      {line}" for line in wrap(group.reason, self.width - 6)] if group.reason else []
        return lines

    def timing(self) -> list[str]:
        rows = facts.timing_rows(self.fix)
        rounds = f", taken in turns, {plural(self.fix.timing.rounds, 'round')}" if self.fix.timing.rounds else ""
        return self._table(f"one step{rounds}", facts.TIMING_HEAD, rows)

    def predictions(self) -> list[str]:
        return self._table(facts.PREDICTION_TITLE, facts.PREDICTION_HEAD, facts.prediction_rows(self.fix))

    def recommendations(self) -> list[str]:
        lines = []
        for one in self.fix.recommendations:
            lines += self._item("do", safe(one.what))
            lines += [f"      {line}" for line in wrap(f"for {safe(one.evidence)}", self.width - 6)]
        return [self.paint("bold", "what else would help"), *lines] if lines else []

    def notes(self) -> list[str]:
        return [line for note in self.fix.notes for line in self._item("note", safe(note))]

    def usage(self) -> list[str]:
        # A command is never broken: it is there to be pasted.
        lines = [f"  {line}" for line in facts.usage(self.fix)]
        return [self.paint("bold", f"how to use {safe(self.fix.plan)}"), *lines] if lines else []

    def diff(self) -> list[str]:
        if not self.fix.diff:
            return []
        lines = [safe(line.expandtabs(4)) for line in self.fix.diff.splitlines()]
        title = "source change, written" if self.fix.changed else "suggested source change"
        return [self.paint("bold", title), *lines]

    def verdict(self) -> list[str]:
        return wrap(facts.verdict(self.fix), self.width)

    def _table(self, title: str, head: Sequence[str], rows: Sequence[tuple[str, ...]]) -> list[str]:
        if not rows:
            return []
        first, *lines = table([tuple(h.upper() for h in head), *rows])
        return [self.paint("bold", title), f"  {self.paint('dim', first)}", *(f"  {line}" for line in lines)]

    def _fact(self, fact: Fact) -> list[str]:
        lead = f"  {fact.label:<{_LABEL}}"
        lines = wrap(fact.value, self.width - len(lead) - 1)
        return [f"{' ' * len(lead) if i else self.paint('bold', lead)} {line}" for i, line in enumerate(lines)]

    def _item(self, mark: str, text: str) -> list[str]:
        lines = wrap(text, self.width - columns(mark) - 4)
        pad = " " * (columns(mark) + 4)
        return [(pad if i else f"  {self.paint('info', mark)}  ") + line for i, line in enumerate(lines)]
