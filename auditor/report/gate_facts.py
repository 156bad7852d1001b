"""What a report of the gate says, in words and in order, before any format dresses it.

Values that hold names from the run are ``literal``: a format shows them as code and escapes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath

from auditor.commit import short
from auditor.gate_document import Change, Check, Comparison, Culprit, FindingChange, GateDocument, Head, Measure, Place
from auditor.report.facts import Fact, short_path
from auditor.report.format import duration, plural, safe
from auditor.report.gate_words import amount, line_of, number, several, signed

WORDS = {"failed": "failed", "warned": "warned", "passed": "passed", "skipped": "not held"}
PROJECT_FILE = "pyproject.toml"
"""Where formats that need a file put what is in none of the repository."""
MARKS = {"failed": "error", "warned": "warning", "passed": "good", "skipped": "info"}


def title(head: Head) -> str:
    """``name (id)`` of a run, with what there is of it."""
    name = safe(head.name or head.id) or "unnamed run"
    return f"{name} ({safe(head.id)})" if head.id and head.name and head.id != head.name else name


def outcome(gate: GateDocument) -> str:
    """The verdict in one line."""
    states = Counter(check.status for check in gate.checks)
    failed, warned = states["failed"], states["warned"]
    held = plural(len(gate.checks) - states["skipped"], "limit")
    warning = f", {plural(warned, 'warning')}" if warned else ""
    return f"over budget: {failed} of {held} broken{warning}" if failed else f"within budget: {held} kept{warning}"


def headline(gate: GateDocument) -> list[Fact]:
    """Which run, against what, and how it went."""
    lines = [
        Fact("run", described(gate.run), literal=True),
        Fact("against", against(gate), literal=True),
        Fact("verdict", outcome(gate)),
    ]
    return [line for line in lines if line.value]


def described(head: Head) -> str:
    """What is known of a run beside its name."""
    parts = [
        f"commit {short(head.commit)}" if head.commit else "commit not known",
        head.created[:16].replace("T", " "),
        head.device or head.kind,
        f"torch {head.torch}" if head.torch else "",
    ]
    return " · ".join(safe(part) for part in parts if part)


def against(gate: GateDocument) -> str:
    """The baseline, and of which commit it is."""
    if gate.comparison is None:
        return ""
    head = gate.comparison.before
    named = f", {title(head)}" if head.id and head.id not in gate.baseline else ""
    return f"{safe(gate.baseline)}{named} · {described(head)}"


def problems(gate: GateDocument) -> list[Check]:
    """Limits that are broken, those that fail first."""
    return [check for status in ("failed", "warned") for check in gate.checks if check.status == status]


def sentence(check: Check) -> str:
    """A limit and what became of it."""
    return f"{check.title}: {check.message}"


def set_at(check: Check) -> str:
    """``file:line`` that holds the limit."""
    if check.key == "ranks":
        return "the run has to hold every rank that its baseline does"
    if not check.file:
        what = "peak memory may grow by 1 %" if check.key == "peak_memory" else "no count may grow"
        return f"{what} against a baseline, unless max_increase is set"
    name = short_path(check.file, Path.cwd())
    return f"{name}:{check.line}" if check.line else name


def particulars(gate: GateDocument, check: Check) -> list[Fact]:
    """What got worse and where, what it costs, and the line that holds the limit."""
    lines = [fact for culprit in check.culprits for fact in worse(gate, culprit)]
    return [*lines, _limit(check)]


def told_once(gate: GateDocument) -> Iterator[tuple[Check, list[Fact]]]:
    """Broken limits with their :func:`particulars`, where a finding's are told at the first limit that it breaks."""
    seen: set[Culprit] = set()
    firsts: dict[frozenset[Culprit], str] = {}
    for check in problems(gate):
        found = frozenset(check.culprits)
        first = firsts.setdefault(found, check.id)
        if found and first != check.id:
            noun = "finding" if len(found) == 1 else "findings"
            lines = [Fact("finding", f"the same {noun} as for {safe(first)}", literal=True)]
        else:
            lines = [fact for each in check.culprits for fact in worse(gate, each)[: 1 if each in seen else None]]
        seen |= found
        yield check, [*lines, _limit(check)]


def _limit(check: Check) -> Fact:
    return Fact("limit", f"{safe(check.id)}, {set_at(check)}", literal=True)


