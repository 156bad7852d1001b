"""Rules that are no pattern: optimizers, sets of tensors, launches that the device waits for, copies and casts."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.audit import audit_graph
from auditor.devices.device import Device
from auditor.document import Document
from auditor.engine.claims import Claims, claim
from auditor.engine.detect import NOTHING_HERE
from auditor.engine.launch_count import multi_tensor_launches
from auditor.engine.multi_tensor import FOREACH, foreach_name
from auditor.engine.rules import Rule, load_rules
from auditor.engine.whynot import explain
from auditor.graph.model import HostCall, Kernel, OpGraph
from auditor.graph.ssa import parse, print_graph
from auditor.graph.tables import from_tables, to_tables
from auditor.report import render

GPU = Device(name="a GPU", kind="cuda", peak_gbps=1000.0, min_kernel_us=2.0)
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


def rules() -> list[Rule]:
    return load_rules()


def found(claims: Claims) -> list[tuple[str, int, int]]:
    """Rule, kernels and what would remain, of each site."""
    return [(site.rule.id, site.region.kernels, site.kernels_after) for site in claims.sites]


def audit(graph: OpGraph, device: Device = GPU) -> Document:
    return audit_graph(graph, rules=rules(), device=device).document


def parameters(count: int, device: str = "cuda:0", dtype: str = "f32") -> str:
    lines = [f'device("{device}")'] if device else []
    return "\n".join([*lines, *(f"p{i}: {dtype}[64]\ng{i}: {dtype}[64]" for i in range(count))])


def each(text: str, count: int) -> str:
    return "\n".join(text.format(i=i) for i in range(count))


def launched(count: int, host_us: float, kernel_us: float, then: str = "") -> OpGraph:
    """A chain of products, each launched after the other; nothing but FUS701 finds anything in it."""
    lines = [
        'device("cuda:0")',
        "x: f32[64, 64]",
        "w: f32[64, 64]",
        f"pace({host_us}, {kernel_us})",
        "y = aten.mm(x, w)",
    ]
    return parse("\n".join([*lines, *["y = aten.mm(y, w)"] * (count - 1), then]))


# ── how many launches a list of tensors takes ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "lists", "launches"),
    [
        ([], 2, 0),
        ([64], 2, 1),
        ([64] * 64, 2, 1),
        ([64] * 65, 2, 2),
        ([0] * 404, 2, 7),  # sizes that are not known: as few as there can be
        ([65536 * 320], 1, 1),
        ([65536 * 320 + 1], 1, 2),  # the blocks of one launch
        ([64] * 31, 9, 2),  # more lists than the table has
    ],
)
def test_launches_follow_from_tensors_and_their_chunks(sizes: list[int], lists: int, launches: int) -> None:
    assert multi_tensor_launches(sizes, lists) == launches


# ── optimizers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_more_specific_rule_takes_the_kernels_of_an_optimizer() -> None:
    # GIVEN a step that is a chain of two for each parameter, and kernels of one op over independent tensors
    step = each("aten.mul_(p{i}, 0.9)\naten.add_(p{i}, g{i})", 12)
    text = f'{parameters(12)}\nphase("optimizer", "SGD.step")\n{step}'

    # THEN it is one finding
    assert found(claim(parse(text), rules())) == [("FUS801", 24, 1)]


def test_a_device_takes_more_launches_than_a_cpu_and_both_are_one_finding() -> None:
    step = 'phase("optimizer", "AdamW.step")\n' + each("aten.addcdiv_(p{i}, g{i}, g{i})", 80)
    assert found(claim(parse(f"{parameters(80)}\n{step}"), rules())) == [("FUS801", 80, 3 + 1)]
    assert found(claim(parse(f"{parameters(80, '')}\n{step}"), rules())) == [("FUS801", 80, 2)]


def test_counters_of_steps_do_not_keep_an_optimizer_apart() -> None:
    # GIVEN Adam as it is written: the host reads a counter that the step counts up
    text = "\n".join(
        f"aten.add_(c{i}, 1)\naten.lerp_(p{i}, g{i}, 0.1)\naten._local_scalar_dense(c{i})\n"
        f"aten.addcdiv_(p{i}, g{i}, g{i})"
        for i in range(8)
    )
    counters = each("c{i} = aten.amax(g{i})", 8)
    text = f'{parameters(8, "")}\n{counters}\nphase("optimizer", "Adam.step")\n{text}'
    assert ("FUS801", 16, 2) in found(claim(parse(text), rules()))


def test_two_optimizers_are_two_findings_and_their_steps_sites() -> None:
    one = 'phase("optimizer", "SGD.step")\n' + each("aten.add_(p{i}, g{i})", 8)
    other = 'phase("optimizer", "RMSprop.step")\n' + each("aten.mul_(p{i}, g{i})", 8)
    forward = 'phase("forward")\nloss = aten.sum(p0)'
    document = audit(parse("\n".join([parameters(8), one, other, forward, one.replace("loss", "")])))
    steps = {f.variant["optimizer"]: (f.sites, f.kernels, f.instead) for f in document.findings if f.rule == "FUS801"}
    assert steps == {"SGD": (2, 16, "SGD(…, fused=True)"), "RMSprop": (1, 8, "RMSprop(…, foreach=True)")}


def test_an_optimizer_of_ones_own_is_not_told_of_arguments_that_it_may_not_have() -> None:
    [finding] = audit(
        parse(f'{parameters(8)}\nphase("optimizer", "Lion.step")\n' + each("aten.sign_(p{i})", 8))
    ).findings
    assert finding.instead == "torch._foreach_ ops on lists in Lion.step, or torch.compile around it"


@pytest.mark.parametrize("name", ["LBFGS", "SparseAdam", "Muon"])
def test_optimizers_without_another_form_are_left_alone(name: str) -> None:
    text = f'{parameters(8)}\nphase("optimizer", "{name}.step")\n' + each("aten.add_(p{i}, g{i})", 8)
    assert found(claim(parse(text), rules())) == []


def test_parameters_on_two_devices_are_two_loops() -> None:
    graph = parse(f'{parameters(16)}\nphase("optimizer", "SGD.step")\n' + each("aten.add_(p{i}, g{i})", 16))
    for op in graph.ops:
        op.kernels = (Kernel(op.name, 0.0, 0.0, device=op.index % 2),)
    assert found(claim(graph, rules())) == [("FUS801", 8, 1), ("FUS801", 8, 1)]


def test_what_moves_the_same_bytes_saves_launches_only() -> None:
    graph = parse(f'{parameters(8)}\nphase("optimizer", "NAdam.step")\n' + each("aten.add_(p{i}, g{i})", 8))
    for op in graph.ops:
        op.kernels = (Kernel(op.name, 10.0 * op.index, 5.0),)
    [finding] = audit(graph).findings
    assert finding.bytes_now == finding.bytes_fused > 0
    assert finding.saving.ideal_us == finding.saving.likely_us == pytest.approx(7 / 8 * 8 * GPU.min_kernel_us)


# ── many tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_op_has_a_form_for_lists() -> None:
    import torch

    for op in FOREACH:
        assert hasattr(torch, foreach_name(op)) or hasattr(torch, foreach_name(f"{op}_")), op
    graph = parse(f"{parameters(8)}\n" + each("aten.mul_(g{i}, 0.5)", 8))
    assert [f.instead for f in audit(graph).findings] == ["torch._foreach_mul_ on lists of tensors"]


def test_pairs_along_the_dataflow_win() -> None:
    # GIVEN thirteen clamps, then thirteen kernels of which each reads one of them
    text = each("c{i} = aten.clamp_min(p{i}, 0.0)", 13) + "\n" + each("n{i} = aten.nan_to_num(c{i})", 13)
    assert found(claim(parse(f"{parameters(13)}\n{text}"), rules())) == [("FUS101", 2, 1)] * 13


def test_a_collective_for_each_bucket_cuts_the_set() -> None:
    # GIVEN gradients that are scaled for two buckets, and the second scale factor comes out of the first reduction
    def bucket(first: int, factor: str) -> list[str]:
        scaled = [f"s{i} = aten.mul(g{i}, {factor})" for i in range(first, first + 8)]
        joined = f"b{first} = aten.cat([{', '.join(f's{i}' for i in range(first, first + 8))}])"
        scope = 'phase("backward", "AccumulateGrad")'
        return [scope, *scaled, 'phase("backward")', joined, f"c10d.allreduce_(b{first}, mutates=[b{first}])"]

    text = "\n".join([parameters(16), *bucket(0, "0.5"), "n = aten.amax(b0)", *bucket(8, "n")])
    sets = [site for site in found(claim(parse(text), rules())) if site[0] == "FUS102"]
    assert sets == [("FUS102", 8, 1), ("FUS102", 8, 1)]


def test_a_gradient_that_is_complete_joins_no_chain() -> None:
    text = (
        f'{parameters(1)}\nphase("backward")\nd = aten.neg(g0)\nphase("backward", "AccumulateGrad")\naten.add_(p0, d)'
    )
    assert found(claim(parse(text), rules())) == []
    assert found(claim(parse(text.replace(', "AccumulateGrad"', "")), rules())) == [("FUS101", 2, 1)]


def test_without_shapes_a_row_of_kernels_is_no_set() -> None:
    graph = parse(f"{parameters(10)}\n" + each("aten.mul_(g{i}, 0.5)", 10))
    assert found(claim(graph, rules())) == [("FUS102", 10, 1)]
    for op in graph.ops:
        op.outputs = op.args = op.mutates = ()
    assert found(claim(graph, rules())) == []


# ── launches that the device waits for ───────────────────────────────────────────────────────────────────────────────


def test_a_stretch_saves_wall_time_and_claims_no_kernel() -> None:
    document = audit(launched(40, 50, 2))
    [finding] = document.findings
    assert (finding.rule, finding.kernels, finding.kernels_after, finding.device_us) == ("FUS701", 0, 0, 0.0)
    # from the first kernel to the last end 39 × 50 + 2 µs pass, for 39 × 48 of which it waits; 39 gaps and 10 µs remain
    assert finding.saving.step_us == pytest.approx(39 * 48 - 39 - 10)
    assert document.totals.unfused_kernels == document.totals.avoidable_kernels == 0
    assert document.totals.saving.likely_us == 0
    assert document.totals.saving.step_us == pytest.approx(finding.saving.step_us)


@pytest.mark.parametrize(
    "stop",
    [
        "aten._local_scalar_dense(aten.amax(y))",
        "z = aten.nonzero(y)",
        "c10d.allreduce_(y, mutates=[y])",
    ],
)
def test_what_a_graph_cannot_hold_ends_a_stretch(stop: str) -> None:
    again = "\n".join([stop, *["y = aten.mm(y, w)"] * 30])
    try:
        graph = launched(30, 50, 2, again)
    except Exception:
        graph = launched(30, 50, 2, again.replace("z =", "z: i64[4096, 2] ="))
    sites = [site for site in claim(graph, rules()).sites if site.rule.id == "FUS701"]
    assert len(sites) == 2
    assert "ends at" in (sites[0].waiting.told if sites[0].waiting else "")


def test_a_copy_from_the_host_and_a_pause_of_it_end_a_stretch() -> None:
    for change in ("copy", "pause", "replay"):
        graph = launched(60, 50, 2)
        middle = graph.ops[30]
        if change == "copy":
            middle.kernels += (Kernel("Memcpy HtoD (Pageable -> Device)", middle.kernels[0].start_us + 3, 1.0),)
        if change == "pause":
            for op in graph.ops[30:]:
                assert op.host is not None
                op.host = HostCall(op.host.start_us + 9000, op.host.dur_us)
                op.kernels = (Kernel(op.name, op.kernels[0].start_us + 9000, 2.0),)
        if change == "replay":
            graph.unlinked.append(Kernel("replayed", middle.kernels[0].start_us - 20, 5.0))
        sites = [site for site in claim(graph, rules()).sites if site.rule.id == "FUS701"]
        assert [site.waiting.kernels for site in sites if site.waiting] in ([30, 30], [30, 29], [30, 31], [31, 29])
        [finding] = [f for f in audit(graph).findings if f.rule == "FUS701"]
        assert finding.sites == 2


def test_loading_data_is_no_launch_cost() -> None:
    # GIVEN kernels that fill their time, and a host that pauses for 5 ms after each 25 of them
    graph = launched(100, 10, 20)
    for op in graph.ops:
        assert op.host is not None
        late = 5000.0 * (op.index // 25)
        op.host = HostCall(op.host.start_us + late, op.host.dur_us)
        op.kernels = (Kernel(op.name, op.kernels[0].start_us + late, 20.0),)
    assert audit(graph).totals.idle_us > 10_000
    assert audit(graph).findings == []


def test_kernels_that_wait_for_another_stream_do_not_wait_for_the_host() -> None:
    graph = launched(40, 5, 2)
    for op in graph.ops:
        op.kernels = (Kernel(op.name, 1000 + 50.0 * op.index, 2.0),)  # long after they were launched
    assert audit(graph).findings == []


def test_what_fusion_takes_whole_leaves_nothing_to_a_graph() -> None:
    text = ['device("cuda:0")', "y: f32[64, 64]", "pace(50, 2)", *["y = aten.tanh(y)"] * 30]
    assert {rule for rule, *_ in found(claim(parse("\n".join(text)), rules()))} == {"FUS101"}


def test_fusion_and_a_graph_do_not_save_the_same_idle_time_twice() -> None:
    text = ['device("cuda:0")', "x: f32[64, 64]", "w: f32[64, 64]", "pace(50, 2)"]
    for _ in range(20):
        text += ["x = aten.mm(x, w)", "x = aten.tanh(x)", "x = aten.neg(x)"]
    document = audit(parse("\n".join(text)))
    totals = document.totals
    assert {f.rule for f in document.findings} >= {"FUS701"}
    assert totals.saving.step_us <= totals.idle_us + totals.saving.likely_us
    assert totals.saving.step_us < sum(f.saving.step_us for f in document.findings)
    assert totals.saving.amdahl_cap >= totals.step_us / (totals.step_us - totals.saving.step_us) - 1e-9


# ── texts ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def everything() -> OpGraph:
    step = 'phase("optimizer", "SGD.step")\n' + each("aten.add_(p{i}, g{i})", 8)
    zero = 'phase("optimizer", "SGD.zero_grad")\n' + each("aten.zero_(g{i})", 8)
    products = "\n".join(["x: f32[64, 64]", "w: f32[64, 64]", "pace(50, 2)", *["x = aten.mm(x, w)"] * 30])
    return parse("\n".join([parameters(8), products, 'phase("backward")', "q = aten.mm(x, w)", step, zero]))


@pytest.mark.parametrize("format_", ["text", "json", "markdown", "html"])
def test_reports_say_what_to_write_instead(format_: str) -> None:
    graph = everything()
    text = render(audit(graph), graph, format_)
    assert "fused=True" in text
    assert "set_to_none=True" in text
    assert "reduce-overhead" in text
    assert "names none yet" not in text


def test_a_report_of_launches_alone_tells_wall_time() -> None:
    graph = launched(40, 50, 2)
    text = render(audit(graph), graph, "text")
    assert "40 kernels in 1.95 ms, for 1.87 ms of which the device waits for launches" in " ".join(text.split())
    assert "times not known" not in text
    assert "step 1.8" in " ".join(text.split())


def test_scopes_survive_text_and_tables() -> None:
    graph = everything()
    scopes = [op.scope for op in graph.ops]
    assert set(scopes) == {"", "SGD.step", "SGD.zero_grad"}
    assert [op.scope for op in parse(print_graph(graph)).ops] == scopes
    tables = to_tables(graph)
    assert [op.scope for op in from_tables(tables).ops] == scopes
    older = tables | {"ops": tables["ops"].drop_columns(["scope"])}
    assert {op.scope for op in from_tables(older).ops} == {""}


def test_why_not_answers_for_what_is_detected() -> None:
    graph = launched(30, 5, 50)
    by_id = {rule.id: rule for rule in rules()}
    for name in ("FUS102", "FUS701", "FUS801", "FUS901", "FUS902"):
        said = explain(graph, by_id[name], "op 3", chosen=rules())
        assert NOTHING_HERE[by_id[name].detect["what"]] in said


# ── traces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared traces is not beside this checkout")
@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        ("h100_bert-small_launch_bound", {("FUS701", ""): (1, 0)}),
        ("mi300x_resnet_ddp_training", {("FUS102", "AccumulateGrad"): (3, 186)}),
        (
            "v100_training_no_shapes",
            {
                ("FUS102", "AccumulateGrad"): (5, 2020),
                ("FUS102", "zero_grad"): (5, 2020),
                ("FUS801", "SGD"): (5, 2020),
            },
        ),
        ("vllm_decode_graph_replay", {}),
        ("mi300x_sglang_qwen3-8b_already_fused", {}),
    ],
)
def test_traces(trace: str, expected: dict[tuple[str, str], tuple[int, int]]) -> None:
    """Kernels as in truth.json; a busy trace, one that waits for data, and one of graphs have no such findings."""
    from auditor.api import load

    ours = {"FUS102", "FUS701", "FUS801", "FUS901", "FUS902"}
    document = load(SHARED / f"{trace}.json.gz").document
    taken = [op for finding in document.findings for place in finding.places for op in place.ops]
    assert len(taken) == len(set(taken))
    found = {
        (f.rule, f.variant.get("where") or f.variant.get("optimizer") or ""): (f.sites, f.kernels)
        for f in document.findings
        if f.rule in ours
    }
    assert found == expected
