"""What an audit counts over the whole graph."""

from __future__ import annotations

from collections.abc import Callable

from auditor.document import Finding, Totals, TotalSaving
from auditor.engine.census import Census
from auditor.engine.step_time import StepModel, amdahl_cap, idle_within, step_saving, without_waiting
from auditor.graph.model import Op, OpGraph
from auditor.graph.peak import peak_bytes
from auditor.graph.traffic import Traffic


def totals_of(
    graph: OpGraph, findings: list[Finding], counted: Census, model: StepModel, traffic: Callable[[Op], Traffic]
) -> Totals:
    """Sums over the graph and over what was found in it. Kernels of several streams add up, wall time does not."""
    ops = [op for op in graph.ops if op.kernels]
    unfused = sum(f.kernels for f in findings)
    in_findings = sum(f.device_us for f in findings)
    device_us = sum(op.dur_us for op in ops) + sum(k.dur_us for k in graph.unlinked)
    likely = sum(f.saving.likely_us for f in findings)
    avoidable = unfused - sum(f.kernels_after for f in findings)
    waited = sum(f.saving.step_us for f in findings if f.family == "launch")
    removed = sum(f.kernels - f.kernels_after for f in findings if f.saving.step_us)  # what is not priced saves nothing
    saved = without_waiting(step_saving(likely, removed, model), likely, waited, model)
    return Totals(
        kernels=graph.kernels,
        memory_bound_kernels=counted.memory_bound,
        unfused_kernels=unfused,
        avoidable_kernels=avoidable,
        already_fused_kernels=counted.fused,
        device_us=device_us,
        step_us=model.step_us,
        memory_bound_us=counted.memory_bound_us,
        idle_us=idle_within(model.step_us, model.busy_us),
        bytes=sum(traffic(op).total for op in ops),
        peak_bytes=peak_bytes(graph),
        collective_kernels=counted.collectives,
        collective_us=counted.collective_us,
        saving=TotalSaving(
            ideal_us=sum(f.saving.ideal_us for f in findings),
            likely_us=likely,
            step_us=saved,
            bytes=sum(f.bytes_now - f.bytes_fused for f in findings),
            amdahl_cap=amdahl_cap(model.step_us, max(saved, step_saving(in_findings, unfused, model))),
        ),
    )
