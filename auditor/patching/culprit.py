"""Which sites of a plan make the model wrong: found by halving, as each look needs the model traced anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from auditor.engine.rules import Rule
from auditor.patching.live import Patched
from auditor.patching.plan import Plan, PlanSite
from auditor.patching.verify import Verification

Judge = Callable[[Patched], Verification]


def culprits(
    model: nn.Module, rules: Sequence[Rule], plan: Plan, judge: Judge
) -> tuple[list[PlanSite], Verification, Patched]:
    """The sites without which the rest of ``plan`` passes, the verdict on that rest, and the model patched with it.

    Sites of one function (one layer's norm and the next one's) are right or wrong together, so they are tried as one.
    """
    groups: dict[tuple[str, str, str], list[PlanSite]] = {}
    for site in plan.kept:
        groups.setdefault((site.rule, site.fingerprint, site.replacement), []).append(site)
    found: list[PlanSite] = []
    good: list[PlanSite] = []
    pending = [list(groups.values())]
    while pending:
        some = pending.pop()
        chosen = [site for group in some for site in group]
        if _passes(model, rules, plan, [*good, *chosen], judge):
            good += chosen
        elif len(some) == 1:
            found += chosen
        else:
            middle = len(some) // 2
            pending += [some[middle:], some[:middle]]
    patched = Patched.by_plan(model, rules, plan.only(site.key for site in good))
    try:
        return found, judge(patched), patched
    except BaseException:
        patched.undo()
        raise


def _passes(model: nn.Module, rules: Sequence[Rule], plan: Plan, sites: Sequence[PlanSite], judge: Judge) -> bool:
    patched = Patched.by_plan(model, rules, plan.only(site.key for site in sites))
    try:
        return judge(patched).ok
    finally:
        patched.undo()
