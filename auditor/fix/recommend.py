"""What would make the step faster and isn't ours to apply: each with the figures that speak for it."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.document import Document
from auditor.fix_document import FixDocument, Recommendation
from auditor.graph.model import Kernel, OpGraph
from auditor.report.format import count, duration, percent, plural, share

LAUNCH_BOUND = 0.5
"""A step that idles for more than this share of its time waits for launches."""
OPTIMIZER_KERNELS = 8
"""Fewer kernels than these are not worth a word."""
ATTENTION = "FUS601"


def recommendations(before: Document, graph: OpGraph, fix: FixDocument) -> list[Recommendation]:
    """Everything that the audit ``before`` and the measurements of ``fix`` give a reason for."""
    found = (*_optimizer(before, graph), *_attention(before, fix), *_cuda_graphs(before), *_compile(fix))
    return list(found)


def _optimizer(before: Document, graph: OpGraph) -> Iterator[Recommendation]:
    kernels = [kernel for op in graph.ops if op.phase == "optimizer" for kernel in op.kernels]
    loose = [kernel for kernel in kernels if "fused" not in kernel.name.lower()]
    if len(loose) < OPTIMIZER_KERNELS:
        return
    us = sum(kernel.dur_us for kernel in loose)
    yield Recommendation(
        what="Give the optimizer `fused=True` (torch.optim.Adam, AdamW, SGD and Adagrad take it), or call "
        "`fused_replacements.fused_optimizer` on it.",
        evidence=f"its step is {plural(len(loose), 'kernel')}{_most(loose)} of {count(before.totals.kernels)}, "
        f"and takes {duration(us)} of {duration(before.totals.device_us)} of kernel time "
        f"({share(us, before.totals.device_us)})",
    )


def _most(kernels: list[Kernel]) -> str:
    names = [kernel.name for kernel in kernels]
    common = max(set(names), key=lambda name: (names.count(name), name))
    return f" ({names.count(common)} of them {common[:60]})"


def _attention(before: Document, fix: FixDocument) -> Iterator[Recommendation]:
    findings = [f for f in before.findings if f.rule == ATTENTION and f.phase != "backward"]
    sites = sum(finding.sites for finding in findings)
    kept = sum(site.rule == ATTENTION and site.state == "kept" for site in fix.sites)
    if sites <= kept:
        return
    kernels, likely = sum(f.kernels for f in findings), sum(f.saving.likely_us for f in findings)
    yield Recommendation(
        what='Call torch.nn.functional.scaled_dot_product_attention (transformers: attn_implementation="sdpa").',
        evidence=f"attention is computed by parts at {plural(sites, 'site')}, {plural(kernels, 'kernel')}; the audit "
        f"expects {duration(likely)} less kernel time, and a plan replaces {count(kept)} of them",
    )


def _cuda_graphs(before: Document) -> Iterator[Recommendation]:
    totals = before.totals
    if before.run.device.kind == "cpu" or totals.step_us <= 0 or totals.idle_us <= LAUNCH_BOUND * totals.step_us:
        return
    yield Recommendation(
        what='Capture the step in a CUDA graph: torch.compile(model, mode="reduce-overhead").',
        evidence=f"the device idles for {duration(totals.idle_us)} of the step's {duration(totals.step_us)} "
        f"({share(totals.idle_us, totals.step_us)}) between {plural(totals.kernels, 'kernel')}: it waits for launches",
    )


def _compile(fix: FixDocument) -> Iterator[Recommendation]:
    compiled, patched = fix.timing.compile_vs_eager, fix.timing.patched_vs_eager
    kept = any(site.state == "kept" for site in fix.sites)
    best = patched.high if kept else 1.0
    if compiled.low <= max(best, 1.0):
        return
    than = (
        f"the plan ×{patched.ratio:.2f} ({patched.low:.2f} to {patched.high:.2f})" if kept else "and nothing was kept"
    )
    first = f"; its first call takes {duration(fix.timing.compile_first_us)}" if fix.timing.compile_first_us else ""
    yield Recommendation(
        what=f"Use torch.compile(model): here it {'beats the plan' if kept else 'is faster'}.",
        evidence=f"torch.compile ×{compiled.ratio:.2f} ({compiled.low:.2f} to {compiled.high:.2f}) against eager, "
        f"{than}; {percent(1 - 1 / compiled.ratio)} of the step{first}",
    )
