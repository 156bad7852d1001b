"""Which rule gets which kernels: every kernel is claimed once, so savings add up.

Rules that yield come after the rules they yield to; within one turn the candidate that saves most bytes
wins, then the one with more kernels, then the earlier one. Bytes and counts decide, never measured
times: the same program gives the same claims in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from auditor.engine.chains import propose_chains
from auditor.engine.legality import Refusal
from auditor.engine.propose import Candidate, propose
from auditor.engine.rules import Rule
from auditor.engine.siblings import propose_siblings
from auditor.graph.canonical import Canonical
from auditor.graph.model import OpGraph


@dataclass(slots=True)
class Claims:
    """The accepted sites in execution order, and what was refused, by rule id."""

    sites: list[Candidate] = field(default_factory=list)
    refused: list[tuple[Rule, Refusal]] = field(default_factory=list)


def claim(
    graph: OpGraph | Canonical, rules: Sequence[Rule], *, keep: Callable[[Candidate], bool] | None = None
) -> Claims:
    """Match all rules and settle who gets what.

    ``keep`` may turn a legal candidate away before it claims anything (a suppression): its kernels stay
    claimed by nobody, so no weaker rule reports the same place.
    """
    canonical = graph if isinstance(graph, Canonical) else Canonical(graph)
    claims = Claims()
    taken: set[int] = set()
    for turn in turns(rules):
        candidates: list[Candidate] = []
        refused: list[tuple[Rule, Refusal]] = []
        for rule in turn:
            found, reasons = _propose(canonical, rule, taken)
            candidates.extend(found)
            refused.extend((rule, r) for r in reasons)
        for candidate in sorted(candidates, key=_preference):
            members = {op.index for op in candidate.region.ops}
            if members & taken:
                continue
            taken |= members
            if keep is None or keep(candidate):
                claims.sites.append(candidate)
        claims.refused.extend((r, f) for r, f in refused if not taken.issuperset(op.index for op in f.ops) or not f.ops)
    claims.sites.sort(key=lambda c: (c.region.ops[0].index, c.rule.id))
    return claims


def _propose(graph: Canonical, rule: Rule, taken: set[int]) -> tuple[list[Candidate], list[Refusal]]:
    if rule.siblings is not None:
        return propose_siblings(graph, rule)
    if rule.chain is not None:
        return propose_chains(graph, rule, taken)
    return propose(graph, rule)


def _preference(candidate: Candidate) -> tuple[int, int, int, str]:
    region = candidate.region
    return (-candidate.bytes_saved, -len(region.ops), region.ops[0].index, candidate.rule.id)


def turns(rules: Sequence[Rule]) -> list[list[Rule]]:
    """Rules in the order they may claim: nobody before those it yields to, chains last."""
    present = {rule.id for rule in rules}
    waiting = sorted(rules, key=lambda r: r.id)
    done: set[str] = set()
    order: list[list[Rule]] = []
    chains = [r for r in waiting if r.chain is not None]
    waiting = [r for r in waiting if r.chain is None]
    while waiting:
        ready = [r for r in waiting if all(y in done or y not in present for y in r.yields_to)]
        ready = ready or waiting  # a circle of yields: settle it by savings
        order.append(ready)
        done |= {r.id for r in ready}
        waiting = [r for r in waiting if r.id not in done]
    return [*order, *([chain] for chain in chains)]
