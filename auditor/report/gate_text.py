"""The gate's verdict, and a comparison of two runs, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from auditor.gate_document import Check, Comparison, GateDocument, KernelChange, KernelTable
from auditor.report import diff_facts
from auditor.report import gate_facts as facts
from auditor.report.facts import Fact
from auditor.report.format import safe
from auditor.report.terminal import Palette, columns, fit, table, wrap

_NARROWEST = 48
_LABEL = 9
_KERNELS = 30
"""Rows of kernels that are listed."""
_TONES = {"new": "error", "more": "error", "fewer": "good", "fixed": "good", "same": "dim"}


def render(gate: GateDocument, *, color: bool = False, width: int = 100) -> str:
    """The whole verdict, ending in a newline; prose is wrapped to ``width`` (at least 48 columns)."""
    writer = _Writer(Palette(color), max(width, _NARROWEST))
    parts = [
        writer.header(gate),
        *(writer.problem(check, particulars) for check, particulars in facts.told_once(gate)),
        writer.changes(gate.comparison, gate.root) if gate.comparison else [],
        writer.kept(gate),
        writer.remarks(gate.remarks),
        writer.next(gate),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def render_diff(found: Comparison, *, color: bool = False, width: int = 100) -> str:
    """A comparison, ending in a newline."""
    writer = _Writer(Palette(color), max(width, _NARROWEST))
    parts = [
        writer.runs(found),
        writer.measures(found),
        writer.kernels(found.kernels) if found.kernels else writer.changes(found, str(Path.cwd()), everything=True),
        writer.remarks([*diff_facts.sentences(found), *found.remarks]),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


class _Writer:
    """Every method returns the lines of one block, none for a block with nothing to say."""

    def __init__(self, paint: Palette, width: int) -> None:
        self.paint, self.width = paint, width

    def header(self, gate: GateDocument) -> list[str]:
        lines = [self.paint("bold", fit(f"fusion gate of {facts.title(gate.run)}", self.width))]
        return lines + [line for fact in facts.headline(gate) for line in self._fact(fact, "  ")]

    def problem(self, check: Check, particulars: Iterable[Fact]) -> list[str]:
        mark = facts.MARKS[check.status]
        head = f"{mark}[{safe(check.id)}]"
        first, *rest = wrap(f"{head} {facts.sentence(check)}", self.width)
        lines = [self.paint(mark, first[: len(head)]) + self.paint("bold", first[len(head) :]), *rest]
        return lines + [line for fact in particulars for line in self._fact(fact, " = ")]

    def runs(self, found: Comparison) -> list[str]:
        lines = [self.paint("bold", "fusion audits compared")]
        for label, head in (("before", found.before), ("after", found.after)):
            lines += self._fact(Fact(label, f"{facts.title(head)} · {facts.described(head)}"), "  ")
        return lines

    def measures(self, found: Comparison) -> list[str]:
        head, *rows = table([facts.MEASURE_HEAD, *facts.measures(found)])
        return [self.paint("dim", f"  {head}"), *(f"  {row}" for row in rows)]

    def changes(self, found: Comparison, root: str, *, everything: bool = False) -> list[str]:
        lines = [self.paint("bold", f"findings: {facts.change_counts(found)}")]
        for change in found.findings:
            if change.change == "same" and not everything:
                continue
            where = facts.change_place(change, root)
            text = f"{safe(change.rule)} {safe(change.name)}: {facts.change_words(change)}"
            lines += self._item(change.change, f"{text}{f', at {where}' if where else ''}", _TONES[change.change])
        return lines

    def kernels(self, found: KernelTable) -> list[str]:
        """The table; by kernel with the module, shapes and names of each row under it."""
        rows = diff_facts.shown(found, _KERNELS)
        left = diff_facts.rest(found, _KERNELS)
        cells = [diff_facts.HEAD, *map(diff_facts.row, rows), *([left] if left else []), diff_facts.total(found)]
        head, *lines = [fit(f"  {line}", self.width) for line in table(cells, diff_facts.NUMBERS)]
        made = [self.paint("bold", f"kernels of a step, by {found.by}"), self.paint("dim", head)]
        for i, line in enumerate(lines):
            made.append(line)
            if found.by == "kernel" and i < len(rows):
                made += self._under(rows[i])
        return made

    def _under(self, change: KernelChange) -> list[str]:
        told = [("at", diff_facts.where(change)), *diff_facts.kernels(change)]
        return [self.paint("dim", fit(f"      {label:<6} {text}", self.width)) for label, text in told if text]

    def kept(self, gate: GateDocument) -> list[str]:
        lines = []
        for check in gate.checks:
            if check.status in ("passed", "skipped"):
                lines += self._item(facts.WORDS[check.status], facts.sentence(check), facts.MARKS[check.status])
        return lines

    def remarks(self, remarks: Iterable[str]) -> list[str]:
        return [line for remark in remarks for line in self._item("note", safe(remark), "info")]

    def next(self, gate: GateDocument) -> list[str]:
        # A command is never broken: it is there to be pasted.
        return [self.paint("bold", "what next"), *(f"  {safe(step)}" for step in gate.next)] if gate.next else []

    def _fact(self, fact: Fact, frame: str) -> list[str]:
        lead = f"{frame}{fact.label:<{_LABEL}}"
        lines = wrap(fact.value, self.width - len(lead) - 1)
        head = self.paint("frame", frame) + self.paint("bold", lead[len(frame) :])
        return [f"{' ' * len(lead) if i else head} {line}" for i, line in enumerate(lines)]

    def _item(self, mark: str, text: str, tone: str) -> list[str]:
        lines = wrap(text, self.width - columns(mark) - 4)
        pad = " " * (columns(mark) + 4)
        return [(pad if i else f"  {self.paint(tone, mark)}  ") + line for i, line in enumerate(lines)]
