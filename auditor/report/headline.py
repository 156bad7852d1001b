"""The head of a report: what was run, what it adds up to, and how much of the recording that stands on."""

from __future__ import annotations

import shlex

from auditor.document import Document
from auditor.report import steps
from auditor.report.facts import Fact, edges, of_step, remaining
from auditor.report.format import count, duration, percent, plural, ratio, safe, share, size, speedup


def brief(document: Document) -> str:
    """``llama: 14 of 40 kernels unfused, 12 avoidable, 3 findings``: the audit in half a line."""
    totals, run = document.totals, document.run
    parts = [
        f"{count(totals.unfused_kernels)} of {plural(totals.kernels, 'kernel')} unfused",
        f"{count(totals.avoidable_kernels)} avoidable",
        plural(len(document.findings), "finding"),
    ]
    return f"{safe(run.name or run.id) or 'an unnamed run'}: {', '.join(parts)}"


def headline(document: Document) -> list[Fact]:
    """What was run and what it adds up to, a line each; lines that would say nothing are left out."""
    run = document.run
    lines = [
        Fact("script", safe(shlex.join(run.script)), literal=True),
        Fact("device", _device(document), literal=True),
        Fact("patched", _patched(document), literal=True),
        Fact("exit", f"the script ended with code {run.exit_code}" if run.exit_code else ""),
        Fact("trace" if run.source == "trace" else "step", _step(document)),
        Fact("steps", steps.sentence(document), literal=True),
        Fact("recording", _recording(document)),
        Fact("memory-bound", _memory_bound(document)),
        Fact("kernels", _kernels(document)),
        Fact("saving", _saving(document)),
        Fact("coverage", coverage(document)),
    ]
    return [line for line in lines if line.value]


def _patched(document: Document) -> str:
    """Which plan was applied while the script ran, how much of it, and to what the audit is to be compared."""
    run = document.run
    parts = [f"by the plan {safe(run.plan)}" if run.plan else "", f"from run {safe(run.patched_from)}"]
    words = ", ".join(part for part in (parts if run.patched_from else parts[:1]) if part)
    return f"{words}{_applied(document)}" if words else ""


def _applied(document: Document) -> str:
    sites, applied = document.run.plan_sites, document.run.plan_applied
    if not sites:
        return ""
    if not applied:
        return f": NONE of its {plural(sites, 'site')} was applied, and this is the script as it is"
    return f": {count(applied)} of its {plural(sites, 'site')} applied"


def _device(document: Document) -> str:
    device, torch = document.run.device, document.run.torch
    peak = f"{count(round(device.peak_gbps))} GB/s" if (ratio(device.peak_gbps, 1) or 0) > 0 else ""
    parts = [f"{safe(device.name)} ({safe(device.kind)})" if device.name else safe(device.kind)]
    return " · ".join(p for p in [*parts, peak, f"torch {safe(torch)}" if torch else ""] if p)


def _step(document: Document) -> str:
    totals = document.totals
    if not totals.step_us and not totals.device_us:
        return "not timed"
    wall = f"{duration(totals.step_us)} wall" if totals.step_us else "wall time not known"
    if document.run.source == "trace" and document.coverage.steps > 1:
        wall += f" for {plural(document.coverage.steps, 'step')}"
    idle = f"idle {duration(totals.idle_us)} ({share(totals.idle_us, totals.step_us)})" if totals.idle_us else ""
    return " · ".join(p for p in (wall, f"kernels {duration(totals.device_us)}", idle) if p)


def _recording(document: Document) -> str:
    seen = document.overhead
    timing, graph = ratio(seen.timing_us, seen.bare_us), ratio(seen.graph_us, seen.bare_us)
    parts = [
        f"the timed steps ran {_overhead(timing)} under the profiler" if timing else "",
        f"the graph step ran {_overhead(graph)} and is not used for times" if graph else "",
    ]
    return " · ".join(p for p in parts if p)


