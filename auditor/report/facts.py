"""What a report says, in words and in order, before any format dresses it: one place for every sentence.

Values that hold names from the run are ``literal``: a format shows them as code and escapes them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from auditor.document import Document, Finding, Refused, SourceInfo, Suppressed
from auditor.report.format import clip, count, duration, percent, plural, ratio, safe, share, size, speedup

EDGES = {
    "observed": "observed in the execution trace (tensor ids)",
    "traced": "traced symbolically (FX)",
    "simulated": "simulated on fake tensors, nothing was timed",
    "inferred": "inferred from shapes and order only: check the drawing before you act on it",
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One labelled line of a report."""

    label: str
    value: str
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Every refusal of one rule for one reason. ``at`` is the first place."""

    rule: str
    reason: str
    at: str
    count: int


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command to run next, and why."""

    command: str
    why: str


def ranked(document: Document) -> list[Finding]:
    """Findings by likely saving, largest first; where nothing was timed, by kernels and then bytes avoided."""
    return sorted(document.findings, key=_rank)


def _rank(finding: Finding) -> tuple[float, float, float, str, str]:
    likely = ratio(finding.saving.likely_us, 1.0) or 0.0
    moved = finding.bytes_now - finding.bytes_fused
    return -likely, -avoidable(finding), -moved, finding.rule, finding.fingerprint


def avoidable(finding: Finding) -> int:
    """Launches that fusing every site would remove."""
    return max(finding.kernels - finding.kernels_after, 0)


def refusals(document: Document) -> list[Refusal]:
    """Refused sites grouped by rule and reason, most frequent first."""
    groups: dict[tuple[str, str], list[Refused]] = {}
    for refused in document.refused:
        groups.setdefault((refused.rule, refused.reason), []).append(refused)
    merged = [Refusal(rule, reason, g[0].at, sum(r.count for r in g)) for (rule, reason), g in groups.items()]
    return sorted(merged, key=lambda r: (-r.count, r.rule, r.reason))


def idle_suppressions(document: Document) -> list[Suppressed]:
    """Suppressions that suppress nothing any more."""
    return [s for s in document.suppressed if s.sites == 0]


def title(document: Document) -> str:
    """``name (id)`` of the run, with what there is of it."""
    run = document.run
    name = safe(run.name or run.id) or "unnamed run"
    return f"{name} ({safe(run.id)})" if run.id and run.name and run.id != run.name else name


def short_path(file: str, relative_to: Path | None = None) -> str:
    """A path as a reader knows it: from the working directory, or from the installed package's root."""
    if relative_to is not None and Path(file).is_relative_to(relative_to):
        return safe(str(Path(file).relative_to(relative_to)))
    for folder in ("/site-packages/", "/dist-packages/"):
        if folder in file:
            return safe(file.rsplit(folder, 1)[1])
    return safe(file)


def place(source: SourceInfo | None, path: str = "") -> str:
    """``file:line in function``, empty where the source line isn't known."""
    if source is None or not source.file:
        return ""
    where = f"{path or short_path(source.file)}:{source.line}"
    return f"{where} in {safe(source.function)}" if source.function else where


def owner(finding: Finding) -> str:
    """``LlamaRMSNorm × 49 sites``."""
    return f"{safe(finding.module_class) or 'outside any module'} × {plural(finding.sites, 'site')}"


def headline(document: Document) -> list[Fact]:
    """What was run and what it adds up to, a line each; lines that would say nothing are left out."""
    run = document.run
    lines = [
        Fact("script", safe(shlex.join(run.script)), literal=True),
        Fact("device", _device(document), literal=True),
        Fact("exit", f"the script ended with code {run.exit_code}" if run.exit_code else ""),
        Fact("trace" if run.source == "trace" else "step", _step(document)),
        Fact("recording", _recording(document)),
        Fact("memory-bound", _memory_bound(document)),
        Fact("kernels", _kernels(document)),
        Fact("saving", _saving(document)),
        Fact("coverage", coverage(document)),
    ]
    return [line for line in lines if line.value]


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
        return share_of_kernels(document)
    part = share(totals.memory_bound_us, totals.device_us)
    return f"{part} of the kernel time, {duration(totals.memory_bound_us)} of {duration(totals.device_us)}"


def share_of_kernels(document: Document) -> str:
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


def remaining(document: Document) -> int:
    """Kernels left once every finding is fused."""
    return max(document.totals.kernels - document.totals.avoidable_kernels, 0)


def _saving(document: Document) -> str:
    saving, step = document.totals.saving, document.totals.step_us
    if not document.findings:
        return ""
    if not saving.likely_us and not saving.ideal_us:
        return f"{size(saving.bytes)} less memory traffic; times not known"
    parts = [
        f"kernel time {duration(saving.likely_us)} likely, {duration(saving.ideal_us)} ideal",
        f"{size(saving.bytes)} less memory traffic",
    ]
    if step:
        parts.insert(0, f"step {_of_step(saving.step_us, step, saving.amdahl_cap)}")
    return " · ".join(parts)


