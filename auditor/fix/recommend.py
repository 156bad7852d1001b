"""What would make the step faster and isn't ours to apply: each with the figures that speak for it."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.document import Document
from auditor.fix_document import FixDocument, Recommendation
from auditor.report.format import count, duration, percent, plural, share

OPTIMIZER, LAUNCHES = "FUS801", "FUS701"
ATTENTION = "FUS601"


def recommendations(before: Document, fix: FixDocument) -> list[Recommendation]:
    """Everything that the audit ``before`` and the measurements of ``fix`` give a reason for."""
    found = (*_optimizer(before), *_attention(before, fix), *_cuda_graphs(before), *_compile(fix))
    return list(found)


def _optimizer(before: Document) -> Iterator[Recommendation]:
    for finding in before.findings:
        if finding.rule == OPTIMIZER:
            yield Recommendation(
                what=f"Write {finding.instead}, or call `fused_replacements.fused_optimizer` on the optimizer.",
                evidence=f"its step is {plural(finding.kernels, 'kernel')} of {count(before.totals.kernels)}, where "
                f"{count(finding.kernels_after)} would do, and takes {duration(finding.device_us)} of "
                f"{duration(before.totals.device_us)} of kernel time "
                f"({share(finding.device_us, before.totals.device_us)})",
            )


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
    for finding in before.findings:
        if finding.rule == LAUNCHES:
            step, saved = before.totals.step_us, finding.saving.step_us
            places = sorted(finding.places, key=lambda place: -place.saving.step_us)
            longest = f": {places[0].formula}" if places else ""
            yield Recommendation(
                what=f"Replay the launches from a CUDA graph: {finding.instead}.",
                evidence=f"it would save {duration(saved)} of {duration(step)} ({share(saved, step)}){longest}",
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
