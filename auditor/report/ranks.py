"""What a report says of the ranks of a job, in words and in order, before any format dresses it.

Values that hold names from the run are made safe here; tables hold text only.
"""

from __future__ import annotations

from statistics import median

from auditor.document import Document, Rank, RankFinding
from auditor.report.facts import place
from auditor.report.format import count, duration, plural, ratio, safe, share, speedup

HEAD = (
    "rank",
    "kernels",
    "unfused",
    "avoidable",
    "step",
    "idle",
    "collectives",
    "in these",
    "remark",
    "host",
    "device",
)
NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7)
"""Columns of the table that are numbers."""
MOST = 64
"""Rows shown: those that differ or failed come first where there are more."""
_FINDINGS = 20
_STRAGGLES = 1.05
"""A step that is longer than the median's by less says nothing: a machine's pace varies as much."""


def title(document: Document) -> str:
    """``2 ranks, details of rank 0``."""
    return f"{plural(len(document.ranks), 'rank')}, details of rank {document.run.rank}"


def shown(document: Document) -> list[Rank]:
    """The ranks that a table shows, in order."""
    ranks = document.ranks
    if len(ranks) <= MOST:
        return ranks
    first = sorted(ranks, key=lambda rank: (rank.status == "recorded" and not rank.differs, rank.rank))[:MOST]
    return sorted(first, key=lambda rank: rank.rank)


def rows(document: Document) -> list[tuple[str, ...]]:
    """Cells of the table, under :data:`HEAD`."""
    return [_row(rank) for rank in shown(document)]


def _row(rank: Rank) -> tuple[str, ...]:
    remark = {"recorded": "differs" if rank.differs else ""}.get(rank.status, safe(rank.status))
    host = safe(rank.host) or "–"
    if not rank.recorded:
        return (str(rank.rank), *["–"] * 7, remark, host, "–")
    totals = rank.totals
    counts = (totals.kernels, totals.unfused_kernels, totals.avoidable_kernels)
    timed = totals.step_us > 0
    return (
        str(rank.rank), *map(count, counts), duration(totals.step_us) if timed else "–",
        share(totals.idle_us, totals.step_us) if timed else "–", count(totals.collective_kernels),
        duration(totals.collective_us) if totals.collective_kernels else "–", remark or "–", host,
        safe(rank.device.name or rank.device.kind),
    )  # fmt: skip


def sentences(document: Document) -> list[str]:
    """What the table says, and what it can't: who is slowest, who differs, and findings that not all ranks have."""
    told = [_size(document), _same(document), _slowest(document), *_differences(document), *_findings(document)]
    if len(document.ranks) > MOST:
        told.append(f"The table shows {MOST} of {len(document.ranks)} ranks, those that differ or failed first.")
    return [sentence for sentence in told if sentence]


def _recorded(document: Document) -> list[Rank]:
    return [rank for rank in document.ranks if rank.recorded]


def _size(document: Document) -> str:
    held, size = len(_recorded(document)), len(document.ranks)
    return "" if held == size else f"Steps were recorded of {held} of {size} ranks."


def _same(document: Document) -> str:
    ranks = _recorded(document)
    if len(ranks) < 2 or any(rank.differs for rank in ranks):
        return ""
    return f"All {len(ranks)} have the same kernels and findings."


def _slowest(document: Document) -> str:
    timed = [rank for rank in _recorded(document) if rank.totals.step_us > 0]
    if len(timed) < 2:
        return ""
    steps = [rank.totals.step_us for rank in timed]
    low, middle, high = min(steps), median(steps), max(steps)
    spread = f"A step takes {duration(low)} to {duration(high)}, {duration(middle)} in the median"
    slowest = max(timed, key=lambda rank: rank.totals.step_us)
    if high < _STRAGGLES * middle:
        return f"{spread}: no rank is slower than the others."
    return f"{spread}: rank {slowest.rank} is slowest, {speedup(ratio(high, middle) or 1.0)} the median."


def _differences(document: Document) -> list[str]:
    """A sentence for the ranks that differ in the same way."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for rank in document.ranks:
        if rank.differs:
            groups.setdefault(tuple(rank.differs), []).append(rank.rank)
    return [
        f"{_named(ranks)} {'differs' if len(ranks) == 1 else 'differ'} from rank {document.run.rank}: "
        f"{safe('; '.join(how))}."
        for how, ranks in groups.items()
    ]


def _findings(document: Document) -> list[str]:
    """Findings that some recorded ranks have and others have not, a sentence each."""
    ranks = _recorded(document)
    owners: dict[str, list[int]] = {}
    known: dict[str, RankFinding] = {}
    for rank in ranks:
        for finding in rank.findings:
            known.setdefault(finding.fingerprint, finding)
            held = owners.setdefault(finding.fingerprint, [])
            if rank.rank not in held:
                held.append(rank.rank)
    partial = [mark for mark, held in owners.items() if len(held) < len(ranks)]
    partial.sort(key=lambda mark: (owners[mark], -known[mark].kernels, known[mark].rule, mark))
    told = [f"Only on {named(owners[mark])}: {_finding(known[mark])}." for mark in partial[:_FINDINGS]]
    left = len(partial) - len(told)
    return told + ([f"And {plural(left, 'more finding')} that not all ranks have."] if left > 0 else [])


def _finding(finding: RankFinding) -> str:
    where = place(finding.source) or safe(finding.module_class)
    at = f", at {where}" if where else ""
    return (
        f"{safe(finding.rule)} {safe(finding.name)}: {plural(finding.sites, 'site')}, "
        f"{plural(finding.kernels, 'kernel')}{at}"
    )


def named(ranks: list[int]) -> str:
    """``rank 1``, ``ranks 0 and 2``, ``ranks 1 to 7``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _named(ranks: list[int]) -> str:
    words = named(ranks)
    return words[0].upper() + words[1:]
