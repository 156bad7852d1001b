"""Families of the kernels of real traces, against those that an independent reader of the same names counted.

Truth and traces lie beside the repository (``../shared/traces``) where the project is developed; elsewhere these tests
are skipped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from auditor.api import load
from auditor.collect.kineto import load_trace
from auditor.config import Config
from auditor.kernels import classify

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not (SHARED / "truth.json").is_file(), reason="no ../shared/traces here")

THEIRS = {
    "gemm": "gemm_conv", "gather": "index_pool_misc", "sort": "index_pool_misc", "random": "other",
    "optimizer": "fused_named",
}  # fmt: skip
"""What the truth calls our families, where it has another word."""

EXPLAINED: dict[str, dict[str, int]] = {
    # Index kernels whose name has "elementwise" in it
    "h100_owlv2_eager": {"elementwise": -5, "index_pool_misc": 5},
    # The truth leaves MIOpen's SubTensorOpWithCastTensor (a cast) and SubTensorOpWithScalar (a fill) unplaced
    "mi300x_resnet_ddp_training": {"copy": 165, "elementwise": 181, "other": -346},
    # SubTensorOpWithScalar 13 and MIOpen's Im2d2Col 9, unplaced there; 18 gathers and scans by their own names
    "mi300x_sd3.5_compiled_and_eager": {
        "elementwise": -3, "gemm_conv": 9, "index_pool_misc": 18, "other": -21, "reduction": -3,
    },
    # Gathers, scans and SGLang's bookkeeping of indices: reductions, elementwise and unplaced there
    "mi300x_sglang_qwen3-8b_already_fused": {"elementwise": -2, "index_pool_misc": 8, "other": -3, "reduction": -3},
    # The second stage of vLLM's attention (reduce_segments 12) is a reduction there, routing of tokens to experts
    # fused or unplaced, and _finalize_matmul_scatter, which has no product, a GEMM
    "vllm_decode_graph_replay": {
        "attention": 12, "elementwise": -1, "gemm_conv": -24, "index_pool_misc": 49, "other": -24, "reduction": -12,
    },
    # var (WelfordOps) is a norm there; it is a reduction, of a norm that is written by hand
    "v100_training_no_shapes": {"norm": -155, "reduction": 155},
    # Scans, sorts and run lengths of CUB, and index kernels of FBGEMM, are reductions, GEMMs (radix sorts: 42) and
    # fused there
    "a100_training_torch1.12": {
        "elementwise": -12, "fused_named": -24, "gemm_conv": -42, "index_pool_misc": 348, "other": -12,
        "reduction": -258,
    },
    # transform_bias_rescale_qkv: one kernel of bias, scale and split, unplaced there
    "h100_small_transformer_training": {"fused_named": 3, "other": -3},
    # cuDNN's scalePackedTensor 162 is a copy there; computeOffsets and generateWinogradTiles, parts of its
    # convolutions, are unplaced or elementwise, as are the NLL losses
    "torch1.8_resnet50_old_era": {
        "copy": -162, "elementwise": 162, "gemm_conv": 210, "index_pool_misc": 12, "other": -222,
    },
}  # fmt: skip
"""By trace: our count less theirs, of every family that differs."""


@cache
def truth() -> dict[str, dict[str, dict[str, dict[str, int]]]]:
    return json.loads((SHARED / "truth.json").read_bytes())["traces"]  # type: ignore[no-any-return]


def names_in(path: Path) -> Counter[str]:
    trace = load_trace(path)
    return Counter(event.name for event in (*trace.kernels, *trace.memory))


def everything() -> Iterator[Path]:
    return (path for path in sorted(SHARED.rglob("*.json.gz")) if ".et." not in path.name and "truth" not in path.name)


def as_theirs(name: str) -> str:
    known = classify(name)
    if known.library == "Inductor":
        return "triton"
    # They call GEMMs and attention so, whoever fused them
    fused = known.fuses and known.family not in ("gemm", "attention")
    return "fused_named" if fused else THEIRS.get(known.family, known.family)


@pytest.mark.parametrize("trace", sorted(truth()) if (SHARED / "truth.json").is_file() else [])
def test_families_are_those_of_the_truth_or_the_difference_is_explained(trace: str) -> None:
    ours: Counter[str] = Counter()
    for name, kernels in names_in(SHARED / f"{trace}.json.gz").items():
        ours[as_theirs(name)] += kernels
    theirs = {family: total["n"] for family, total in truth()[trace]["families"].items()}
    off = {family: ours[family] - theirs.get(family, 0) for family in {*ours, *theirs}}
    assert {family: n for family, n in off.items() if n} == EXPLAINED.get(trace, {})


def test_no_kernel_of_any_trace_is_left_unplaced() -> None:
    small = [path for path in everything() if path.stem.removesuffix(".json") not in truth()]
    assert small
    names = {name for path in small for name in names_in(path)}
    assert sorted(name for name in names if classify(name).family == "other") == []


def test_replayed_kernels_count_by_their_names() -> None:
    audit = load(SHARED / "vllm_decode_graph_replay.json.gz", config=Config())
    document, totals = audit.document, audit.document.totals
    # 4 of 425 kernels are linked to an op
    assert (totals.kernels, totals.memory_bound_kernels, totals.already_fused_kernels) == (425, 268, 277)
    assert 0.15 < totals.memory_bound_us / totals.device_us < 0.17
    assert {"OpenAI triton_kernels", "vLLM", "Composable Kernel", "Inductor"} == {
        each.library for each in document.live
    }
    assert sum(each.kernels for each in document.families) == totals.kernels
    assert document.unplaced == document.findings == []
