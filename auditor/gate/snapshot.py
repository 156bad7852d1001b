"""What a gate needs of an audit document: less the sites, a step each, findings of one fingerprint together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from auditor.document import Document, Finding, Rank, RankFinding, SourceInfo
from auditor.engine.kinds import kind_of
from auditor.gate.measures import a_step, figures_from, figures_of, steps_of
from auditor.gate.whole_steps import of_whole_steps
from auditor.gate_document import Found, Head, Place, RankSnapshot, Snapshot
from auditor.report.facts import avoidable

MODULES = 3
"""Module paths that are kept of a finding: enough to find it, few enough for a small file."""


def snapshot_of(document: Document) -> Snapshot:
    """The parts of ``document`` that a gate compares."""
    return Snapshot(
        run=head_of(document), figures=figures_of(document), findings=found_in(document), ranks=_ranks(document)
    )


def _ranks(document: Document) -> list[RankSnapshot]:
    """The ranks that differ from the one that ``document`` is of, in groups that are alike."""
    groups: dict[str, list[Rank]] = {}
    for rank in document.ranks:
        if rank.recorded and rank.differs:
            shown = [(f.fingerprint, f.sites, f.kernels, f.kernels_after, f.bytes_now) for f in rank.findings]
            groups.setdefault(f"{rank.differs} {sorted(shown)}", []).append(rank)
    return [
        RankSnapshot(
            ranks=[rank.rank for rank in group],
            figures=figures_from(group[0].totals, max(group[0].coverage.steps, 1)),
            findings=_short(group[0].findings),
        )
        for group in groups.values()
    ]


def _short(findings: list[RankFinding]) -> list[Found]:
    groups: dict[str, list[RankFinding]] = defaultdict(list)
    for finding in findings:
        groups[finding.fingerprint].append(finding)
    made = [
        Found(
            fingerprint=mark, rule=group[0].rule, name=group[0].name, module_class=group[0].module_class,
            source=place_of(group[0].source), sites=sum(f.sites for f in group), kernels=sum(f.kernels for f in group),
            avoidable=sum(max(f.kernels - f.kernels_after, 0) for f in group), bytes=sum(f.bytes_now for f in group),
            kind=group[0].kind,
        )
        for mark, group in groups.items()
    ]  # fmt: skip
    return sorted(made, key=lambda each: (each.rule, each.fingerprint))


def head_of(document: Document) -> Head:
    """Which run it is."""
    run = document.run
    return Head(
        id=run.id, name=run.name, created=run.created, commit=run.commit, device=run.device.name,
        kind=run.device.kind, torch=run.torch, edges=document.coverage.edges, steps=steps_of(document),
        select=sorted(run.select), ignore=sorted(run.ignore), world_size=run.world_size,
        alike=not any(rank.differs for rank in document.ranks), rank=run.rank,
        unrecorded=[rank.rank for rank in document.ranks if not rank.recorded],
    )  # fmt: skip


def found_in(document: Document) -> list[Found]:
    """The findings by fingerprint: several dtypes or phases of one are one."""
    groups: dict[str, list[Finding]] = defaultdict(list)
    for finding in of_whole_steps(document).findings:
        groups[finding.fingerprint].append(finding)
    steps = steps_of(document)
    made = [_found(mark, group, steps) for mark, group in groups.items()]
    return sorted(made, key=lambda each: (each.rule, each.fingerprint))


def _found(mark: str, group: list[Finding], steps: int) -> Found:
    first = group[0]

    def total(measure: Callable[[Finding], float]) -> float:
        return a_step(sum(map(measure, group)), steps)

    return Found(
        fingerprint=mark,
        rule=first.rule,
        name=first.name,
        module_class=first.module_class,
        phase=first.phase,
        source=place_of(first.source),
        modules=list(dict.fromkeys(m for f in group for m in f.modules if m))[:MODULES],
        kind=kind_of(first),
        sites=total(lambda f: f.sites),
        kernels=total(lambda f: f.kernels),
        avoidable=total(avoidable),
        bytes=total(lambda f: f.bytes_now),
        device_us=total(lambda f: f.device_us),
        likely_us=total(lambda f: f.saving.likely_us),
        step_us=total(lambda f: f.saving.step_us),
    )


def place_of(source: SourceInfo | None) -> Place | None:
    """The line that a finding names, if it names one."""
    if source is None or not source.file:
        return None
    return Place(file=source.file, line=source.line, function=source.function)


def relative(place: Place | None, root: Path) -> Place | None:
    """``place`` with its file from ``root`` on, where it lies in there."""
    if place is None:
        return None
    path = Path(place.file)
    file = path.relative_to(root).as_posix() if path.is_relative_to(root) else place.file
    return Place(file=file, line=place.line, function=place.function)
