"""Kernels of two runs side by side under the ops that launched them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from step_traces import Made, TraceMaker, model

from auditor.api import audit_trace
from auditor.audit import Audit
from auditor.cli import main
from auditor.config import Config
from auditor.gate.compare import compare
from auditor.gate.compare_kernels import By, compare_kernels
from auditor.gate.kernel_groups import side_of
from auditor.gate.measures import figures_of
from auditor.gate.snapshot import snapshot_of
from auditor.gate.whole_steps import of_whole_steps
from auditor.gate_document import KernelChange, KernelTable
from auditor.graph.ops import portable_name

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def traced(vendor: str, steps: int, extra: list[Made] | None = None) -> TraceMaker:
    trace = TraceMaker(vendor)
    for number in range(steps):
        begin = trace.now
        trace.ops([*model(vendor=vendor), *(extra or [])])
        trace.now += 300.0
        trace.mark(f"ProfilerStep#{number}", begin)
    return trace


def audited(trace: TraceMaker, path: Path, name: str) -> Audit:
    return audit_trace(trace.write(path, name), config=Config())


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Audit, Audit]:
    """One model on two vendors' devices, two steps of it and three."""
    before = audited(traced("cuda", 2), tmp_path, "cuda.json")
    return before, audited(traced("hip", 3), tmp_path, "hip.json")


def table(before: Audit, after: Audit, by: By) -> KernelTable:
    return compare_kernels(*(side_of(audit.document, audit.graph) for audit in (before, after)), by)


def row(of: KernelTable, op: str) -> KernelChange:
    (found,) = [each for each in of.rows if each.op == op]
    return found


def check_sums(of: KernelTable, before: Audit, after: Audit) -> None:
    """Rows add up to the total, and that to the totals of the documents a step."""
    for i, audit in enumerate((before, after)):
        document = of_whole_steps(audit.document)
        steps = document.coverage.steps
        assert sum(r.kernels[i] for r in of.rows) == pytest.approx(of.total.kernels[i])
        assert sum(r.device_us[i] for r in of.rows) == pytest.approx(of.total.device_us[i])
        assert of.total.kernels[i] == pytest.approx(document.totals.kernels / steps)
        assert of.total.kernels[i] == pytest.approx(figures_of(document).kernels)
        assert of.total.device_us[i] == pytest.approx(document.totals.device_us / steps)


def test_one_model_on_two_devices_is_paired_op_by_op(pair: tuple[Audit, Audit]) -> None:
    # WHEN two steps on NVIDIA are compared with three on AMD
    found = table(*pair, "op")

    # THEN every op has its other, a step each, and the norm's two kernels there stand beside its one here
    assert {r.op: (r.paired_by, *r.kernels) for r in found.rows} == {
        "aten.embedding": ("op", 1, 1), "aten.mm": ("op", 3, 3), "aten.batch_norm": ("op", 1, 2),
        "aten.mul": ("op", 1, 1), "aten.sigmoid": ("op", 1, 1), "aten.neg": ("op", 1, 1), "aten.tanh": ("op", 1, 1),
    }  # fmt: skip
    norm = row(found, "aten.batch_norm")
    assert norm.names == (["cudnn::bn_fw_tr_1C11"], ["MIOpenBatchNormApply", "MIOpenBatchNormStats"])
    assert norm.device_us == (6.0, 9.0)
    assert norm.ratio == 1.5
    check_sums(found, *pair)


def test_by_kernel_ops_are_told_apart_by_their_shapes(pair: tuple[Audit, Audit]) -> None:
    found = table(*pair, "kernel")
    products = {r.shapes: r.device_us for r in found.rows if r.op == "aten.mm"}
    assert products == {
        "[8, 64], [64, 64]": (20.0, 20.0), "[8, 64], [64, 128]": (30.0, 30.0), "[8, 128], [128, 100]": (25.0, 25.0)
    }  # fmt: skip
    assert {r.paired_by for r in found.rows} == {"shapes"}
    check_sums(found, *pair)


def test_findings_of_one_model_on_two_devices_are_the_same(pair: tuple[Audit, Audit]) -> None:
    found = compare(*(snapshot_of(audit.document) for audit in pair))
    # a batch norm is two kernels on the other, and stays two
    assert {change.rule: change.change for change in found.findings} == {"FUS209": "more", "FUS301": "same"}
    assert any("2 steps before, 3 steps after" in remark for remark in found.remarks)


