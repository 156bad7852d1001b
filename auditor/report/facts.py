"""What a report says of findings, in words and in order, before any format dresses it.

Values that hold names from the run are ``literal``: a format shows them as code and escapes them.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from auditor.document import Document, Finding, Refused, Run, SourceInfo
from auditor.report import steps
from auditor.report.format import UNKNOWN, clip, count, duration, from_to, percent, plural, ratio, safe, share, speedup

LAUNCHES = "launch"
"""The family of findings about wall time alone: launches that the device waits for, with kernels of other findings."""

EDGES = {
    "observed": "observed in the execution trace (tensor ids)",
    "traced": "traced symbolically (FX)",
    "simulated": "simulated on fake tensors, nothing was timed",
    "inferred": "inferred from shapes and order only: check the drawing before you act on it",
}


NO_OPS = "No op is known for the kernels of this site: nothing can be drawn."
NO_SHAPES = "without shapes nobody knows what it saves"
"""Of findings that are :func:`unpriced`."""
_BY_NAME = "inferred from kernel names: in the order of linked sites of the same rule, their ops were not recorded"

_BY_ORDER = "inferred from the order of kernels and the names of their ops: no shapes were recorded, so check the code"


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
    """Findings by likely saving, largest first; where nothing was timed, by kernels and then bytes avoided.

    Launches that the device waits for are no kernel time: there it is wall time.
    """
    return sorted(document.findings, key=_rank)


def _rank(finding: Finding) -> tuple[float, float, float, str, str]:
    saving = finding.saving
    likely = ratio(saving.step_us if finding.family == LAUNCHES else saving.likely_us, 1.0) or 0.0
    moved = finding.bytes_now - finding.bytes_fused
    return -likely, -avoidable(finding), -moved, finding.rule, finding.fingerprint


def avoidable(finding: Finding) -> int:
    """Launches that fusing every site would remove."""
    return max(finding.kernels - finding.kernels_after, 0)


def kernels(finding: Finding) -> str:
    """``42 → 6``, now and afterwards; a dash where a finding is about wall time alone."""
    return "–" if finding.family == LAUNCHES else f"{count(finding.kernels)} → {count(finding.kernels_after)}"


def traffic(finding: Finding) -> str:
    """Bytes now and afterwards, as :func:`kernels`."""
    return "–" if finding.family == LAUNCHES else from_to(finding.bytes_now, finding.bytes_fused)


def kernel_time(finding: Finding) -> str:
    """What its kernels take now, as :func:`kernels`."""
    unknown = "–" if finding.family == LAUNCHES else "not timed"
    return duration(finding.device_us) if finding.device_us else unknown


def time_saved(finding: Finding) -> str:
    """Kernel time that is likely saved; not known where only names and order are."""
    return UNKNOWN if unpriced(finding) else duration(finding.saving.likely_us)


def refusals(document: Document, relative_to: Path | None = None) -> list[Refusal]:
    """Refused sites grouped by rule and reason, most frequent first; paths as :func:`short_path` has them."""
    groups: dict[tuple[str, str], list[Refused]] = {}
    for refused in document.refused:
        groups.setdefault((refused.rule, refused.reason), []).append(refused)
    merged = [
        Refusal(rule, reason, short_path(g[0].at, relative_to), sum(r.count for r in g))
        for (rule, reason), g in groups.items()
    ]
    return sorted(merged, key=lambda r: (-r.count, r.rule, r.reason))


def title(document: Document) -> str:
    """``name (id)`` of the run, with what there is of it; of one rank of several ``name (id), rank 3``."""
    run = document.run
    name = safe(run.name or run.id) or "unnamed run"
    one = f", rank {run.rank}" if run.world_size > 1 and not document.ranks else ""
    return (f"{name} ({safe(run.id)})" if run.id and run.name and run.id != run.name else name) + one


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
    if finding.family == LAUNCHES:
        around = next((module for module in finding.modules if module), "")
        return f"{safe(finding.module_class or around) or 'the step'} × {plural(finding.sites, 'stretch', 'stretches')}"
    return f"{safe(finding.module_class) or 'outside any module'} × {plural(finding.sites, 'site')}"


def remaining(document: Document) -> int:
    """Kernels left once every finding is fused."""
    return max(document.totals.kernels - document.totals.avoidable_kernels, 0)


def of_step(saved: float, step: float, cap: float) -> str:
    """``7.10 ms of 60.0 ms (12 %, at most ×1.29)``: ``cap`` is the Amdahl bound of the step's speed-up."""
    bound = f", at most {speedup(cap)}" if cap > 1 else ""
    return f"{duration(saved)} of {duration(step)} ({share(saved, step)}{bound})"


def edges(provenance: str) -> str:
    """How the links between ops are known, as a clause."""
    return EDGES.get(provenance, "of unknown origin")


def by_name(finding: Finding) -> bool:
    """Whether its sites are known by the names of their kernels only: no op of theirs was recorded."""
    return finding.provenance == "inferred" and not finding.bytes_now and not any(p.ops for p in finding.places)


def by_order(finding: Finding) -> bool:
    """Whether its sites are known by the order and the names of their ops only: no shape was recorded."""
    if finding.provenance != "inferred" or finding.bytes_now or finding.family == LAUNCHES:
        return False
    saving = finding.saving
    return any(p.ops for p in finding.places) and not (saving.ideal_us or saving.likely_us or saving.step_us)


