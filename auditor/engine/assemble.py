"""From claimed sites to the audit document: savings per site, findings, totals."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from auditor.devices.describe import Device
from auditor.document import (
    CoverageInfo,
    Finding,
    Refused,
    Saving,
    Site,
    SourceInfo,
    Totals,
)  # fmt: skip
from auditor.engine.by_name import findings_by_name, named_sites, told_of
from auditor.engine.by_order import told_of_order
from auditor.engine.census import Census, census
from auditor.engine.claims import Claims
from auditor.engine.legality import Refusal, Region
from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.engine.savings import (
    Estimate,
    KernelCost,
    SiteCost,
    StepModel,
    amdahl_cap,
    estimate,
    step_model,
    step_saving,
)
from auditor.engine.step_time import doubt
from auditor.engine.sums import sums_of
from auditor.engine.totals import totals_of
from auditor.graph.model import Op, OpGraph, Source
from auditor.graph.ops import base_name
from auditor.graph.ssa import print_graph
from auditor.graph.traffic import Traffic, traffic_of

MAX_MODULES = 1000
"""Module paths listed in one finding; a longer list is cut and the sites still carry theirs."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a document that come from the engine."""

    totals: Totals
    findings: list[Finding]
    refused: list[Refused]
    coverage: CoverageInfo
    notes: list[str]
    census: Census


def assemble(
    graph: OpGraph, claims: Claims, rules: Sequence[Rule], device: Device, *, by_name: bool = False
) -> Assembled:
    """Price every site, group sites to findings (likely saving first), and add everything up.

    ``by_name``: look for more sites among the kernels that no op is known for.
    """
    model = step_model(graph, device)
    groups: dict[tuple[object, ...], list[tuple[Candidate, Site]]] = defaultdict(list)
    for candidate in claims.sites:
        home = _home(candidate)
        site = _site(candidate, home, _priced(candidate, claims.traffic, device), model)
        groups[_group_key(candidate, home)].append((candidate, site))
    findings = [_finding(graph, members, model) for members in groups.values()]
    notes = [told] if (told := doubt(graph)) else []
    if unpriced := [c for c in claims.sites if c.unpriced]:
        notes.append(told_of_order(unpriced))
    if by_name:
        linked = [(c, f) for members, f in zip(groups.values(), findings, strict=True) for c, _ in members]
        named = findings_by_name(named_sites(graph, [c for c in claims.sites if c.rule.detect is None]), linked)
        findings += named
        notes += [told_of(named)] if named else []
    findings.sort(key=lambda f: (-_worth(f), -(f.bytes_now - f.bytes_fused), -_bound(f), f.rule, f.fingerprint))
    counted = census(graph, rules)
    return Assembled(
        totals=totals_of(graph, findings, counted, model, claims.traffic),
        findings=findings,
        refused=_refused(claims.refused),
        coverage=_coverage(graph),
        notes=notes,
        census=counted,
    )


def _worth(finding: Finding) -> float:
    """Kernel time that it likely saves; of launches that the device waits for, which are no kernel time, wall time."""
    return finding.saving.step_us if finding.family == "launch" else finding.saving.likely_us


def _bound(finding: Finding) -> float:
    """Of a finding without shapes, of which nothing else is known: no fusion saves more than its kernels take."""
    return 0.0 if finding.bytes_now else finding.device_us


def _priced(candidate: Candidate, traffic: Callable[[Op], Traffic], device: Device) -> Estimate:
    if candidate.waiting is not None:
        return Estimate(0.0, 0.0, candidate.waiting.told)
    if candidate.unpriced:
        return Estimate(0.0, 0.0, candidate.unpriced)
    after, together = candidate.kernels_after, candidate.launches_only
    return estimate(cost_of(candidate.region, candidate.rule.family, after, traffic, together), device)


def cost_of(
    region: Region, family: str, kernels_after: int = 1, traffic: Callable[[Op], Traffic] = traffic_of,
    launches_only: bool = False,
) -> SiteCost:  # fmt: skip
    """What the savings model needs to know of a site; ``traffic`` tells the bytes that an op moves."""
    return SiteCost(
        family=family,
        kernels=tuple([_kernel_cost(op, traffic(op)) for op in region.ops if op.kernels]),
        bytes_read_fused=region.bytes_read,
        bytes_written_fused=region.bytes_written,
        kernels_after=kernels_after,
        launches_only=launches_only,
    )


