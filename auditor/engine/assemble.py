"""From claimed sites to the audit document: savings per site, findings, totals."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from auditor.devices.describe import Device
from auditor.document import (
    CoverageInfo,
    Finding,
    Refused,
    Saving,
    Site,
    SourceInfo,
    Totals,
    TotalSaving,
)  # fmt: skip
from auditor.engine.claims import Claims
from auditor.engine.fused import fused_kernels
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
from auditor.graph.model import Kernel, Op, OpGraph, Source
from auditor.graph.ops import base_name, is_collective, is_memory_bound
from auditor.graph.peak import peak_bytes
from auditor.graph.ssa import print_graph
from auditor.graph.traffic import Traffic, traffic_of

MAX_MODULES = 1000
"""Module paths listed in one finding; a longer list is cut and the sites still carry theirs."""


ROUNDING_US = 1e-6
"""What is left of sums of times that are equal: no idle time, and an amount that no store takes."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a document that come from the engine."""

    totals: Totals
    findings: list[Finding]
    refused: list[Refused]
    coverage: CoverageInfo
    notes: list[str]


def assemble(graph: OpGraph, claims: Claims, rules: Sequence[Rule], device: Device) -> Assembled:
    """Price every site, group sites to findings (likely saving first), and add everything up."""
    model = step_model(graph, device)
    groups: dict[tuple[object, ...], list[tuple[Candidate, Site]]] = defaultdict(list)
    for candidate in claims.sites:
        home = home_of(candidate.region.ops)
        cost = cost_of(candidate.region, candidate.rule.family, traffic=claims.traffic)
        groups[_group_key(candidate, home)].append((candidate, _site(candidate, home, estimate(cost, device), model)))
    findings = [_finding(graph, members, model) for members in groups.values()]
    findings.sort(key=lambda f: (-f.saving.likely_us, -(f.bytes_now - f.bytes_fused), f.rule, f.fingerprint))
    return Assembled(
        totals=_totals(graph, findings, rules, model, claims.traffic),
        findings=findings,
        refused=_refused(claims.refused),
        coverage=_coverage(graph),
        notes=[told] if (told := doubt(graph)) else [],
    )


def cost_of(
    region: Region, family: str, kernels_after: int = 1, traffic: Callable[[Op], Traffic] = traffic_of
) -> SiteCost:
    """What the savings model needs to know of a site; ``traffic`` tells the bytes that an op moves."""
    return SiteCost(
        family=family,
        kernels=tuple([_kernel_cost(op, traffic(op)) for op in region.ops if op.kernels]),
        bytes_read_fused=region.bytes_read,
        bytes_written_fused=region.bytes_written,
        kernels_after=kernels_after,
    )


def _kernel_cost(op: Op, moved: Traffic) -> KernelCost:
    sizes = [v.numel for v in (*op.inputs(), *op.outputs)]
    name = base_name(op.name)
    if name.startswith("aten.gelu") and "tanh" in op.args:
        name += ":tanh"
    dtype = op.outputs[0].dtype if op.outputs else "f32"
    return KernelCost(name, op.dur_us, moved.read, moved.written, max(sizes, default=0), dtype)


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


def source_info(source: Source | None) -> SourceInfo | None:
    return SourceInfo(file=source.file, line=source.line, function=source.function) if source else None


def _group_key(candidate: Candidate, home: Op) -> tuple[object, ...]:
    where = (home.source.file, home.source.function) if home.source else ()
    ops = tuple(base_name(op.name) for op in candidate.region.ops)
    return (
        candidate.rule.id,
        home.module_class,
        where,
        home.phase,
        ops,
        tuple(candidate.variant.items()),
        _dtype(candidate),
    )


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
        kernels_after=1,
        device_us=region.device_us,
        bytes_now=region.bytes_now,
        bytes_fused=region.bytes_fused,
        saving=Saving(
            ideal_us=priced.ideal_us,
            likely_us=priced.likely_us,
            step_us=step_saving(priced.likely_us, region.kernels - 1, model),
        ),
        formula=priced.formula,
        inputs=[v.id for v in region.inputs],
        outputs=[v.id for v in region.outputs],
        saved=[v.id for v in region.saved],
        variant=candidate.variant,
    )


