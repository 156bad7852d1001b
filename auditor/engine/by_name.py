"""Sites among kernels that no op is known for: the same run of kernel names as at linked sites of the same trace.

A kernel that was launched before the window, or replayed from a graph, has neither op nor shapes. Where a rule has
sites among the linked kernels, the names of their kernels in order are a signature. It is only believed where every run
of these names among the linked kernels is such a site. What fusing would save stays unknown, as the shapes are.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from auditor.document import Finding, Site
from auditor.engine.propose import Candidate
from auditor.engine.sums import sums_of
from auditor.graph.model import Kernel, OpGraph

MAX_SPAN = 64
"""Kernels from the first to the last of a site, others between them included."""

ENOUGH = 2
"""Linked sites that a signature needs: one may be a coincidence."""

_UNKNOWN = "found by the names of its kernels, as at {}: no op and no shape is known, so no bytes and no savings"

Stream = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Signature:
    """Names of the kernels from the first to the last of a site, and which of them are the site's."""

    names: tuple[str, ...]
    own: tuple[bool, ...]


@dataclass(slots=True)
class _Line:
    """The kernels of one stream in order; ``sites`` has the linked site of each, None where it is not linked."""

    kernels: list[Kernel]
    sites: list[int | None]
    starts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def runs(self, names: tuple[str, ...], linked: bool) -> Iterator[int]:
        """Where ``names`` stand one after the other, all of linked kernels or all of others."""
        size = len(names)
        rarest = min(range(size), key=lambda i: len(self.starts.get(names[i], ())))
        for place in self.starts.get(names[rarest], ()):
            start = place - rarest
            stop = start + size
            there = self.kernels[start:stop] if start >= 0 else []
            alike = len(there) == size and all(k.name == name for k, name in zip(there, names, strict=True))
            if alike and all((site is not None) == linked for site in self.sites[start:stop]):
                yield start


@dataclass(frozen=True, slots=True)
class NamedSite:
    """Kernels that are a site by their names."""

    like: Candidate
    """A linked site of the same names."""
    kernels: tuple[Kernel, ...]
    rows: tuple[int, ...]
    """Their indices among the graph's unlinked kernels."""
    linked: int
    """Linked sites that have these names."""


def named_sites(graph: OpGraph, candidates: Sequence[Candidate]) -> list[NamedSite]:
    """Sites of the rules among the unlinked kernels, no kernel in two of them; the longest signatures come first."""
    if not any(not kernel.is_transfer for kernel in graph.unlinked):
        return []
    lines = _lines(graph, candidates)
    taken: set[int] = set()
    found = []
    row = {id(kernel): i for i, kernel in enumerate(graph.unlinked)}
    for signature, members in _trusted(lines, candidates):
        for line in lines.values():
            for start in line.runs(signature.names, linked=False):
                own = [line.kernels[start + i] for i, mine in enumerate(signature.own) if mine]
                if taken.isdisjoint(map(id, own)):
                    taken.update(map(id, own))
                    found.append(
                        NamedSite(
                            candidates[members[0]], tuple(own), tuple(row[id(kernel)] for kernel in own), len(members)
                        )
                    )
    return found


def _lines(graph: OpGraph, candidates: Sequence[Candidate]) -> dict[Stream, _Line]:
    site_of = {op.index: i for i, candidate in enumerate(candidates) for op in candidate.region.ops}
    held: dict[Stream, list[tuple[float, int | None, Kernel]]] = defaultdict(list)
    for op in graph.ops:
        for kernel in op.kernels:
            held[kernel.device, kernel.stream].append((kernel.start_us, site_of.get(op.index, -1), kernel))
    for kernel in graph.unlinked:
        held[kernel.device, kernel.stream].append((kernel.start_us, None, kernel))
    return {stream: _line(launched) for stream, launched in held.items()}