def unpriced(finding: Finding) -> bool:
    """Whether it is not known what its sites would save: no shapes tell."""
    return by_name(finding) or by_order(finding)


def legality(finding: Finding) -> list[str]:
    """What the engine checked before it took the ops of a site for one kernel, a sentence each."""
    if by_name(finding):
        return [
            "Its kernels were launched before the window, or replayed from a graph: no op of theirs was recorded.",
            "Their names stand in the order of linked sites of the same rule, and nowhere else among linked kernels.",
        ]
    if by_order(finding):
        return [
            f"All of its ops run in the {safe(finding.phase)}, on one stream and from one thread, one after the other.",
            "No host sync and no collective lies in between.",
            "Which tensor feeds which was not recorded: this order of ops mostly means a chain, and proves none.",
            f"Edges are {_BY_ORDER}.",
        ]
    if finding.family == LAUNCHES:
        return [
            "Nothing in it waits for the device: no sync, collective, copy to or from the host, shape from data.",
            f"Edges are {edges(finding.provenance)}; when kernels were launched and ran is from the trace.",
        ]
    return [
        f"All of its ops run in the {safe(finding.phase)}, on one stream and from one thread.",
        "No op in between writes in place to anything that it reads, and no path leaves it and comes back.",
        "No host sync, collective or data-dependent shape lies in between.",
        f"Edges are {edges(finding.provenance)}.",
    ]


def particulars(document: Document, finding: Finding) -> list[Fact]:
    """Everything a finding says about itself beside its title and place."""
    lines = [
        *_cost_of(document, finding),
        Fact("step", _step_of(document, finding)),
        _replacement(finding),
        Fact("edges", _edges_of(finding)),
        Fact("phase", " · ".join(safe(p) for p in (finding.phase, finding.dtype) if p), literal=True),
        Fact("variant", ", ".join(f"{safe(k)}={safe(v)}" for k, v in sorted(finding.variant.items())), literal=True),
        Fact("ops", some([safe(op) for op in finding.ops], 12), literal=True),
        Fact("modules", some([safe(m) for m in finding.modules if m], 3), literal=True),
    ]
    return [line for line in lines if line.value]


def _edges_of(finding: Finding) -> str:
    if by_name(finding):
        return _BY_NAME
    return _BY_ORDER if by_order(finding) else edges(finding.provenance)


def _cost_of(document: Document, finding: Finding) -> list[Fact]:
    if finding.family == LAUNCHES:  # it is about wall time, and no kernel of its own
        worst = max(finding.places, key=lambda place: place.saving.step_us, default=None)
        most = "the longest to wait: " if len(finding.places) > 1 else ""
        return [
            Fact("launches", f"{most}{worst.formula}" if worst else ""),
            Fact("per step", steps.of_finding(document, finding)),
        ]
    return [
        Fact("kernels", _kernels_of(finding)),
        Fact("per step", steps.of_finding(document, finding)),
        Fact("memory", f"{traffic(finding)}{_less(finding)}"),
        Fact("device", _device_of(finding)),
    ]


def _replacement(finding: Finding) -> Fact:
    if finding.instead:
        return Fact("instead", safe(finding.instead), True)
    if finding.replacement:
        return Fact("replacement", safe(finding.replacement), True)
    return Fact("replacement", "the rule names none yet")


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
    if unpriced(finding):
        return f"{duration(finding.device_us)} now; {NO_SHAPES}"
    saving = finding.saving
    saved = f"{duration(saving.likely_us)} likely, {duration(saving.ideal_us)} ideal"
    return f"{duration(finding.device_us)} now, saves {saved}"


def _step_of(document: Document, finding: Finding) -> str:
    step = document.totals.step_us
    if unpriced(finding) or ratio(finding.saving.step_us, step) is None:
        return ""
    if not finding.saving.step_us:
        return f"saves nothing of {duration(step)}: the step does not wait for these kernels"
    return f"saves {of_step(finding.saving.step_us, step, finding.amdahl_cap)}"


def next_steps(document: Document) -> list[NextStep]:
    """Commands to run now, ready to paste."""
    steps = _of_stored(document) if document.run.id else []
    if document.coverage.edges == "inferred":
        import_ = "fusion-audit import TRACE.json --execution-trace ET.json"
        steps.append(NextStep(import_, "the same audit on observed edges"))
    if not document.findings:
        steps.append(NextStep("fusion-audit rules list", "what is looked for"))
    return steps


def _of_stored(document: Document) -> list[NextStep]:
    """What reads the run from the store, which gave it its id: no command finds one that was never stored."""
    run = _shell(document.run.id)
    steps = [NextStep(f"fusion-audit show {run} --format html > audit.html", "the graphs, before and after")]
    if document.findings and _can_be_fixed(document.run):
        steps.append(NextStep(f"fusion-audit fix {run}", "replaces, verifies and measures"))
    if document.refused:
        first = refusals(document)[0]
        at = f"fusion-audit why-not {run} {_shell(first.rule)} --at {_shell(first.at)}"
        steps.append(NextStep(at, "which op forbids it"))
    return steps


def _can_be_fixed(run: Run) -> bool:
    """A script that can run again as it is, in one process; under a plan it has been fixed."""
    return run.source == "profile" and bool(run.script) and run.world_size == 1 and not (run.plan or run.patched_from)


def _shell(word: str) -> str:
    return shlex.quote(safe(word))