def _kernel_cost(op: Op, moved: Traffic) -> KernelCost:
    sizes = [v.numel for v in (*op.inputs(), *op.outputs)]
    name = base_name(op.name)
    if name.startswith("aten.gelu") and "tanh" in op.args:
        name += ":tanh"
    dtype = op.outputs[0].dtype if op.outputs else "f32"
    return KernelCost(name, op.dur_us, moved.read, moved.written, max(sizes, default=0), dtype, max(1, op.launches))


def home_of(ops: Iterable[Op]) -> Op:
    """The op that stands for a site: the first in the module (and function) that holds most of them."""
    members = list(ops)
    votes = Counter((op.module, op.module_class) for op in members)
    place = max(votes, key=lambda key: (votes[key], key[0] != ""))
    inside = [op for op in members if (op.module, op.module_class) == place]
    functions = Counter(op.source.function for op in inside if op.source)
    if functions:
        common = functions.most_common(1)[0][0]
        inside = [op for op in inside if op.source and op.source.function == common]
    return inside[0]


def _home(candidate: Candidate) -> Op:
    """The op that stands for a site; of launches that the device waits for, the module around all of them."""
    home = home_of(candidate.region.ops)
    if candidate.waiting is None:
        return home
    paths = [op.module.split(".") for op in candidate.region.ops]
    shared = ".".join(names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False)))
    inside = (op.module_class for op in candidate.region.ops if op.module == shared)
    return Op(home.index, home.name, (), (), module=shared, module_class=next(inside, ""), phase=home.phase)


def source_info(source: Source | None) -> SourceInfo | None:
    return SourceInfo(file=source.file, line=source.line, function=source.function) if source else None


def _group_key(candidate: Candidate, home: Op) -> tuple[object, ...]:
    if candidate.waiting is not None:  # all stretches of a step are mended at once
        return (candidate.rule.id,)
    where = (home.source.file, home.source.function) if home.source else ()
    ops = tuple(base_name(op.name) for op in _shown(candidate))
    return (
        candidate.rule.id,
        home.module_class,
        where,
        home.phase,
        ops,
        tuple(candidate.variant.items()),
        _dtype(candidate),
    )


def _shown(candidate: Candidate) -> tuple[Op, ...]:
    return candidate.example or candidate.region.ops


def _dtype(candidate: Candidate) -> str:
    region = candidate.region
    first = (*region.inputs, *region.outputs)
    return first[0].dtype if first else ""


def _site(candidate: Candidate, home: Op, priced: Estimate, model: StepModel) -> Site:
    region = candidate.region
    return Site(
        ops=[op.index for op in region.ops],
        module=home.module,
        source=source_info(home.source),
        kernels=region.kernels,
        kernels_after=candidate.kernels_after,
        device_us=region.device_us,
        bytes_now=region.bytes_now,
        bytes_fused=region.bytes_fused,
        saving=Saving(
            ideal_us=priced.ideal_us,
            likely_us=priced.likely_us,
            step_us=_of_step(candidate, priced.likely_us, model),
        ),
        formula=priced.formula,
        inputs=[v.id for v in region.inputs],
        outputs=[v.id for v in region.outputs],
        saved=[v.id for v in region.saved],
        variant=candidate.variant,
    )


def _of_step(candidate: Candidate, likely_us: float, model: StepModel) -> float:
    """Wall time that the site is worth."""
    if candidate.waiting is not None:
        return candidate.waiting.saved_us
    return (
        0.0 if candidate.unpriced else step_saving(likely_us, candidate.region.kernels - candidate.kernels_after, model)
    )