def standing_alone(gate: GateDocument, check: Check) -> list[Fact]:
    """As :func:`particulars`, with what a reader of the whole report knows already: since when, and what to do."""
    return [*particulars(gate, check), *context(gate)]


def context(gate: GateDocument) -> list[Fact]:
    """Since when, and what to do."""
    lines = [Fact("against", against(gate), literal=True)]
    lines += [Fact("next", gate.next[0], literal=True)] if gate.next else []
    return [line for line in lines if line.value]


def worse(gate: GateDocument, culprit: Culprit) -> list[Fact]:
    """A finding: what it is, then where and what it costs, as far as these are known."""
    where = " · ".join(part for part in (shown(culprit.source, gate.root), safe(culprit.module)) if part)
    lines = [
        Fact("finding", f"{safe(culprit.rule)} {safe(culprit.name)}, {culprit.what}", literal=True),
        Fact("at", where, literal=True),
        Fact("costs", cost(culprit)),
    ]
    return [line for line in lines if line.value]


def cost(culprit: Culprit) -> str:
    """What fusing the finding would likely save, where it was timed."""
    if not culprit.step_us and not culprit.likely_us:
        return ""
    return f"{duration(culprit.step_us)} of the step, {duration(culprit.likely_us)} of kernel time (estimated)"


def shown(place: Place | None, root: str) -> str:
    """The source line with its file from ``root`` on, or from the installed package's; empty where it isn't known."""
    if place is None:
        return ""
    file = short_path(place.file, Path(root) if root else None)
    return line_of(Place(file=file, line=place.line, function=place.function))


def change_place(change: FindingChange, root: str) -> str:
    """Where a finding is: its source line from ``root`` on, else the class of its module."""
    return shown(change.source, root) or safe(change.module_class)


def in_repository(gate: GateDocument, file: str) -> str:
    """A file from the repository's root on, with slashes; empty where it lies elsewhere."""
    path = Path(file)
    if not file or not gate.root or ".." in path.parts or PureWindowsPath(file).drive:  # a trace of Windows has those
        return ""
    if not path.is_absolute():
        return path.as_posix()
    inside = path.is_relative_to(gate.root) and path != Path(gate.root)
    return path.relative_to(gate.root).as_posix() if inside else ""


MEASURE_HEAD = ("A STEP", "BEFORE", "AFTER", "CHANGE", "")


def measures(found: Comparison) -> list[tuple[str, ...]]:
    """Rows of the table of figures."""
    rows = []
    for each in found.measures:
        pair = [("–" if value is None else amount(value, each.unit)) for value in (each.before, each.after)]
        change = "–" if each.before is None or each.after is None else signed(each.before, each.after, each.unit)
        verdict = "" if each.verdict in ("same", "unknown") else each.verdict
        remark = ", ".join(part for part in (verdict, "" if each.counted else _measured(each)) if part)
        rows.append((each.label, *pair, change, remark))
    return rows


def _measured(each: Measure) -> str:
    """Of how many runs, and within which interval, the later figure is the median."""
    after = each.spreads[1]
    if after is None or after.low is None or after.high is None:
        return "measured"
    return f"median of {after.runs} runs, {amount(after.low, each.unit)} to {amount(after.high, each.unit)}"


def change_counts(found: Comparison) -> str:
    """``1 new, 2 fixed, 5 the same``."""
    kinds = Counter(change.change for change in found.findings)
    words: dict[Change, str] = {
        "new": "new",
        "more": "larger",
        "fewer": "smaller",
        "fixed": "fixed",
        "same": "the same",
    }
    parts = [f"{kinds[key]} {word}" for key, word in words.items() if kinds[key]]
    return ", ".join(parts) or "none in either run"


def change_words(change: FindingChange) -> str:
    """What became of a finding: ``new: 2 sites, 14 kernels``, ``2 → 4 sites, 14 → 28 kernels``."""
    if change.change in ("new", "fixed", "same"):
        side = 0 if change.change == "fixed" else 1
        return f"{several(change.sites[side], 'site')}, {several(change.kernels[side], 'kernel')}"
    pairs = ((change.sites, "sites"), (change.kernels, "kernels"))
    return ", ".join(f"{number(a)} → {number(b)} {noun}" for (a, b), noun in pairs)
