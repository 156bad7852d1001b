"""The gate's verdict, and a comparison, as Markdown for a pull request's comment.

Names from the run are untrusted: they only ever appear in code spans, where neither markup nor ``@mentions`` work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from auditor.gate_document import (
    Check,
    Comparison,
    FindingChange,
    GateDocument,
    KernelChange,
    KernelTable,
    Point,
)
from auditor.report import diff_facts
from auditor.report import gate_facts as facts
from auditor.report.facts import Fact
from auditor.report.format import count, duration, plural
from auditor.report.markdown import code, fold, tabular, value

_ROWS = 40
"""Findings that are listed: a comment on GitHub holds 65,536 characters."""
_SENTENCE = 600
"""Characters of a sentence that names things of the run."""
_BARS = "▁▂▃▄▅▆▇█"
_SIGNS = {"failed": "❌", "warned": "⚠️", "passed": "✅", "skipped": "➖"}


def render(gate: GateDocument) -> str:
    """The verdict, what is broken, and the rest folded; ends in a newline."""
    quiet = [check for check in gate.checks if check.status in ("passed", "skipped")]
    blocks = [
        f"### Fusion gate of {code(facts.title(gate.run))}",
        f"{_SIGNS['passed' if gate.passed else 'failed']} **{facts.outcome(gate)}**",
        "\n".join(
            f"- **{fact.label}** {value(fact, longest=_SENTENCE)}"
            for fact in facts.headline(gate)
            if fact.label != "verdict"
        ),
        *(_problem(check, particulars) for check, particulars in facts.told_once(gate)),
        _changes(gate.comparison, "Findings that changed", gate.root) if gate.comparison else "",
        fold("Figures of a step", _measures(gate.comparison)) if gate.comparison else "",
        _trend(gate.trend),
        fold(plural(len(quiet), "more limit"), "\n".join(map(_kept, quiet))) if quiet else "",
        "\n".join(f"> {code(remark, longest=_SENTENCE)}" for remark in gate.remarks),
        "\n".join(["What next:", "", *(f"    {step}" for step in gate.next)]) if gate.next else "",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def render_diff(found: Comparison) -> str:
    """Figures and findings of two runs; ends in a newline."""
    blocks = [
        f"### {code(facts.title(found.before))} → {code(facts.title(found.after))}",
        "\n".join(f"- **{label}** {code(facts.described(head))}"
                  for label, head in (("before", found.before), ("after", found.after))),
        _measures(found),
        _kernels(found.kernels) if found.kernels else _changes(found, "Findings", str(Path.cwd())),
        "\n".join(
            f"> {code(remark, longest=_SENTENCE)}" for remark in (*diff_facts.sentences(found), *found.remarks)
        ),
    ]  # fmt: skip
    return "\n\n".join(block for block in blocks if block) + "\n"


def _problem(check: Check, particulars: Iterable[Fact]) -> str:
    lines = [f"{_SIGNS[check.status]} {code(check.title)}: {code(check.message, longest=_SENTENCE)}", ""]
    lines += [f"- **{fact.label}** {value(fact, longest=_SENTENCE)}" for fact in particulars]
    return "\n".join(lines)


def _kept(check: Check) -> str:
    return f"- {_SIGNS[check.status]} {code(check.title)}: {code(check.message, longest=_SENTENCE)}"


def _measures(found: Comparison) -> str:
    return tabular([head.lower() for head in facts.MEASURE_HEAD], map(list, facts.measures(found)), "lrrrl")


def _changes(found: Comparison, title: str, root: str) -> str:
    changed = [change for change in found.findings if change.change != "same"]
    head = f"**{title}**: {facts.change_counts(found)}"
    if not changed:
        return head
    rows = tabular(["", "rule", "where", "what"], (_change(each, root) for each in changed[:_ROWS]))
    left = len(changed) - _ROWS
    return f"{head}\n\n{rows}" + (f"\n\n{plural(left, 'smaller change')} left out." if left > 0 else "")


def _kernels(found: KernelTable) -> str:
    head = [name.lower() for name in diff_facts.HEAD]
    rows = diff_facts.shown(found, _ROWS)
    cells = [[code(_named(found, each), table=True), *diff_facts.row(each)[1:]] for each in rows]
    left = diff_facts.rest(found, _ROWS)
    cells += [list(each) for each in (left, diff_facts.total(found)) if each]
    return f"**Kernels of a step, by {found.by}**\n\n{tabular(head, cells, 'lrrrrrl')}"


def _named(found: KernelTable, change: KernelChange) -> str:
    where = diff_facts.where(change) if found.by == "kernel" else ""
    return f"{diff_facts.named(change)}{f' · {where}' if where else ''}"


def _change(change: FindingChange, root: str) -> list[str]:
    rule = f"{code(change.rule, table=True)} {code(change.name, table=True)}"
    return [change.change, rule, code(facts.change_place(change, root), table=True), facts.change_words(change)]


def _trend(points: list[Point]) -> str:
    """The last runs, as bars and as figures; the oldest is on the left."""
    if len(points) < 2:
        return ""
    rows = [
        _series("unfused kernels", [float(p.unfused_kernels) for p in points], lambda v: count(round(v))),
        _series("avoidable kernels", [float(p.avoidable_kernels) for p in points], lambda v: count(round(v))),
        _series("kernels", [float(p.kernels) for p in points], lambda v: count(round(v))),
        _series("step (measured)", [p.step_us for p in points], duration),
    ]
    return tabular([f"last {plural(len(points), 'run')}", "", "from", "to"], rows, "llrr")


def _series(label: str, values: list[float], written: Callable[[float], str]) -> list[str]:
    return [label, sparkline(values), written(values[0]), written(values[-1])]


def sparkline(values: Iterable[float]) -> str:
    """A bar for each value, from the lowest of them to the highest; equal values are bars of half the height."""
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=0.0)
    if low == high:
        return _BARS[3] * len(known)
    return "".join(_BARS[round((v - low) / (high - low) * (len(_BARS) - 1))] for v in known)
