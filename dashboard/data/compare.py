"""Two runs side by side, by finding and by kernel: gone, new, slower, faster.

A profile holds one step and a trace as many as it says: everything here is of one step, so that they compare.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from auditor.document import Document
from auditor.gate.compare import compare_findings as counted_changes
from auditor.gate.compare import ran_elsewhere, remarks_on
from auditor.gate.measures import figures_of, steps_of
from auditor.gate.snapshot import found_in, head_of
from auditor.gate.whole_steps import of_whole_steps
from auditor.gate_document import FindingChange as CountedChange
from auditor.report.format import safe
from dashboard.data.kernel_table import KernelTable, kernel_table
from dashboard.data.kinds import KINDS
from dashboard.data.stored import head

Change = Literal["gone", "new", "slower", "faster", "same"]
WITHIN = 0.05
"""Times that differ by less than this share are the same: a machine's pace varies by as much."""


class FindingChange(msgspec.Struct, kw_only=True, frozen=True):
    """One fingerprint in two runs (before, after); what a run does not have is 0. Counts and microseconds a step."""

    change: Change
    fingerprint: str
    after: str
    """Its fingerprint in the run after; empty where that does not have it."""
    rule: str
    name: str
    module_class: str
    source: str
    sites: tuple[float, float]
    kernels: tuple[float, float]
    avoidable: tuple[float, float]
    device_us: tuple[float, float]
    likely_us: tuple[float, float]


class KernelChange(msgspec.Struct, kw_only=True, frozen=True):
    """Kernels of one name in two runs (before, after), counts and microseconds a step."""

    change: Change
    name: str
    kind: str
    kernels: tuple[float, float]
    dur_us: tuple[float, float]


class RunFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What is compared of the runs as a whole, a step each."""

    id: str
    name: str
    created: str
    device: str
    steps: int
    """That the recording holds."""
    findings: int
    step_us: float
    device_us: float
    memory_bound_us: float
    kernels: float
    unfused_kernels: float
    avoidable_kernels: float
    likely_us: float


class Comparison(msgspec.Struct, kw_only=True, frozen=True):
    before: RunFacts
    after: RunFacts
    findings: list[FindingChange]
    """The largest difference in time first."""
    kernels: list[KernelChange]
    """The largest difference in time first; empty where a run has no table of kernels."""
    remarks: list[str]
    """What makes the two runs hard to compare: another device, another number of steps."""


def compare(before: str, after: str, within: float = WITHIN) -> Comparison:
    """Compare two runs. AuditError where one of them is not there."""
    a, b = head(before), head(after)
    tables = [kernel_table(run.id) for run in (a, b) if {"kernels", "ops"} <= set(run.table_names)]
    facts = _facts(a.document), _facts(b.document)
    kernels = (
        compare_kernels(tables[0], tables[1], (facts[0].steps, facts[1].steps), within) if len(tables) == 2 else []
    )
    return Comparison(
        before=facts[0],
        after=facts[1],
        findings=compare_findings(a.document, b.document, within),
        kernels=kernels,
        remarks=_remarks(a.document, b.document, tables=len(tables)),
    )


def change_of(count: tuple[float, float], us: tuple[float, float], within: float) -> Change:
    """What became of it: by time where both are timed, else by how many there are."""
    if not count[0] or not count[1]:
        return "new" if count[1] else "gone"
    before, after = us if us[0] > 0 and us[1] > 0 else count
    if abs(after - before) <= within * before:
        return "same"
    return "slower" if after > before else "faster"


def compare_findings(before: Document, after: Document, within: float = WITHIN) -> list[FindingChange]:
    """The findings of both, matched as the gate matches them, and judged by their time where they are timed."""
    elsewhere = ran_elsewhere(head_of(before), head_of(after))
    changes = counted_changes(found_in(before), found_in(after), elsewhere=elsewhere)
    made = [_timed(change, within) for change in changes]
    return sorted(made, key=lambda each: (-abs(each.device_us[1] - each.device_us[0]), each.fingerprint))


def _timed(change: CountedChange, within: float) -> FindingChange:
    return FindingChange(
        change=change_of(change.kernels, change.device_us, within),
        fingerprint=change.fingerprint,
        after=change.after,
        rule=change.rule,
        name=change.name,
        module_class=safe(change.module_class),
        source=safe(f"{change.source.file}:{change.source.line}") if change.source else "",
        sites=change.sites,
        kernels=change.kernels,
        avoidable=change.avoidable,
        device_us=change.device_us,
        likely_us=change.likely_us,
    )


def compare_kernels(
    before: KernelTable, after: KernelTable, steps: tuple[int, int] = (1, 1), within: float = WITHIN
) -> list[KernelChange]:
    """The kernels of both by name, a step each."""
    a, b = _by_name(before, steps[0]), _by_name(after, steps[1])
    nothing = (0.0, 0.0, "")
    made = []
    for name in dict.fromkeys([*a, *b]):
        (count0, us0, kind0), (count1, us1, kind1) = a.get(name, nothing), b.get(name, nothing)
        counts, times = (count0, count1), (us0, us1)
        change = change_of(counts, times, within)
        made.append(KernelChange(change=change, name=name, kind=kind1 or kind0, kernels=counts, dur_us=times))
    return sorted(made, key=lambda each: (-abs(each.dur_us[1] - each.dur_us[0]), each.name))


def _by_name(table: KernelTable, steps: int) -> dict[str, tuple[float, float, str]]:
    """Kernels and µs a step, and the kind of the last of them, by name."""
    size, codes = len(table.name.words), table.name.codes
    count, time = np.bincount(codes, minlength=size) / steps, np.bincount(codes, table.dur_us, size) / steps
    kind = np.zeros(size, np.int64)
    kind[codes] = table.kind.codes
    kinds = [KINDS[code] for code in kind.tolist()]
    rows = zip(table.name.words, count.tolist(), time.tolist(), kinds, strict=True)
    return {name: (n, us, of) for name, n, us, of in rows if n}


def _facts(document: Document) -> RunFacts:
    document = of_whole_steps(document)
    run, totals, figures, steps = document.run, document.totals, figures_of(document), steps_of(document)
    return RunFacts(
        id=run.id,
        name=safe(run.name),
        created=run.created,
        device=safe(run.device.name or run.device.kind),
        steps=steps,
        findings=len(document.findings),
        step_us=figures.step_us or 0.0,
        device_us=totals.device_us / steps,
        memory_bound_us=totals.memory_bound_us / steps,
        kernels=figures.kernels,
        unfused_kernels=figures.unfused_kernels,
        avoidable_kernels=figures.avoidable_kernels,
        likely_us=totals.saving.likely_us / steps,
    )


def _remarks(before: Document, after: Document, *, tables: int) -> list[str]:
    remarks = remarks_on(head_of(before), head_of(after))
    if tables < 2:
        remarks.append("One of the runs has no table of kernels: only findings are compared.")
    return remarks