def _finding(graph: OpGraph, members: list[tuple[Candidate, Site]], model: StepModel) -> Finding:
    candidate = members[0][0]
    rule = candidate.rule
    sites = [site for _, site in members]
    home = home_of(candidate.region.ops)
    device_us = sum(s.device_us for s in sites)
    likely = sum(s.saving.likely_us for s in sites)
    kernels = sum(s.kernels for s in sites)
    modules = list(dict.fromkeys(s.module for s in sites))[:MAX_MODULES]
    inferred = any(op.inferred for c, _ in members for op in c.region.ops)
    return Finding(
        rule=rule.id,
        name=rule.name,
        family=rule.family,
        severity=rule.severity,
        fingerprint=_fingerprint(rule, candidate, home),
        sites=len(sites),
        kernels=kernels,
        kernels_after=sum(s.kernels_after for s in sites),
        device_us=device_us,
        bytes_now=sum(s.bytes_now for s in sites),
        bytes_fused=sum(s.bytes_fused for s in sites),
        saving=Saving(
            ideal_us=sum(s.saving.ideal_us for s in sites),
            likely_us=likely,
            step_us=step_saving(likely, kernels - len(sites), model),
        ),
        amdahl_cap=amdahl_cap(model.step_us, step_saving(device_us, kernels, model)),
        provenance="inferred" if inferred else graph.provenance,
        phase=home.phase,
        module_class=home.module_class,
        modules=modules,
        source=source_info(home.source),
        ops=[op.name for op in candidate.region.ops],
        replacement=rule.replacement,
        dtype=_dtype(candidate),
        variant=candidate.variant,
        graph=print_graph(_with_views(candidate.region)),
        places=sites,
    )


def _with_views(region: Region) -> list[Op]:
    """The site's ops with the views between them, as FX would print them."""
    inside = {op.index for op in region.ops}
    needed: dict[int, Op] = {op.index: op for op in region.ops}
    first = region.ops[0].index
    pending = list(region.ops)
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
    function = home.source.function if home.source and not home.module_class else ""
    ops = ",".join(base_name(op.name) for op in candidate.region.ops)
    text = "|".join((rule.id, home.module_class, function, home.phase, ops, str(sorted(candidate.variant.items()))))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _totals(
    graph: OpGraph, findings: list[Finding], rules: Sequence[Rule], model: StepModel, traffic: Callable[[Op], Traffic]
) -> Totals:
    ops = [op for op in graph.ops if op.kernels]
    collectives = _collectives(graph)
    bound = [op for op in ops if is_memory_bound(op.name)]
    unfused = sum(f.kernels for f in findings)
    in_findings = sum(f.device_us for f in findings)
    device_us = sum(op.dur_us for op in ops) + sum(k.dur_us for k in graph.unlinked)
    likely = sum(f.saving.likely_us for f in findings)
    avoidable = unfused - sum(f.kernels_after for f in findings)
    idle_us = model.step_us - model.busy_us
    return Totals(
        kernels=graph.kernels,
        memory_bound_kernels=sum(op.launches for op in bound),
        unfused_kernels=unfused,
        avoidable_kernels=avoidable,
        already_fused_kernels=fused_kernels(graph, rules),
        device_us=device_us,
        step_us=model.step_us,
        memory_bound_us=sum(op.dur_us for op in bound),
        idle_us=idle_us if idle_us > ROUNDING_US else 0.0,
        bytes=sum(traffic(op).total for op in ops),
        peak_bytes=peak_bytes(graph),
        collective_kernels=len(collectives),
        collective_us=sum(kernel.dur_us for kernel in collectives),
        saving=TotalSaving(
            ideal_us=sum(f.saving.ideal_us for f in findings),
            likely_us=likely,
            step_us=step_saving(likely, avoidable, model),
            bytes=sum(f.bytes_now - f.bytes_fused for f in findings),
            amdahl_cap=amdahl_cap(model.step_us, step_saving(in_findings, unfused, model)),
        ),
    )


def _collectives(graph: OpGraph) -> list[Kernel]:
    owned = ((op.name, kernel) for op in graph.ops for kernel in op.kernels)
    found = [kernel for name, kernel in owned if is_collective(name, kernel.name) and not kernel.is_transfer]
    return found + [kernel for kernel in graph.unlinked if is_collective("", kernel.name)]


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