def test_what_has_no_op_of_its_name_goes_by_its_family_or_alone(tmp_path: Path) -> None:
    # GIVEN an op before whose work another op of its family does after, and a collective that only one run has
    sides = (
        [Made("aten::erf", [[4, 4]], [("erf", 5.0)])],
        [Made("aten::exp", [[4, 4]], [("exp", 7.0)]), Made("c10d::allreduce_", [[4, 4]], [("ncclDevKernel", 90.0)])],
    )
    before, after = (audited(traced("cuda", 2, extra), tmp_path, f"{i}.json") for i, extra in enumerate(sides))

    # THEN they stand in one row, and the collective in one of its own
    found = table(before, after, "op")
    (family,) = [r for r in found.rows if r.paired_by == "family"]
    assert (family.op, family.family, family.device_us) == ("", "elementwise", (5.0, 7.0))
    assert family.names == (["erf"], ["exp"])
    (alone,) = [r for r in found.rows if not r.paired_by]
    assert (alone.family, alone.kernels, alone.ratio) == ("collective", (0, 1), None)
    check_sums(found, before, after)


@pytest.mark.parametrize("by", ["op", "kernel"])
def test_a_replayed_graph_is_paired_with_the_ops_it_was_captured_from(tmp_path: Path, by: By) -> None:
    # GIVEN a model run op by op, and the same kernels replayed from a graph, but for one that is fused there
    eager = audited(traced("cuda", 2), tmp_path, "eager.json")
    kernels = [kernel for op in model() for kernel in op.kernels if op.name not in ("aten::sigmoid", "aten::neg")]
    trace = TraceMaker()
    for number in range(3):
        begin = trace.now
        trace.launch([*kernels, ("fused_sigmoid_neg", 4.5)])
        trace.now += 300.0
        trace.mark(f"ProfilerStep#{number}", begin)
    replayed = audited(trace, tmp_path, "replayed.json")

    # WHEN they are compared, in either direction
    for before, after in ((eager, replayed), (replayed, eager)):
        found = table(before, after, by)

        # THEN replayed kernels stand beside their ops, and what is fused alone
        paired = {r.op: r.kernels for r in found.rows if r.paired_by == "kernel"}
        expected = {"aten.embedding", "aten.mm", "aten.batch_norm", "aten.mul", "aten.tanh"}
        assert set(paired) == expected
        assert paired["aten.mm"] == (3, 3)
        assert sorted(r.op for r in found.rows if not r.paired_by) == ["", "aten.neg", "aten.sigmoid"]
        check_sums(found, before, after)


def test_parts_of_steps_count_in_neither_run(tmp_path: Path) -> None:
    # GIVEN a window that opens in mid-step, with kernels launched before it
    trace = TraceMaker()
    trace.early([("early", 500.0)], correlation=77_777, ready=1000.0)
    for number in range(3):
        begin = trace.now
        trace.ops(model()[7:] if number == 0 else model())
        trace.mark(f"ProfilerStep#{number}", begin)
    trace.ops([Made("aten::mul", [[8, 64], [8, 64]], [("late", 400.0)])])
    before = audited(trace, tmp_path, "cut.json")
    after = audited(traced("cuda", 2), tmp_path, "whole.json")

    # THEN only whole steps are compared, and they are the same
    found = table(before, after, "op")
    assert all(r.kernels[0] == r.kernels[1] and r.device_us[0] == pytest.approx(r.device_us[1]) for r in found.rows)
    check_sums(found, before, after)


@pytest.mark.parametrize(
    ("names", "same"),
    [
        (("aten.cudnn_batch_norm", "aten.miopen_batch_norm", "aten._native_batch_norm_legit"), "aten.batch_norm"),
        (("aten.cudnn_convolution", "aten.miopen_convolution", "aten._convolution"), "aten.convolution"),
        (("aten.convolution_backward", "aten.cudnn_convolution_backward"), "aten.convolution_backward"),
        (("aten._scaled_dot_product_flash_attention", "aten._efficient_attention_forward",
          "aten._scaled_dot_product_flash_attention_for_cpu"), "aten.scaled_dot_product_attention"),
        (("aten._scaled_dot_product_cudnn_attention_backward", "aten._flash_attention_backward"),
         "aten.scaled_dot_product_attention_backward"),
        (("triton.triton_poi_fused_relu_3", "triton.triton_poi_fused_relu_17"), "triton.triton_poi_fused_relu"),
        (("aten.add", "aten.add_"), "aten.add"),
        (("aten._softmax",), "aten._softmax"),
    ],
)  # fmt: skip
def test_one_op_has_many_names(names: tuple[str, ...], same: str) -> None:
    assert {portable_name(name) for name in names} == {same}


