"""From the parts of all ranks to one audit: that of the first rank that has one, and what the others have to say."""

from __future__ import annotations

from collections.abc import Mapping

from auditor.document import Document, Finding, Rank, RankFinding
from auditor.engine.kinds import kind_of
from auditor.ranks.part import Part
from auditor.report.format import count, plural, safe, size

_COUNTS = (
    ("kernels", "kernels"),
    ("unfused_kernels", "unfused kernels"),
    ("avoidable_kernels", "avoidable kernels"),
    ("already_fused_kernels", "already fused kernels"),
    ("collective_kernels", "collectives"),
)


def leader(parts: Mapping[int, Part]) -> int | None:
    """The rank whose details the run shows: the lowest that recorded a step."""
    return min((rank for rank, part in parts.items() if part.document is not None), default=None)


def joined(parts: Mapping[int, Part], missing: Mapping[int, str], size_: int) -> Document:
    """The document of the leading rank, with every rank of the job in it. It is changed and given back.

    Args:
        parts: of the ranks that handed one in; at least one has a document.
        missing: why the others did not.
        size_: of the world.
    """
    lead = leader(parts)
    document = parts[lead].document if lead is not None else None
    if lead is None or document is None:
        raise ValueError("no rank has a document")
    run = document.run
    run.world_size, run.rank = size_, lead
    document.ranks = [
        _rank(parts[rank], document) if rank in parts else _missing(rank, missing.get(rank, "nothing is known of it"))
        for rank in range(size_)
    ]
    run.notes.extend(incomplete(document))
    failed = sorted((part for part in parts.values() if part.exit_code), key=lambda part: (part.at_s, part.rank))
    run.exit_code = run.exit_code or (failed[0].exit_code if failed else 0)
    return document


def _missing(rank: int, reason: str) -> Rank:
    return Rank(rank=rank, status="missing", reason=reason, recorded=False)


def _rank(part: Part, lead: Document) -> Rank:
    made = Rank(
        rank=part.rank, local_rank=part.local_rank, host=part.process.host, pid=part.process.pid,
        status="failed" if part.failure else "recorded", reason=part.failure, exit_code=part.exit_code,
        recorded=part.document is not None,
    )  # fmt: skip
    document = part.document
    if document is None:
        return made
    made.device, made.coverage, made.totals = document.run.device, document.coverage, document.totals
    made.findings = [_finding(finding) for finding in document.findings]
    made.notes = [] if document is lead else list(document.run.notes)
    made.differs = [] if document is lead else differences(lead, document)
    return made


def _finding(found: Finding) -> RankFinding:
    return RankFinding(
        fingerprint=found.fingerprint, rule=found.rule, name=found.name, module_class=found.module_class,
        source=found.source, sites=found.sites, kernels=found.kernels, kernels_after=found.kernels_after,
        bytes_now=found.bytes_now, kind=kind_of(found),
    )  # fmt: skip


def differences(lead: Document, other: Document) -> list[str]:
    """In what ``other`` is not what ``lead`` is, by what is the same in every run of one program; no times."""
    told = []
    for key, noun in _COUNTS:
        theirs, ours = getattr(lead.totals, key), getattr(other.totals, key)
        if theirs != ours:
            told.append(f"{count(ours)} {noun}, not {count(theirs)}")
    if lead.totals.bytes != other.totals.bytes:
        told.append(f"{size(other.totals.bytes)} moved by kernels, not {size(lead.totals.bytes)}")
    marks = [{finding.fingerprint for finding in document.findings} for document in (lead, other)]
    if more := len(marks[1] - marks[0]):
        told.append(f"{plural(more, 'finding')} that rank {lead.run.rank} has not")
    if fewer := len(marks[0] - marks[1]):
        told.append(f"lacks {plural(fewer, 'finding')} of rank {lead.run.rank}")
    if lead.run.device.name != other.run.device.name:
        told.append(f"runs on {safe(other.run.device.name)}, not on {safe(lead.run.device.name)}")
    return told


def incomplete(document: Document) -> list[str]:
    """What a reader must know of ranks that are not whole, a sentence each."""
    told = []
    for rank in document.ranks:
        if rank.status == "missing":
            told.append(f"Rank {rank.rank} of {len(document.ranks)} is missing: {rank.reason}.")
        elif rank.status == "failed":
            kept = "what it had recorded by then counts" if rank.recorded else "no step of it was recorded"
            told.append(f"Rank {rank.rank} of {len(document.ranks)} failed: {rank.reason.rstrip('.')}; {kept}.")
    return told