def _line(launched: Iterable[tuple[float, int | None, Kernel]]) -> _Line:
    ordered = sorted((each for each in launched if not each[2].is_transfer), key=lambda each: each[0])
    line = _Line([kernel for _, _, kernel in ordered], [site for _, site, _ in ordered])
    for place, kernel in enumerate(line.kernels):
        line.starts[kernel.name].append(place)
    return line


def _trusted(lines: dict[Stream, _Line], candidates: Sequence[Candidate]) -> list[tuple[Signature, list[int]]]:
    """Signatures that stand among linked kernels nowhere but at sites of one rule, with these sites; longest first."""
    places: dict[int, list[tuple[Stream, int]]] = defaultdict(list)
    for stream, line in lines.items():
        for place, site in enumerate(line.sites):
            if site is not None and site >= 0:
                places[site].append((stream, place))
    held: dict[tuple[str, Signature], dict[tuple[Stream, int], int]] = defaultdict(dict)
    for site, at in places.items():
        made = _signature(lines, at, site)
        if made is not None:
            held[candidates[site].rule.id, made][at[0]] = site
    trusted = [
        (signature, sorted(sites.values()))
        for (_, signature), sites in held.items()
        if len(sites) >= ENOUGH
        and all(
            (stream, start) in sites
            for stream, line in lines.items()
            for start in line.runs(signature.names, linked=True)
        )
    ]
    return sorted(trusted, key=lambda each: (-sum(each[0].own), -len(each[1]), each[1][0]))


def _signature(lines: dict[Stream, _Line], at: list[tuple[Stream, int]], site: int) -> Signature | None:
    stream, first = at[0]
    last = at[-1][1] + 1
    if len(at) < 2 or {s for s, _ in at} != {stream} or last - first > MAX_SPAN:
        return None
    line = lines[stream]
    if any(s is None for s in line.sites[first:last]):
        return None
    return Signature(
        tuple(kernel.name for kernel in line.kernels[first:last]), tuple(s == site for s in line.sites[first:last])
    )


def findings_by_name(found: Sequence[NamedSite], linked: Sequence[tuple[Candidate, Finding]]) -> list[Finding]:
    """A finding of its own for each linked one that such sites are like: no savings, no bytes, provenance inferred.

    Args:
        found: the sites.
        linked: every linked site with its finding.
    """
    home = {id(candidate): finding for candidate, finding in linked}
    groups: dict[str, list[NamedSite]] = defaultdict(list)
    like: dict[str, Finding] = {}
    for site in found:
        finding = home[id(site.like)]
        groups[finding.fingerprint].append(site)
        like[finding.fingerprint] = finding
    return [_finding(like[key], sites) for key, sites in groups.items()]


def told_of(findings: Sequence[Finding]) -> str:
    """A sentence on what such findings are worth."""
    sites, kernels = sum(f.sites for f in findings), sum(f.kernels for f in findings)
    where = "1 site" if sites == 1 else f"{sites:,} sites"
    return (
        f"{where} of {kernels:,} kernels that no op is known for are found by the names of their kernels, in the order "
        "of linked sites of this trace; without shapes it is not known what fusing them saves, so they count no bytes "
        "and no time saved."
    )


def _finding(like: Finding, sites: list[NamedSite]) -> Finding:
    return Finding(
        rule=like.rule,
        name=like.name,
        family=like.family,
        severity=like.severity,
        fingerprint=hashlib.sha256(f"{like.fingerprint}|by name".encode()).hexdigest()[:16],
        provenance="inferred",
        phase=like.phase,
        module_class=like.module_class,
        ops=like.ops,
        replacement=like.replacement,
        dtype=like.dtype,
        variant=like.variant,
        **sums_of([_site(like, site) for site in sites]),
    )


def _site(like: Finding, site: NamedSite) -> Site:
    linked = f"{site.linked} linked site{'' if site.linked == 1 else 's'}"
    return Site(
        ops=[],
        unlinked=list(site.rows),
        kernels=len(site.kernels),
        kernels_after=site.like.kernels_after,
        device_us=sum(kernel.dur_us for kernel in site.kernels),
        variant=like.variant,
        formula=_UNKNOWN.format(linked),
    )
