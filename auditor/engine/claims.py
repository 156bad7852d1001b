"""Which rule gets which kernels: every kernel is claimed once, so savings add up.

Rules that yield come after the rules they yield to; within one turn the candidate that saves most bytes (of GEMMs to
be packed: by each of them) wins, then the one with more kernels, then the one whose ops lie closer, then the earlier
one. Bytes and counts decide, never measured times: the same program gives the same claims in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from auditor.engine.by_order import ByOrder, is_shapeless
from auditor.engine.chains import propose_chains
from auditor.engine.detect import BEFORE_CHAINS, LAST, detect
from auditor.engine.legality import Refusal
from auditor.engine.propose import Candidate, Proposals, evaluate, propose
from auditor.engine.rules import Rule
from auditor.engine.siblings import propose_siblings
from auditor.graph.canonical import Canonical
from auditor.graph.garbage import collection_paused
from auditor.graph.model import Op, OpGraph
from auditor.graph.traffic import Traffic, traffic_of


@dataclass(slots=True)
class Claims:
    """The accepted sites in execution order, and what was refused, by rule id.

    ``traffic`` tells the bytes that an op of the graph moves; the matching worked most of them out already.
    ``dismantle`` takes apart what the rules were matched against, where nothing of the claims is needed any more.
    """

    sites: list[Candidate] = field(default_factory=list)
    refused: list[tuple[Rule, Refusal]] = field(default_factory=list)
    traffic: Callable[[Op], Traffic] = traffic_of
    dismantle: Callable[[], None] = lambda: None


def claim(
    graph: OpGraph | Canonical, rules: Sequence[Rule], *, keep: Callable[[Candidate], bool] | None = None,
    possible: Callable[[Candidate], bool] = lambda _: True,
) -> Claims:  # fmt: skip
    """Match all rules and settle who gets what.

    ``keep`` may turn a legal candidate away before it claims anything (a suppression): its kernels stay
    claimed by nobody, so no weaker rule reports the same place. One that is not ``possible`` leaves its
    kernels to the other rules.
    """
    with collection_paused():
        canonical = graph if isinstance(graph, Canonical) else Canonical(graph)
        claimer = _Claimer(canonical, keep, possible)
        for turn in turns(rules):
            claimer.take_turn(turn)
    claimer.claims.sites.sort(key=lambda c: (c.region.ops[0].index, c.rule.id))
    return claimer.claims


class _Claimer:
    def __init__(
        self, graph: Canonical, keep: Callable[[Candidate], bool] | None, possible: Callable[[Candidate], bool]
    ) -> None:  # fmt: skip
        self.graph = graph
        self.keep, self.possible = keep, possible
        self.by_order = ByOrder(graph) if is_shapeless(graph.graph) else None
        self.claims = Claims(traffic=graph.traffic, dismantle=graph.dismantle)
        self.taken: set[int] = set()

    def take_turn(self, turn: list[Rule]) -> None:
        proposals = [(rule, self._propose(rule)) for rule in turn]
        self._accept([c for _, p in proposals for c in p.candidates])
        self._accept([c for rule, p in proposals for c in self._second_chance(rule, p)])
        for rule, made in proposals:
            self.claims.refused.extend((rule, r) for r in made.refusals if not self._all_taken(r))

    def _propose(self, rule: Rule) -> Proposals:
        if self.by_order is not None and rule.detect is None:
            return self.by_order.propose(rule, self.taken)
        if rule.siblings is not None:
            return propose_siblings(self.graph, rule, self.taken)
        if rule.chain is not None:
            return propose_chains(self.graph, rule, self.taken)
        if rule.detect is not None:
            return detect(self.graph, rule, self.taken)
        return propose(self.graph, rule, self.taken)

    def _second_chance(self, rule: Rule, proposals: Proposals) -> Iterator[Candidate]:
        """Smaller forms where the larger form lost its kernels to another site; of siblings, those that are left."""
        if rule.siblings is not None and any(self._has_lost(c) for c in proposals.candidates):
            yield from propose_siblings(self.graph, rule, self.taken).candidates
        for search, start in proposals.deferred:
            if start.index in self.taken:
                continue
            for match in search.at(start):
                if self.taken.isdisjoint(match.op_indices()):
                    found = evaluate(self.graph, rule, match)
                    if isinstance(found, Candidate):
                        yield found

    def _accept(self, candidates: list[Candidate]) -> None:
        for candidate in sorted(candidates, key=_preference):
            members = {op.index for op in candidate.region.ops}
            if self.taken.isdisjoint(members) and self.possible(candidate):
                self.taken |= members
                if self.keep is None or self.keep(candidate):
                    self.claims.sites.append(candidate)

    def _has_lost(self, candidate: Candidate) -> bool:
        """Whether some of its kernels went elsewhere, and some did not."""
        held = [op.index in self.taken for op in candidate.region.ops]
        return any(held) and not all(held)

    def _all_taken(self, refusal: Refusal) -> bool:
        return bool(refusal.ops) and self.taken.issuperset(op.index for op in refusal.ops)


def _preference(candidate: Candidate) -> tuple[int, int, int, int, str]:
    region = candidate.region
    first, last = region.ops[0].index, region.ops[-1].index
    saved = candidate.bytes_saved
    if candidate.rule.siblings is not None:  # each of them could go elsewhere, where it may save more by itself
        saved //= len(region.ops)
    return (-saved, -len(region.ops), last - first, first, candidate.rule.id)


def turns(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules in the order they may claim: nobody before those it yields to, then chains, then what needs the rest."""
    present = {rule.id for rule in rules}
    waiting = sorted(rules, key=lambda r: r.id)
    done: set[str] = set()
    order: list[list[Rule]] = []
    chains = [r for r in waiting if r.chain is not None]
    early, late = ([r for what in group for r in waiting if _detects(r) == what] for group in (BEFORE_CHAINS, LAST))
    waiting = [r for r in waiting if r not in chains and r not in early and r not in late]
    while waiting:
        ready = [r for r in waiting if all(y in done or y not in present for y in r.yields_to)]
        ready = ready or waiting  # a circle of yields: settle it by savings
        order.append(ready)
        done |= {r.id for r in ready}
        waiting = [r for r in waiting if r.id not in done]
    return [*order, *([rule] for rule in (*early, *chains, *late))]


def _detects(rule: Rule) -> str:
    return str(rule.detect["what"]) if rule.detect else ""
