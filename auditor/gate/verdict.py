"""The gate itself: a stored run, what is demanded of it, and a baseline → everything there is to say."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path

import msgspec

from auditor.config import Config
from auditor.document import Document
from auditor.engine.rules import Rule
from auditor.errors import AuditError
from auditor.gate.baseline import Baseline
from auditor.gate.budget import Demands, Limit
from auditor.gate.comparable import check_comparable
from auditor.gate.compare import compare
from auditor.gate.limits import check_limit
from auditor.gate.ranks import Side, best, check_recorded, sides_of, worst
from auditor.gate.require import check_live, launches_of
from auditor.gate.snapshot import snapshot_of
from auditor.gate.spread import spreads_of, with_medians
from auditor.gate_document import Check, Comparison, GateDocument, Head, Point, RuleText, Snapshot
from auditor.report.format import clip, safe
from auditor.report.ranks import named
from auditor.store import RunFilter, Store, StoredRun

_TREND = 12
"""Stored runs of a trend, this one included."""
_NAMED, _LONGEST = 4, 60
"""Modules that a sentence names, and how much of each."""


def judge(
    run: StoredRun, demands: Demands, baseline: Baseline | None, rules: Sequence[Rule], *, store: Store, root: Path
) -> GateDocument:
    """Hold ``run`` to ``demands``, and to ``baseline`` where there is one.

    Args:
        run: of ``store``, which has the runs of the trend too.
        demands: as the project wrote them.
        baseline: what limits on increases are of.
        rules: all that there are.
        store: that ``run`` is of.
        root: folder of the repository, from which formats give paths.

    Raises:
        AuditError: nothing is demanded at all, or the baseline says nothing of this run.
    """
    if not demands and baseline is None:
        raise AuditError(_nothing(run.id))
    spreads = spreads_of(run, store)
    document, now = run.document, with_medians(snapshot_of(run.document), spreads)
    comparison = None
    if baseline is not None:
        check_comparable(baseline.snapshot.run, now.run, baseline.label)
        comparison = compare(baseline.snapshot, now, (baseline.spreads, spreads))
        demands = demands.against_baseline(now.run.world_size)
    before = baseline.snapshot if baseline else None
    sides = sides_of(run, now, spreads, before)
    checks = [*_placed(_limits(demands, sides, before), demands, run, sides), *_required(demands, run, sides, rules)]
    checks += check_recorded(now.run, before)
    passed = not any(check.status == "failed" for check in checks)
    return GateDocument(
        passed=passed,
        run=now.run,
        figures=now.figures,
        baseline=baseline.label if baseline else "",
        comparison=comparison,
        checks=checks,
        remarks=[*(comparison.remarks if comparison else []), *_remarks(document, now.run, before, demands, rules)],
        next=_next(now.run, baseline, store, passed=passed, checks=checks),
        rules=_texts(checks, comparison, rules),
        trend=_trend(store, now.run),
        root=str(root),
    )


def _nothing(run: str) -> str:
    return (
        "there is no budget and no baseline to hold the run to; set limits in pyproject.toml under "
        "[tool.fusion-audit], such as max_unfused_kernels = 0, or keep this run as the baseline with: "
        f"fusion-audit baseline {run} -o fusion-baseline.json, and give it with --baseline fusion-baseline.json"
    )


def _limits(demands: Demands, sides: Sequence[Side], baseline: Snapshot | None) -> list[Check]:
    """Each limit on every rank: what counts is the rank that keeps it worst."""
    why = {"no_baseline": "the baseline recorded nothing of this rank"} if baseline else {}
    return [
        worst(
            {
                side.rank: check_limit(limit, side.document, side.now, side.before, side.changes, side.spreads, **why)
                for side in sides
            }
        )
        for limit in demands.limits
    ]


def _placed(checks: list[Check], demands: Demands, run: StoredRun, sides: Sequence[Side]) -> list[Check]:
    """A limit for modules that there are none of is kept by every run: it warns, so that somebody mends it."""
    if not any(limit.scope.modules for limit in demands.limits):
        return checks
    launches = chain.from_iterable(launches_of(run, side.table) for side in sides)
    there = list(dict.fromkeys(launch.module for launch in launches if launch.module))

    def lost(limit: Limit, check: Check) -> bool:
        glob = limit.scope.modules
        return bool(glob) and check.status == "passed" and not any(fnmatchcase(module, glob) for module in there)

    said = {"status": "warned", "message": _no_module(there)}
    pairs = zip(demands.limits, checks, strict=True)
    return [msgspec.structs.replace(check, **said) if lost(limit, check) else check for limit, check in pairs]


def _no_module(there: Sequence[str]) -> str:
    known = ", ".join(safe(clip(module, _LONGEST)) for module in there[:_NAMED]) or "none"
    more = f" and {len(there) - _NAMED:,} more" if len(there) > _NAMED else ""
    return f"it holds nothing, as no module of this run has such a name; there are: {known}{more}"


def _required(demands: Demands, run: StoredRun, sides: Sequence[Side], rules: Sequence[Rule]) -> list[Check]:
    """Each demanded kernel on every rank: the stages of a pipeline differ, so it has to be live on one of them."""
    if not demands.required:
        return []
    launches = {side.rank: launches_of(run, side.table) for side in sides}
    return [
        best(
            {
                side.rank: check_live(demand, launches[side.rank], side.document, side.now, rules, side.changes)
                for side in sides
            }
        )
        for demand in demands.required
    ]


def _remarks(
    document: Document, run: Head, before: Snapshot | None, demands: Demands, rules: Sequence[Rule]
) -> list[str]:
    remarks = []
    if document.run.exit_code:
        remarks.append(
            f"The script of this run ended with code {document.run.exit_code}: it may have been recorded in part."
        )
    if run.unrecorded:
        remarks.append(f"Nothing was recorded of {named(run.unrecorded)}, of which the limits therefore say nothing.")
    alone = [rank.rank for rank in document.ranks if rank.recorded and before and rank.rank in before.run.unrecorded]
    if alone:
        remarks.append(
            f"The baseline recorded nothing of {named(alone)}: limits on increases are not held there, others are; "
            "make it anew from a run that holds every rank."
        )
    if run.kind == "cpu":
        remarks.append(
            "The run is of a CPU: kernels are its dispatched ops, which tell of the program's fusions; "
            "what a GPU launches for the same program may be counted otherwise."
        )
    chosen = Config(select=run.select, ignore=run.ignore)
    for selector in dict.fromkeys(limit.scope.rule for limit in demands.limits if limit.scope.rule):
        meant = [rule for rule in rules if Config(select=[selector]).chooses(rule.id, rule.name)]
        if not any(chosen.chooses(rule.id, rule.name) for rule in meant):
            remarks.append(f"Rule {safe(selector)} has a limit, and was not among the rules of this run.")
    return remarks


def _next(run: Head, baseline: Baseline | None, store: Store, *, passed: bool, checks: Sequence[Check]) -> list[str]:
    """What to type now, the most useful first."""
    name = shlex.quote(safe(run.id or "latest"))
    if passed:
        return []
    steps = []
    before = baseline.snapshot.run.id if baseline else ""
    if before and before != run.id and store.count_runs(RunFilter(text=before)):
        steps.append(f"fusion-audit diff {shlex.quote(safe(before))} {name}")
    if run.world_size == 1 and any(check.culprits for check in checks):
        steps.append(f"fusion-audit fix {name}")
    steps.append(f"fusion-audit show {name}")
    if baseline and baseline.file:  # what is meant to be so becomes the new baseline
        steps.append(f"fusion-audit baseline {name} -o {shlex.quote(safe(baseline.file))}")
    return steps


def _texts(checks: Sequence[Check], found: Comparison | None, rules: Sequence[Rule]) -> list[RuleText]:
    named = {culprit.rule for check in checks for culprit in check.culprits}
    named |= {change.rule for change in (found.findings if found else []) if change.change in ("new", "more")}
    return [
        RuleText(id=rule.id, name=rule.name, what=rule.docs.get("what", ""), why=rule.docs.get("why", ""))
        for rule in rules
        if rule.id in named
    ]


def _trend(store: Store, run: Head) -> list[Point]:
    """The last runs up to this one that have its name and device."""
    if not run.name:
        return []
    wanted = RunFilter(name=run.name, device=run.device, until=run.created)
    runs = [each for each in store.list_runs(wanted, limit=_TREND) if each.id <= run.id]
    return [
        Point(
            id=each.id, created=each.created, kernels=each.kernels, unfused_kernels=each.unfused_kernels,
            avoidable_kernels=each.avoidable_kernels, step_us=each.step_us,
        )
        for each in reversed(runs)
    ]  # fmt: skip
