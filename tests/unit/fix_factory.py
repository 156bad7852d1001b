"""Fixes that look like real ones, for the tests of reports and judgements."""

from __future__ import annotations

from report_factory import HOSTILE

from auditor.document import Totals, TotalSaving
from auditor.fix_document import (
    FixDocument,
    FixedSite,
    FixMemory,
    FixTiming,
    Prediction,
    RatioInfo,
    Recommendation,
)


def norm(layer: int, **facts: object) -> FixedSite:
    fields: dict[str, object] = {
        "rule": "FUS201", "module": f"layers.{layer}.norm", "tier": 2, "replacement": "rms_norm", "provider": "triton",
        "state": "kept", "calls": 1, "kernels": 6, "error": 2e-7, "eager_error": 3e-7,
        "gain": RatioInfo(ratio=2.0 + layer / 10, low=1.9, high=2.5), "before_us": 300.0, "after_us": 100.0,
    }  # fmt: skip
    return FixedSite(**{**fields, **facts})  # type: ignore[arg-type]


def fixed() -> FixDocument:
    """Three norms kept, a gate rolled back, sibling GEMMs refused."""
    return FixDocument(
        run="1m8aaaaaaaaa", after_run="1m8bbbbbbbbb", script=["examples/llama.py", "--prompt", "two words"],
        model="Llama", kind="training",
        before=Totals(kernels=92, unfused_kernels=64, step_us=60_000.0, saving=TotalSaving(amdahl_cap=1.29)),
        after=Totals(kernels=31, unfused_kernels=2, already_fused_kernels=12),
        sites=[
            *(norm(i) for i in range(3)),
            FixedSite(rule="FUS206", module="layers.0.mlp", tier=2, replacement="act_mul", provider="triton",
                      state="rolled_back", reason="not faster: 0.97 × (0.95 to 0.99)", calls=1,
                      gain=RatioInfo(ratio=0.97, low=0.95, high=0.99), before_us=100.0, after_us=103.0),
            FixedSite(rule="FUS501", module="layers.0.attention", reason="the weights do not lie one behind the other"),
        ],
        timing=FixTiming(
            eager_us=60_000.0, patched_us=50_000.0, compile_us=55_000.0, rounds=31, patched_first_us=3e6,
            patched_vs_eager=RatioInfo(ratio=1.2, low=1.18, high=1.22),
            compile_vs_eager=RatioInfo(ratio=1.09, low=1.05, high=1.12),
        ),
        memory=FixMemory(eager_bytes=12_000_000, patched_bytes=8_000_000, compile_bytes=9_000_000),
        amdahl_cap=1.29, predicted_us=9_000.0, measured_us=10_000.0,
        predictions=[Prediction(rule="FUS201", sites=3, predicted_us=660.0, measured_us=600.0, predicted_share=0.55,
                                measured_share=0.5, before_us=1200.0, after_us=600.0, after_predicted_us=540.0)],
        verified=True, verification="on captured inputs, other values", compiles=1,
        recommendations=[Recommendation(what="Give the optimizer `fused=True`.", evidence="its step is 40 kernels")],
        notes=["Patched by a plan: of its 3 sites 3 were applied and 3 were called."], plan="fusion-plan.yaml",
    )  # fmt: skip


def nothing_kept() -> FixDocument:
    """GEMM-bound: one site, and it does not win."""
    site = norm(0, state="rolled_back", reason="not faster: 1.00 × (0.99 to 1.01)")
    return FixDocument(run="1m8aaaaaaaaa", model="Llama", sites=[site], amdahl_cap=1.08)


def hostile() -> FixDocument:
    """Every text field holds markup, escapes and quotes."""
    site = norm(0, rule=HOSTILE, module=HOSTILE, replacement=HOSTILE, provider=HOSTILE, reason=HOSTILE)
    return FixDocument(
        run=HOSTILE, after_run=HOSTILE, script=[HOSTILE], model=HOSTILE, kind=HOSTILE, sites=[site], notes=[HOSTILE],
        verification=HOSTILE, graph_breaks=[HOSTILE], compiles=1, plan=HOSTILE, diff=f"--- a\n+++ b\n+{HOSTILE}\n",
        predictions=[Prediction(rule=HOSTILE, sites=1, before_us=2.0, after_us=1.0)],
        recommendations=[Recommendation(what=HOSTILE, evidence=HOSTILE)],
    )  # fmt: skip