def _finding(graph: OpGraph, members: list[tuple[Candidate, Site]], model: StepModel) -> Finding:
    candidate = members[0][0]
    rule = candidate.rule
    sites = [site for _, site in members]
    home = _home(candidate)
    sums = sums_of(sites)
    device_us = sums["device_us"]
    kernels = sums["kernels"]
    kernels_after = sums["kernels_after"]
    likely = sum(s.saving.likely_us for s in sites)
    waits = [c.waiting for c, _ in members if c.waiting is not None]
    waited = sum(wait.wall_us - wait.busy_us for wait in waits)
    modules = list(dict.fromkeys(s.module for s in sites))[:MAX_MODULES]
    inferred = any(op.inferred for c, _ in members for op in c.region.ops)
    return Finding(
        rule=rule.id,
        name=rule.name,
        family=rule.family,
        severity=rule.severity,
        fingerprint=_fingerprint(rule, candidate, home),
        saving=Saving(
            ideal_us=sum(s.saving.ideal_us for s in sites),
            likely_us=likely,
            step_us=sum(w.saved_us for w in waits) or _of_kernels(members, likely, kernels - kernels_after, model),
        ),
        amdahl_cap=amdahl_cap(model.step_us, waited or step_saving(device_us, kernels, model)),
        provenance="inferred" if inferred else graph.provenance,
        phase=home.phase,
        module_class=home.module_class,
        modules=modules,
        source=source_info(home.source),
        ops=[op.name for op in _shown(candidate)],
        replacement=rule.replacement,
        instead=candidate.instead,
        dtype=_dtype(candidate),
        variant=candidate.variant,
        graph=print_graph(_with_views(_shown(candidate))),
        **sums,
    )


def _of_kernels(members: list[tuple[Candidate, Site]], likely_us: float, removed: int, model: StepModel) -> float:
    """Wall time that all sites are worth, as ``removed`` launches go; unpriced ones are of one kind, or none is."""
    return 0.0 if members[0][0].unpriced else step_saving(likely_us, removed, model)


def _with_views(ops: Sequence[Op]) -> list[Op]:
    """The site's ops with the views between them, as FX would print them."""
    inside = {op.index for op in ops}
    needed: dict[int, Op] = {op.index: op for op in ops}
    first = ops[0].index
    pending = list(ops)
    while pending:
        for value in pending.pop().inputs():
            view = value.producer
            if view is None or view.index in needed or view.kernels or value.base is None:
                continue
            if view.index > first or any(c.index in inside for c in value.consumers):
                needed[view.index] = view
                pending.append(view)
    return [needed[i] for i in sorted(needed)]


def _fingerprint(rule: Rule, candidate: Candidate, home: Op) -> str:
    """Stable under renumbered layers, moved lines and reordered runs: what and in which kind of place, not where.

    A function says where code is that belongs to no module; a module's own may be cut into others.
    """
    if candidate.waiting is not None:
        return hashlib.sha256(rule.id.encode()).hexdigest()[:16]
    function = home.source.function if home.source and not home.module_class else ""
    ops = ",".join(base_name(op.name) for op in _shown(candidate))
    text = "|".join((rule.id, home.module_class, function, home.phase, ops, str(sorted(candidate.variant.items()))))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _refused(refused: list[tuple[Rule, Refusal]]) -> list[Refused]:
    groups: dict[tuple[str, str, str], Refused] = {}
    for rule, refusal in refused:
        at = _place(refusal.at)
        key = (rule.id, refusal.reason, refusal.at.module_class or at)
        known = groups.get(key)
        if known is None:
            groups[key] = Refused(
                rule=rule.id, reason=refusal.reason, at=at, op=refusal.op.index, ops=[op.index for op in refusal.ops]
            )
        else:
            known.count += 1
    return sorted(groups.values(), key=lambda r: (-r.count, r.rule, r.reason))


def _place(op: Op) -> str:
    return op.module or op.module_class or (str(op.source) if op.source else f"op {op.index} {op.name}")


def _coverage(graph: OpGraph) -> CoverageInfo:
    seen = graph.coverage
    return CoverageInfo(
        kernels=seen.kernels or graph.kernels,
        linked=seen.linked or sum(op.launches for op in graph.ops),
        before_window=seen.before_window,
        graph_replayed=seen.graph_replayed,
        outside_ops=seen.outside_ops,
        unattributed=seen.unattributed,
        partial=seen.partial,
        edges=graph.provenance,
        steps=seen.steps,
    )
