"""What an audit finds in the shared traces, held against true sites that were established by reading them.

``SHORT`` names every pattern that is not found at each of its sites, with how many are and why not the others;
everything else has to be found everywhere. The truth lies beside the repository; elsewhere these tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not (SHARED / "truth.json").is_file(), reason="no ../shared/traces here")

CHEAP = (
    "h100_bert-small_launch_bound", "h100_small_transformer_training", "h100_qwen1.5-0.5b_eager",
    "mi300x_resnet_ddp_training", "mi300x_sglang_qwen3-8b_already_fused", "vllm_decode_graph_replay",
)  # fmt: skip
LONG = (
    "h100_owlv2_eager", "mi300x_sd3.5_compiled_and_eager", "a100_training_torch1.12", "torch1.8_resnet50_old_era",
    "v100_training_no_shapes",
)  # fmt: skip

SHORT: dict[str, dict[str, tuple[int, str]]] = {
    "h100_qwen1.5-0.5b_eager": {
        "q/k/v contiguous() before SDPA (3 independent copies)": (
            0, "each goes with what makes it: two with their rotations, FUS207; that of v is needless, FUS901"
        ),
        "o_proj/down_proj GEMM + residual add": (0, "the other use of an add that FUS202 takes, which saves more"),
    },
    "h100_bert-small_launch_bound": {
        "gelu + layernorm (prediction head transform)": (0, "the GELU goes into its GEMM, FUS301, which saves as much"),
        "addmm + residual add": (0, "the other use of an add that FUS203 takes"),
    },
    "h100_owlv2_eager": {
        "embedding cat + position add + pre-layernorm (gather between)": (0, "FUS203 takes sum and norm alone"),
        "logit shift/scale (elu, add 1, add, mul, [eq, fill], where, cast)": (0, "ELU and sum go into GEMMs"),
    },
    "mi300x_sd3.5_compiled_and_eager": {
        "T5 relative position bucket (once per encoder call)": (0, "all but a range and a sum of 256 numbers"),
        "add div copy groupnorm silu (VAE, extended)": (
            0, "sum and division go into the convolution, FUS301, which saves more; norm and SiLU are FUS209"
        ),
    },
    "mi300x_sglang_qwen3-8b_already_fused": {
        "q/k reshape copy + per-head rmsnorm": (0, "the norm is AITER's fused kernel: those are never in a finding"),
        "qk-norm + rope + kv-cache store (6 kernels)": (0, "all but the rotation and the store, fused ops"),
    },
    "vllm_decode_graph_replay": {
        "rope + kv-cache write (names only)": (0, "replayed by a graph: no kernel has an op"),
        "triton _to_copy (cast) + rope (names only)": (0, "replayed by a graph: no kernel has an op"),
    },
    "v100_training_no_shapes": {
        "relu backward alone before mm": (20, "one kernel, which no rule puts into the GEMM that reads it"),
    },
    "a100_training_torch1.12": {
        "addmm + relu": (36, "six results look as if something else read them, too"),
        "sigmoid, sub, div, log.. calibration tail": (0, "two sites: one half reads nothing of the other"),
        "tanh + cat + permute copy": (0, "the file does not hold what a cat reads"),
        "three gradient adds + tanh backward (2 AccumulateGrad add_ launched between)": (
            0, "the sums are found; the tanh reads a part of theirs only"
        ),
    },
    "h100_small_transformer_training": {
        "attention inside _native_multi_head_attention (9 kernels: mm, bias+rescale, bmm, softmax, bmm, copy, addmm, "
        "sum, div_)": (
            0, "kernels inside one op, which only another call avoids: it is among the traps of truth.json, too"
        ),
    },
    "torch1.8_resnet50_old_era": {
        "zero_grad fill_ per parameter": (966, "the other six fill the seeds of backward passes, no gradient"),
    },
}  # fmt: skip


@cache
def truth() -> ModuleType:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location("truth_table", BENCHMARKS / "truth.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


@cache
def table(name: str) -> dict[str, Any]:
    made: dict[str, Any] = truth().table_of(name)
    return made


def traces() -> list[Any]:
    return [*CHEAP, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


def covered(pattern: dict[str, Any]) -> int:
    return pattern["states"].get("found", 0) + pattern["states"].get("larger", 0)


@pytest.mark.parametrize("name", traces())
def test_true_sites_are_found(name: str) -> None:
    # GIVEN the true sites of a trace WHEN it is audited
    patterns = {pattern["pattern"]: pattern for pattern in table(name)["patterns"]}

    # THEN one site of ours covers each of them, but where it is known why not
    short = SHORT.get(name, {})
    assert set(short) <= set(patterns)
    missing = {
        pattern: (covered(found), found["sites"], found["states"])
        for pattern, found in patterns.items()
        if covered(found) < (short[pattern][0] if pattern in short else found["sites"])
    }
    assert missing == {}


@pytest.mark.parametrize("name", traces())
def test_no_trap_is_fallen_into_and_sums_hold(name: str) -> None:
    # GIVEN a trace WHEN it is audited
    made = table(name)

    # THEN every kernel is counted and linked as in the truth
    assert made["kernels"]["ours"] == made["kernels"]["truth"]
    assert made["linked"]["ours"] == made["linked"]["truth"]

    # AND no site falls into a trap, no kernel is claimed twice, and nothing saves more than it takes
    assert {trap["trap"]: trap["flagged"] for trap in made["traps"] if trap["flagged"]} == {}
    assert made["kernels_in_two_sites"] == 0
    assert made["savings_beyond_time"] == 0
    assert made["saving_us"] <= made["sites_us"] + 1e-6


def test_peers_double_counts_on_qwen_are_absent() -> None:
    # GIVEN the Qwen trace, of which a peer claims 50.9 % of the run, 33.7 % of it once double counts are taken out
    held = truth().Held("h100_qwen1.5-0.5b_eager")

    # WHEN the kernels of our sites are added up
    counted = [number for ours in held.sites for number in ours.kernels]

    # THEN each counts once, and findings are the sums of their sites: nothing is first instance × count
    assert len(counted) == len(set(counted))
    for finding in held.audit.findings:
        assert finding.device_us == pytest.approx(sum(site.device_us for site in finding.places))
        assert finding.device_us == pytest.approx(
            sum(held.dur_us(ours.kernels) for ours in held.sites if ours.finding is finding)
        )
    # AND q's and k's rotations are sites of their own; residual sums, which the peer lacks, are with their norms
    # (20 and 21 more are of the step before the window, by the names of their kernels)
    linked = Counter(ours.finding.rule for ours in held.sites if ours.site.ops)
    assert (linked["FUS207"], linked["FUS202"]) == (48, 48)
    named = Counter(ours.finding.rule for ours in held.sites if ours.site.unlinked)
    assert (named["FUS207"], named["FUS202"]) == (20, 21)


def test_a_peers_batch_norm_share_on_resnet_is_absent() -> None:
    # GIVEN the ResNet trace, where a peer gives BatchNorm 29.7 % of the run: the first instance times the count
    held = truth().Held("mi300x_resnet_ddp_training")

    # WHEN the time of the sites with a batch norm is added up
    norms = [ours for ours in held.sites if any("batch_norm" in op.name for op in held.ops_of(ours))]
    share = sum(held.dur_us(ours.kernels) for ours in norms) / held.truth["kernel_us"]

    # THEN it is the time of these very kernels: below the peer's figure by far, and no more than all batch norms take
    all_norms = sum(op.dur_us for op in held.audit.graph.ops if "batch_norm" in op.name)
    assert 0 < share < 0.1
    inside = sum(op.dur_us for ours in norms for op in held.ops_of(ours) if "batch_norm" in op.name)
    assert inside <= all_norms
    first = norms[0]
    assert sum(o.site.device_us for o in norms) != pytest.approx(first.site.device_us * len(norms), rel=0.05)


def test_the_table_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    # GIVEN WHEN the benchmark is asked for one trace, as text and as JSON
    def printed(*given: str) -> str:
        monkeypatch.setattr(sys, "argv", ["truth.py", "--trace", "h100_bert-small_launch_bound", *given])
        truth().main()
        return capsys.readouterr().out

    # THEN it says how many sites there are and what became of them
    assert "60 kernels (truth 60), 60 linked to an op (truth 60)" in printed()
    (made,) = json.loads(printed("--format", "json"))
    assert made["patterns"][0]["sites"] == 8
    assert made["patterns"][0]["states"] == {"found": 8}