def _overhead(factor: float) -> str:
    if factor >= 2:
        return f"{speedup(factor)} as long"
    return f"{percent(factor - 1)} longer" if factor > 1 else "no longer"


def _memory_bound(document: Document) -> str:
    totals = document.totals
    if ratio(totals.memory_bound_us, totals.device_us) is None:
        return _share_of_kernels(document)
    part = share(totals.memory_bound_us, totals.device_us)
    return f"{part} of the kernel time, {duration(totals.memory_bound_us)} of {duration(totals.device_us)}"


def _share_of_kernels(document: Document) -> str:
    """The memory-bound part by count, for runs that were not timed."""
    totals = document.totals
    part = ratio(totals.memory_bound_kernels, totals.kernels)
    return "" if part is None else f"{percent(part)} of the kernels, no times"


def _kernels(document: Document) -> str:
    totals = document.totals
    parts = [f"{count(totals.kernels)} in all", f"{count(totals.memory_bound_kernels)} memory-bound"]
    if totals.already_fused_kernels:
        parts.append(f"{count(totals.already_fused_kernels)} already fused")
    parts += [f"{count(totals.unfused_kernels)} unfused", f"{count(totals.avoidable_kernels)} avoidable"]
    what = " (on a CPU: dispatched ops)" if document.run.device.kind == "cpu" else ""
    return f"{' · '.join(parts)} → {count(remaining(document))} would remain{what}"


def less_traffic(document: Document) -> str:
    """How many bytes fewer would be moved; of a trace without shapes nobody knows."""
    totals = document.totals
    known = totals.bytes or totals.saving.bytes
    return f"{size(totals.saving.bytes)} less memory traffic" if known else "memory traffic not known"


def _saving(document: Document) -> str:
    saving, step = document.totals.saving, document.totals.step_us
    if not document.findings:
        return ""
    if not saving.likely_us and not saving.ideal_us and not saving.step_us:
        return f"{less_traffic(document)}; times not known"
    parts = [
        f"kernel time {duration(saving.likely_us)} likely, {duration(saving.ideal_us)} ideal",
        less_traffic(document),
    ]
    if step:
        parts.insert(0, f"step {of_step(saving.step_us, step, saving.amdahl_cap)}")
    return " · ".join(parts)


def coverage(document: Document) -> str:
    """How much of the recording the audit stands on."""
    seen = document.coverage
    linked = f"{count(seen.linked)} of {plural(seen.kernels, 'kernel')} linked to an op"
    part = ratio(seen.linked, seen.kernels)
    parts = [
        linked if part is None or part == 1 else f"{linked} ({percent(part)})",
        f"{count(seen.before_window)} launched before the window" if seen.before_window else "",
        f"{count(seen.graph_replayed)} replayed from graphs" if seen.graph_replayed else "",
        f"{count(seen.outside_ops)} outside any op" if seen.outside_ops else "",
        f"{count(seen.unattributed)} of unknown launch" if seen.unattributed else "",
        "a part of the trace: the rest is lost" if seen.partial else "",
        f"edges {edges(seen.edges)}",
        plural(seen.steps, "step"),
    ]
    return " · ".join(p for p in parts if p)


def looked_at(document: Document) -> str:
    """What an audit without findings stands on."""
    seen, totals = document.coverage, document.totals
    if seen.kernels and not seen.linked:
        return f"Nothing could be matched: none of {plural(seen.kernels, 'kernel')} is linked to an op."
    looked = f"{plural(totals.kernels, 'kernel')}, {count(totals.memory_bound_kernels)} of them memory-bound"
    fused = f", {count(totals.already_fused_kernels)} already fused" if totals.already_fused_kernels else ""
    refused = sum(r.count for r in document.refused)
    tail = f"; {plural(refused, 'site')} matched and {'was' if refused == 1 else 'were'} refused" if refused else ""
    chosen = "" if not (document.run.select or document.run.ignore) else " among the chosen ones"
    return f"Looked at {looked}{fused}; no rule{chosen} found kernels that should be one{tail}."
