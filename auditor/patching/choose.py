"""What becomes of each site: as a plan says, or as is found out by trying every proposal on the spot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import fx

from auditor.fix_document import NOT_SELECTED
from auditor.patching.calls import Proposal
from auditor.patching.patch_site import PatchSite, SiteKey
from auditor.patching.plan import Evidence, Gain, Plan, PlanSite
from auditor.patching.probe import Probe, Verdict

NO_PLAN = "the plan does not name it"


class ByPlan:
    """Applies the kept sites of a plan, and nothing else."""

    def __init__(self, plan: Plan) -> None:
        self._sites = {site.key: site for site in plan.kept}

    def passes_over(self, key: SiteKey) -> str:
        """Sites that the plan does not keep."""
        return "" if (key.rule, key.module, key.fingerprint, key.ordinal) in self._sites else NO_PLAN

    def choose(self, site: PatchSite, _nodes: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        """The proposal that the plan names."""
        planned = self._sites[(site.key.rule, site.key.module, site.key.fingerprint, site.key.ordinal)]
        wanted = (planned.replacement, planned.provider, planned.options)
        for proposal in site.proposals:
            if (proposal.replacement, proposal.provider, proposal.options) == wanted:
                return proposal, ""
        return None, f"{planned.replacement} by {planned.provider} is not to be had here"


@dataclass
class Choice:
    """How :class:`ByMeasuring` decides."""

    keep_all: bool = False
    """Keep the best that is right, whether or not it wins."""
    min_gain: float = 0.0
    """A site is kept if the low end of its interval is above 1 + this."""
    limit: int | None = None
    """Apply the first so many sites and no more."""
    wanted: Callable[[str], bool] = lambda _rule: True
    """Whether sites of a rule may be applied."""


@dataclass
class Outcome:
    """What was found at one site."""

    site: PatchSite
    proposal: Proposal | None
    verdict: Verdict | None
    reason: str


@dataclass
class ByMeasuring:
    """Tries every proposal of a site on random inputs of its shapes: it must be right, and the fastest is taken.

    Sites that compute the same on the same shapes are tried once.
    """

    choice: Choice = field(default_factory=Choice)
    outcomes: list[Outcome] = field(default_factory=list)
    tried: dict[object, list[tuple[Proposal, Verdict]]] = field(default_factory=dict)
    applied: int = 0
    timed: bool = True
    """Whether proposals are timed; without, the first that is right is taken."""

    def passes_over(self, key: SiteKey) -> str:
        """Sites of rules that are not selected."""
        return "" if self.choice.wanted(key.rule) else NOT_SELECTED

    def choose(self, site: PatchSite, nodes: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        """The best proposal that is right, or None and why there is none."""
        proposal, verdict, reason = self._best(site, nodes)
        self.outcomes.append(Outcome(site, proposal, verdict, reason))
        if reason:
            return None, reason
        self.applied += 1
        return proposal, ""

    def _best(self, site: PatchSite, nodes: Sequence[fx.Node]) -> tuple[Proposal | None, Verdict | None, str]:
        if self.choice.limit is not None and self.applied >= self.choice.limit:
            return None, None, _limit_reached(self.choice.limit)
        verdicts = self._verdicts(site, nodes)
        right = [(p, v) for p, v in verdicts if v.ok]
        if not right:
            proposal, verdict = verdicts[0]
            return proposal, verdict, f"{proposal.replacement} is not exact enough: {verdict.reason}"
        proposal, verdict = max(right, key=lambda pair: pair[1].gain.ratio)
        if self.timed and not self.choice.keep_all and verdict.gain.low <= 1.0 + self.choice.min_gain:
            return proposal, verdict, _no_win(verdict, self.choice.min_gain)
        return proposal, verdict, ""

    def _verdicts(self, site: PatchSite, nodes: Sequence[fx.Node]) -> list[tuple[Proposal, Verdict]]:
        probe = Probe(site, nodes, timed=self.timed)
        known = self.tried.get(probe.key)
        if known is None:
            known = self.tried[probe.key] = [(p, probe.judge(p)) for p in site.proposals]
        # Proposals of another site name other nodes: pair ours with what was found, in the same order.
        return [(mine, verdict) for mine, (_, verdict) in zip(site.proposals, known, strict=False)]


def _limit_reached(limit: int) -> str:
    return f"the limit of {limit} {'site' if limit == 1 else 'sites'} is reached"


def _no_win(verdict: Verdict, min_gain: float) -> str:
    gain = verdict.gain
    asked = f" by {min_gain:.0%}" if min_gain else ""
    return f"not faster{asked}: {gain.ratio:.2f} × ({gain.low:.2f} to {gain.high:.2f})"


def as_plan(outcomes: Sequence[Outcome], rewritten: Sequence[PatchSite], plan: Plan) -> Plan:
    """``plan`` with one entry for each site that was looked at, in the order of the graph."""
    by_site = {id(outcome.site): outcome for outcome in outcomes}
    seen: set[tuple[str, str, str, int]] = set()
    counts: Counter[tuple[str, str]] = Counter()
    for site in rewritten:
        entry = _entry(site, by_site.get(id(site)))
        if not entry.fingerprint:  # refused before there was a function to tell it by
            entry.ordinal = counts[(entry.rule, entry.module)]
            counts[(entry.rule, entry.module)] += 1
        if entry.key not in seen:
            seen.add(entry.key)
            plan.sites.append(entry)
    return plan


def _entry(site: PatchSite, outcome: Outcome | None) -> PlanSite:
    proposal = site.chosen or (outcome.proposal if outcome else None)
    verdict = outcome.verdict if outcome else None
    entry = PlanSite(
        rule=site.key.rule, module=site.key.module, fingerprint=site.key.fingerprint, ordinal=site.key.ordinal,
        state="kept" if site.chosen else "rolled_back" if verdict and verdict.ok else "refused", reason=site.reason,
    )  # fmt: skip
    if proposal is not None:
        entry.tier, entry.replacement = proposal.tier, proposal.replacement
        entry.provider, entry.options = proposal.provider, dict(proposal.options)
    if verdict is not None:
        gain = verdict.gain
        entry.evidence = Evidence(
            gain=Gain(ratio=gain.ratio, low=gain.low, high=gain.high) if verdict.timed else None,
            before_us=verdict.before_us, after_us=verdict.after_us, error=verdict.error,
            eager_error=verdict.eager_error, mismatch=verdict.mismatch,
        )  # fmt: skip
    return entry
