"""Findings held against truth that others established by reading models and traces: by kernels, site for site.

The truth numbers the device events of a file (kernels, copies, fills) by start, then by launch; so are the kernels of
our sites, which makes the two comparable without names, shapes or rules.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from auditor.audit import Audit
from auditor.collect.kineto import Event, Trace, decode_launch, load_trace
from auditor.document import Finding, Site
from auditor.engine.claims import claim
from auditor.engine.rules import load_rules
from auditor.graph.model import Kernel, Op, owner_of

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
TRUTH = SHARED / "truth.json"
STATES = ("found", "larger", "split", "part", "refused", "missed")
"""Of a true site: a site of ours is it, or covers it; several sites share it; some of it is in sites; nothing is, and
a rule refused it, or none spoke of it."""


@cache
def truths() -> dict[str, dict[str, Any]]:
    """Facts of each trace by its name."""
    loaded: dict[str, dict[str, Any]] = json.loads(TRUTH.read_text(encoding="utf-8"))["traces"]
    return loaded


@cache
def _true_kernels() -> dict[str, dict[str, list[list[int]]]]:
    with gzip.open(SHARED / "truth_site_kernels.json.gz", "rt", encoding="utf-8") as file:
        loaded: dict[str, dict[str, list[list[int]]]] = json.load(file)
    return loaded


@dataclass(frozen=True)
class Ours:
    """A site of a finding, with the truth's numbers of its kernels."""

    finding: Finding
    site: Site
    kernels: frozenset[int]


@dataclass
class Pattern:
    """One true pattern of a trace, and what became of its sites. Times in microseconds."""

    name: str
    kind: str
    sites: int
    true_us: float
    states: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    ours_us: float = 0.0
    """Time of the pattern's kernels that are in sites of ours."""

    @property
    def recall(self) -> float:
        """Share of the sites that one site of ours covers."""
        return (self.states["found"] + self.states["larger"]) / self.sites


class Numbered:
    """The device events of a trace by the truth's numbers."""

    def __init__(self, trace: Trace) -> None:
        launched = {decode_launch(e).correlation: e.start for e in reversed(trace.launches)}
        events = sorted(
            (*trace.kernels, *trace.memory),
            key=lambda e: (e.start, launched.get(decode_launch(e).correlation, float("inf"))),
        )
        self.events: list[Event] = events
        origin = min((e.start for e in (*trace.cpu_ops, *trace.kernels)), default=0.0)
        self._numbers: dict[tuple[str, float, float], list[int]] = defaultdict(list)
        for number, event in enumerate(events):
            self._numbers[event.name, event.start - origin, event.dur or 0.0].append(number)
        self._given: dict[int, int] = {}

    def of(self, kernel: Kernel) -> int:
        """Number of ``kernel``; of several that look alike, one each, in the order asked for."""
        if id(kernel) not in self._given:
            alike = self._numbers[kernel.name, kernel.start_us, kernel.dur_us]
            self._given[id(kernel)] = alike.pop(0) if len(alike) > 1 else alike[0]
        return self._given[id(kernel)]


class Held:
    """One trace's audit beside its truth."""

    def __init__(self, name: str) -> None:
        import auditor

        path = SHARED / f"{name}.json.gz"
        self.name, self.truth = name, truths()[name]
        self.audit: Audit = auditor.load(path)
        self.numbered = Numbered(load_trace(path))
        ops = self.audit.graph.ops
        self.kernels_of_op = [[self.numbered.of(k) for k in op.kernels if not k.is_transfer] for op in ops]
        self.sites = [
            Ours(finding, site, self._numbers_of(site))
            for finding in self.audit.findings
            if finding.family != "launch"  # it is about wall time, and claims no kernel
            for site in finding.places
        ]
        self.holders: dict[int, list[int]] = defaultdict(list)
        for i, ours in enumerate(self.sites):
            for number in ours.kernels:
                self.holders[number].append(i)

        self.neighbours: dict[int, set[int]] = defaultdict(set)
        for op in ops:
            for value in op.inputs():
                made = owner_of(value).producer
                if made is not None and made is not op:
                    self.neighbours[op.index].add(made.index)
                    self.neighbours[made.index].add(op.index)

    def _numbers_of(self, site: Site) -> frozenset[int]:
        linked = {number for i in site.ops for number in self.kernels_of_op[i]}
        return frozenset(linked | {self.numbered.of(self.audit.graph.unlinked[i]) for i in site.unlinked})

    def ops_of(self, ours: Ours) -> list[Op]:
        """The ops of a site, in order."""
        return [self.audit.graph.ops[i] for i in ours.site.ops]

    def dur_us(self, numbers: Iterable[int]) -> float:
        """Time of kernels, microseconds."""
        return sum(self.numbered.events[n].dur or 0.0 for n in numbers)

    def true_sites(self) -> dict[str, list[frozenset[int]]]:
        """Kernels of each true site, by pattern; empty where the truth does not list them."""
        held: Mapping[str, Any] = _true_kernels().get(self.name) or {}
        return {name: [frozenset(site) for site in sites or ()] for name, sites in held.items()}

    @cached_property
    def listed(self) -> frozenset[int]:
        """Kernels that are in some true site."""
        return frozenset(n for sites in self.true_sites().values() for site in sites for n in site)

    def holding(self, site: frozenset[int]) -> list[int]:
        """Our sites, by place, that hold all kernels of ``site``."""
        counts = Counter(i for n in site for i in self.holders.get(n, ()))
        return [i for i, count in counts.items() if count == len(site)]

    def patterns(self) -> list[Pattern]:
        """Every pattern of the truth, with what became of its sites."""
        kernels = self.true_sites()
        made = []
        for entry in self.truth["true_sites"]:
            pattern = Pattern(entry["pattern"], entry["kind"], entry["sites"], entry.get("total_us") or 0.0)
            for site in kernels.get(pattern.name, ()):
                self._settle(pattern, site)
            made.append(pattern)
        return made

    def _settle(self, pattern: Pattern, site: frozenset[int]) -> None:
        pattern.rules.update({self.sites[i].finding.rule for n in site for i in self.holders.get(n, ())})
        held = [n for n in site if n in self.holders]
        pattern.ours_us += self.dur_us(held)
        whole = [self.sites[i].kernels for i in self.holding(site)]
        if whole:
            pattern.states["found" if site in whole else "larger"] += 1
        elif held:
            pattern.states["split" if len(held) == len(site) else "part"] += 1
            pattern.reasons.update(self._why(site))
        else:
            reasons = self._why(site)
            pattern.states["refused" if reasons else "missed"] += 1
            pattern.reasons.update(reasons)

    def _why(self, site: frozenset[int]) -> list[str]:
        return sorted({reason for n in site for reason in self.refusals.get(n, ())})[:3]

    @cached_property
    def refusals(self) -> dict[int, set[str]]:
        """Reasons of refusal by kernel, of this trace's graph under the built-in rules."""
        found: dict[int, set[str]] = defaultdict(set)
        for rule, refusal in claim(self.audit.graph, load_rules()).refused:
            for op in refusal.ops:
                for number in self.kernels_of_op[op.index]:
                    found[number].add(f"{rule.id}: {refusal.reason}")
        return found