def _of_step(saved: float, step: float, cap: float) -> str:
    bound = f", at most {speedup(cap)}" if cap > 1 else ""
    return f"{duration(saved)} of {duration(step)} ({share(saved, step)}{bound})"


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
        f"edges {edges(seen.edges)}",
        plural(seen.steps, "step"),
    ]
    return " · ".join(p for p in parts if p)


def edges(provenance: str) -> str:
    """How the links between ops are known, as a clause."""
    return EDGES.get(provenance, "of unknown origin")


def looked_at(document: Document) -> str:
    """What an audit without findings stands on."""
    seen, totals = document.coverage, document.totals
    if seen.kernels and not seen.linked:
        return f"Nothing could be matched: none of {plural(seen.kernels, 'kernel')} is linked to an op."
    looked = f"{plural(totals.kernels, 'kernel')}, {count(totals.memory_bound_kernels)} of them memory-bound"
    fused = f", {count(totals.already_fused_kernels)} already fused" if totals.already_fused_kernels else ""
    refused = sum(r.count for r in document.refused)
    tail = f"; {plural(refused, 'site')} matched and {'was' if refused == 1 else 'were'} refused" if refused else ""
    return f"Looked at {looked}{fused}; no rule found kernels that should be one{tail}."


def particulars(document: Document, finding: Finding) -> list[Fact]:
    """Everything a finding says about itself beside its title and place."""
    lines = [
        Fact("kernels", _kernels_of(finding)),
        Fact("memory", f"{size(finding.bytes_now)} → {size(finding.bytes_fused)}{_less(finding)}"),
        Fact("device", _device_of(finding)),
        Fact("step", _step_of(document, finding)),
        Fact("replacement", safe(finding.replacement), True)
        if finding.replacement
        else Fact("replacement", "the rule names none yet"),
        Fact("edges", edges(finding.provenance)),
        Fact("phase", " · ".join(safe(p) for p in (finding.phase, finding.dtype) if p), literal=True),
        Fact("variant", ", ".join(f"{safe(k)}={safe(v)}" for k, v in sorted(finding.variant.items())), literal=True),
        Fact("ops", some([safe(op) for op in finding.ops], 12), literal=True),
        Fact("modules", some([safe(m) for m in finding.modules if m], 3), literal=True),
    ]
    return [line for line in lines if line.value]


def some(items: list[str], limit: int) -> str:
    """The first ``limit`` of ``items``, and how many more there are."""
    head = ", ".join(clip(item, 120) for item in items[:limit])
    return head if len(items) <= limit else f"{head} and {count(len(items) - limit)} more"


def _kernels_of(finding: Finding) -> str:
    n, before, after = finding.sites, finding.kernels, finding.kernels_after
    totals = f"{count(before)} → {count(after)}"
    if n > 1 and before % n == 0 and after % n == 0:
        return f"{n} sites × {before // n} → {n} × {after // n}: {totals}, {count(avoidable(finding))} avoidable"
    return f"{plural(n, 'site')}: {totals}, {count(avoidable(finding))} avoidable"


def _less(finding: Finding) -> str:
    saved = ratio(finding.bytes_now - finding.bytes_fused, finding.bytes_now)
    return f" ({percent(saved)} less)" if saved is not None and saved > 0 else ""


def _device_of(finding: Finding) -> str:
    if not finding.device_us:
        return "not timed"
    saving = finding.saving
    saved = f"{duration(saving.likely_us)} likely, {duration(saving.ideal_us)} ideal"
    return f"{duration(finding.device_us)} now, saves {saved}"


def _step_of(document: Document, finding: Finding) -> str:
    step = document.totals.step_us
    if ratio(finding.saving.step_us, step) is None:
        return ""
    if not finding.saving.step_us:
        return f"saves nothing of {duration(step)}: the step does not wait for these kernels"
    return f"saves {_of_step(finding.saving.step_us, step, finding.amdahl_cap)}"


def next_steps(document: Document) -> list[NextStep]:
    """Commands to run now, ready to paste."""
    run = _shell(document.run.id or "latest")
    steps = [NextStep(f"fusion-audit show {run} --format html > audit.html", "the graphs, before and after")]
    if document.refused:
        first = refusals(document)[0]
        at = f"fusion-audit why-not {run} {_shell(first.rule)} --at {_shell(first.at)}"
        steps.append(NextStep(at, "which op forbids it"))
    if document.coverage.edges == "inferred":
        import_ = "fusion-audit import TRACE.json --execution-trace ET.json"
        steps.append(NextStep(import_, "the same audit on observed edges"))
    if not document.findings:
        steps.append(NextStep("fusion-audit rules list", "what is looked for"))
    return steps


def _shell(word: str) -> str:
    return shlex.quote(safe(word))