def test_the_command_compares_traces_stored_runs_and_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a trace on disk, and one of another device that was imported
    monkeypatch.chdir(tmp_path)
    before = traced("cuda", 2).write(tmp_path, "cuda.json")
    after = traced("hip", 3).write(tmp_path, "hip.json")
    db = ["--db", str(tmp_path / "db")]
    assert main(["import", str(after), "--name", "amd", *db]) == 0
    capsys.readouterr()

    # WHEN they are compared by op, THEN text, Markdown and JSON say the same
    told = {}
    for fmt in ("text", "markdown", "json"):
        assert main(["diff", str(before), "amd", "--by", "op", "--format", fmt, *db]) == 0
        told[fmt] = capsys.readouterr().out
    (norm,) = [r for r in json.loads(told["json"])["kernels"]["rows"] if r["op"] == "aten.batch_norm"]
    assert (norm["kernels"], norm["device_us"], norm["ratio"]) == ([1.0, 2.0], [6.0, 9.0], 1.5)
    line = next(line for line in told["text"].splitlines() if "aten.batch_norm" in line)
    assert line.split() == ["aten.batch_norm", "1", "2", "6.00", "µs", "9.00", "µs", "×1.50", "op"]
    assert "| `aten.batch_norm` | 1 | 2 | 6.00 µs | 9.00 µs | ×1.50 | op |" in told["markdown"]
    total = next(line for line in told["text"].splitlines() if line.split()[:1] == ["all"])
    assert total.split()[1:3] == ["9", "10"]

    # AND by kernel the names are told
    assert main(["diff", str(before), str(after), "--by", "kernel"]) == 0
    assert "before cudnn::bn_fw_tr_1C11" in capsys.readouterr().out


def test_what_holds_no_kernels_is_refused_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = traced("cuda", 2).write(tmp_path)
    db = ["--db", str(tmp_path / "db")]
    assert main(["import", str(trace), "--format", "json", "-o", "audit.json", *db]) == 0
    capsys.readouterr()
    assert main(["diff", "audit.json", str(trace), "--by", "op"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == (
        "error: audit.json holds no kernels; give a stored run or a trace, or compare with --by finding"
    )  # fmt: skip
    assert main(["diff", "audit.json", str(trace)]) == 0
    assert "the same" in capsys.readouterr().out


def of_shared(name: str) -> Audit:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return audit_trace(path, config=Config())


def test_ranks_of_one_job_are_the_same_program() -> None:
    # GIVEN two of eight ranks of a recommendation model
    one, other = (of_shared(f"dlrm_8_ranks/rank{rank}.json.gz") for rank in (0, 5))

    # THEN every op is in both with as many kernels, and collectives tell how long a rank waits for the others
    found = table(one, other, "op")
    assert all(r.kernels[0] == r.kernels[1] and r.paired_by for r in found.rows)
    assert found.rows[0].family == "collective"
    check_sums(found, one, other)
    changes = compare(*(snapshot_of(audit.document) for audit in (one, other))).findings
    assert changes
    assert {change.change for change in changes} == {"same"}


@pytest.mark.parametrize("by", ["op", "kernel"])
def test_a_training_on_two_vendors_devices(by: By) -> None:
    # GIVEN a ResNet on V100 and one on MI300X, five steps and three, the latter with kernels of an earlier step
    names = ("v100_resnet_ddp_ns_timestamps.json.gz", "mi300x_resnet_ddp_training.json.gz")
    nvidia, amd = (of_shared(name) for name in names)
    found = table(nvidia, amd, by)

    # THEN totals are those of a whole step, and the large ops stand side by side
    assert found.total.kernels == (870, 746)
    check_sums(found, nvidia, amd)
    norms = [r for r in found.rows if r.op == "aten.batch_norm" and r.phase == "forward"]
    assert sum(r.kernels[0] for r in norms) == 53
    assert sum(r.kernels[1] for r in norms) == 60
    assert norms[0].paired_by == "op"


@pytest.mark.parametrize("by", ["op", "kernel"])
def test_an_eager_and_a_fused_server_on_two_vendors_devices(by: By) -> None:
    # GIVEN eager Qwen on H100, whose window holds the end of an earlier step, and Qwen3 under SGLang on MI300X
    names = ("h100_qwen1.5-0.5b_eager.json.gz", "mi300x_sglang_qwen3-8b_already_fused.json.gz")
    eager, fused = (of_shared(name) for name in names)

    # THEN the fused kernels stand alone, and what the window missed the launch of is not counted
    found = table(eager, fused, by)
    assert found.total.kernels == (1029, 527)
    check_sums(found, eager, fused)
    alone = {r.op for r in found.rows if not r.paired_by and r.kernels[1]}
    assert {"sgl_kernel.silu_and_mul", "sgl_kernel.rotary_embedding"} <= alone
