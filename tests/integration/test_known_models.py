"""Audits of models and traces whose fusion sites somebody established by reading them.

The truth lies beside the repository (``../shared/traces``) where the project is developed; elsewhere these
tests are skipped.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from auditor.audit import Audit

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not (SHARED / "models_truth.json").is_file(), reason="no ../shared/traces here")

ARCHITECTURES = ("llama", "mistral", "qwen3", "gemma2", "phi3", "mixtral", "gpt2", "bert", "t5", "vit", "whisper")


@cache
def models_truth() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SHARED / "models_truth.json").read_text())["models"]
    return loaded


@cache
def traces_truth() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SHARED / "truth.json").read_text())["traces"]
    return loaded


@cache
def tiny_models() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tiny_models", SHARED / "tiny_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audit_of(arch: str, dtype: str, attention: str, train: bool) -> Audit:
    """Record a few steps of a tiny model in this process and audit them."""
    import torch

    import auditor

    precision = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    model, kind = tiny_models().build(arch, precision, attention, train)
    batch = tiny_models().inputs(kind, precision, train)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0) if train else None
    with auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            if optimizer is not None:
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with torch.no_grad():
                    model(**batch)
    return rec.audit()


def sites(audit: Audit, phase: str = "forward") -> Counter[str]:
    found: Counter[str] = Counter()
    for finding in audit.findings:
        if finding.phase == phase:
            found[finding.rule] += finding.sites
    return found


def siblings(audit: Audit) -> dict[int, int]:
    """GEMMs in a set → number of such sets."""
    found: Counter[int] = Counter()
    for finding in audit.findings:
        if finding.rule == "FUS501":
            found.update(len(site.ops) for site in finding.places)
    return dict(found)


def expected_sites(arch: str, patterns: dict[str, Any]) -> dict[str, int]:
    """Sites per question, from the truth's expectations and what the recorded variant really holds."""
    expect = models_truth()[arch]["expected"]
    chains = patterns.get("softmax_chains", {})
    by_parts = sum(n for chain, n in chains.items() if chain.startswith("bmm"))
    return {
        "rms norms": expect.get("rms", 0),
        "adds before norms": patterns.get("residual_add_norm", 0) + patterns.get("broadcast_add_norm", 0),
        "gated activations": expect.get("silu_mul", 0) + expect.get("gelu_mul", 0),
        "rotary embeddings": expect.get("rope", 0),
        "softmax or attention": by_parts,
        "epilogues": expect.get("epi", expect.get("relu", 0)),
        "cross entropies": patterns.get("cross_entropy", 0),
    }


def answers(audit: Audit) -> dict[str, int]:
    found = sites(audit)
    return {
        "rms norms": found["FUS201"] + found["FUS202"],
        "adds before norms": found["FUS202"] + found["FUS203"],
        "gated activations": found["FUS206"],
        "rotary embeddings": found["FUS207"],
        "softmax or attention": found["FUS204"] + found["FUS601"] + found["FUS602"],
        "epilogues": found["FUS301"],
        "cross entropies": found["FUS205"],
    }


def variants() -> list[Any]:
    cases = []
    for arch in ARCHITECTURES:
        for attention in ("eager",) if arch == "gemma2" else ("sdpa", "eager"):
            for dtype in ("fp32", "bf16"):
                for mode in ("infer", "train"):
                    cases.append(pytest.param(arch, attention, dtype, mode, id=f"{arch}-{attention}-{dtype}-{mode}"))
    return cases


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "attention", "dtype", "mode"), variants())
def test_sites_of_a_tiny_model(arch: str, attention: str, dtype: str, mode: str) -> None:
    # GIVEN a model whose sites are known, in one attention form, dtype and mode
    truth = models_truth()[arch]["eager"][f"{attention}|{dtype}|{mode}"]

    # WHEN it is recorded and audited
    audit = audit_of(arch, dtype, attention, train=mode == "train")

    # THEN the forward sites are the expected ones, and in inference the kernel count too
    assert answers(audit) == expected_sites(arch, truth["patterns"])
    wanted = {int(k): v for k, v in models_truth()[arch]["expected"].get("horiz", {}).items()}
    assert siblings(audit) == wanted
    if mode == "infer":
        assert audit.document.totals.kernels == truth["kernels"]
    assert audit.document.coverage.edges == "observed"


@pytest.fixture(scope="module")
def qwen() -> Audit:
    import auditor

    return auditor.load(SHARED / "h100_qwen1.5-0.5b_eager.json.gz")


@pytest.fixture(scope="module")
def bert() -> Audit:
    import auditor

    return auditor.load(SHARED / "h100_bert-small_launch_bound.json.gz")


def test_sites_of_an_eager_llm_trace(qwen: Audit) -> None:
    # GIVEN an H100 trace of Qwen1.5-0.5B without tensor ids
    # THEN every site of the truth is found, q and k rotary apart, partners across GEMMs joined
    # and those of the step before the window by the names of their kernels, which have no bytes
    assert sites(qwen) == {
        "FUS202": 48 + 21, "FUS201": 1, "FUS207": 48 + 20, "FUS206": 24 + 11, "FUS501": 48 + 21, "FUS101": 1,
        "FUS901": 24,
    }  # fmt: skip
    assert siblings(qwen) == {3: 24, 2: 24, 0: 10 + 11}
    by_rule = {f.rule: f for f in qwen.findings if f.bytes_now}
    assert by_rule["FUS202"].kernels == 9 * 48
    assert by_rule["FUS201"].kernels == 8
    assert by_rule["FUS207"].kernels == 6 * 48  # the copy that attention asks for is the sixth
    assert by_rule["FUS101"].module_class == "Qwen2RotaryEmbedding"
    assert {f.provenance for f in qwen.findings} == {"inferred"}


def test_residual_sums_of_an_eager_llm_trace_are_second_outputs(qwen: Audit) -> None:
    # GIVEN that 47 of the 48 residual sums are read again by the next residual add
    outputs = Counter(len(site.outputs) for f in qwen.findings if f.rule == "FUS202" for site in f.places if site.ops)
    assert outputs[2] >= 47


def test_unlinked_tail_is_reported_as_coverage(qwen: Audit) -> None:
    coverage = qwen.document.coverage
    link = traces_truth()["h100_qwen1.5-0.5b_eager"]["link"]
    assert (coverage.kernels, coverage.linked) == (link["kernels"], link["in_cpu_op"])
    assert coverage.before_window == link["kernels"] - link["in_cpu_op"]
    assert qwen.document.totals.kernels == link["kernels"]


def test_sites_of_a_launch_bound_trace(bert: Audit) -> None:
    # GIVEN an H100 trace of BERT-small that idles 92 % of the time
    found = sites(bert)
    assert found == {"FUS203": 9, "FUS301": 5, "FUS501": 4, "FUS701": 1}
    embedding = [f for f in bert.findings if f.rule == "FUS203" and f.module_class == "BertEmbeddings"]
    assert [(f.sites, f.kernels) for f in embedding] == [(1, 3)]
    assert bert.document.totals.already_fused_kernels == 4


@pytest.mark.parametrize("name", ["qwen", "bert"])
def test_savings_stay_below_the_time_in_the_sites(name: str, request: pytest.FixtureRequest) -> None:
    audit: Audit = request.getfixturevalue(name)
    for finding in audit.findings:
        assert 0 <= finding.saving.likely_us <= finding.saving.ideal_us <= finding.device_us
        assert finding.bytes_fused <= finding.bytes_now
    in_sites = sum(f.device_us for f in audit.findings)
    assert audit.document.totals.saving.likely_us < in_sites


def test_host_checks_are_no_findings(qwen: Audit) -> None:
    refused = [r for r in qwen.document.refused if "decides what the host does" in r.reason]
    assert refused
    assert all("aten.all" not in f.ops for f in qwen.findings)


@pytest.fixture(scope="module")
def resnet() -> Audit:
    import auditor

    return auditor.load(SHARED / "mi300x_resnet_ddp_training.json.gz")


def test_batch_norms_of_a_training_trace_take_their_activations(resnet: Audit) -> None:
    # GIVEN an MI300X trace of a ResNet that trains with recomputation, each batch norm three kernels
    named = {
        "batchnorm + relu (forward)": ("forward", "native_batch_norm relu_"),
        "batchnorm + residual add + relu (forward)": ("forward", "native_batch_norm add_ relu_"),
        "batchnorm + relu (recompute in backward)": ("backward", "native_batch_norm relu_"),
        "batchnorm + add + relu (recompute)": ("backward", "native_batch_norm add_ relu_"),
    }
    truth = {s["pattern"]: s for s in traces_truth()["mi300x_resnet_ddp_training"]["true_sites"]}
    found = [f for f in resnet.findings if f.bytes_now]

    # THEN each pattern of the truth is in findings with its sites and kernels, of which the norm's three remain
    for pattern, (phase, ops) in named.items():
        alike = [f for f in found if (f.phase, " ".join(op.removeprefix("aten.") for op in f.ops)) == (phase, ops)]
        assert {f.rule for f in alike} == {"FUS209"}
        sites = sum(f.sites for f in alike)
        assert sites == truth[pattern]["sites"]
        assert sum(f.kernels for f in alike) == truth[pattern]["total_kernels"]
        assert sum(f.kernels_after for f in alike) == 3 * sites

    # AND so are the backwards, those that the shortcut's gradient is added before among them
    backwards = [f for f in found if f.ops[-1] == "aten.native_batch_norm_backward"]
    assert {f.rule for f in backwards} == {"FUS209"}
    assert sum(f.sites for f in backwards) == truth["relu backward + batchnorm backward"]["sites"]
    added = sum(f.sites for f in backwards if len(f.ops) == 3)
    assert added == truth["grad accumulate add_ + relu backward (independent DDP mul between)"]["sites"]


def test_the_counters_of_batch_norms_are_in_no_site_of_a_norm(resnet: Audit) -> None:
    for finding in resnet.findings:
        if finding.rule == "FUS209":
            assert finding.dtype in ("bf16", "f32")
