"""What the kernels of a graph are: by op, by name where the op says nothing, and what nobody knows."""

from __future__ import annotations

import pytest

from auditor.audit import audit_graph
from auditor.devices.describe import Device
from auditor.document import Document, FamilyTotal, LiveFusion, Totals, Unplaced
from auditor.engine.census import MAX_NAME, MAX_UNPLACED, census
from auditor.engine.fused import FusedNames, made_fused
from auditor.engine.rules import load_rules
from auditor.graph.model import Kernel, Op, OpGraph
from auditor.graph.ssa import parse
from auditor.report import render

RMS = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)"
DEVICE = Device(name="d", kind="cuda", peak_gbps=1000.0)
GEMM = "nvjet_tst_256x96_64x5_2x1_2cta_v_bz_TNT"


def graph_of(*launched: tuple[str, str]) -> OpGraph:
    """A kernel of 10 µs for each op and name; an empty op: a kernel that is not linked."""
    graph = OpGraph()
    for op, name in launched:
        kernel = Kernel(name, 0.0, 10.0)
        if op:
            graph.add(Op(0, op, (), (), kernels=(kernel,)))
        else:
            graph.unlinked.append(kernel)
    return graph


def families(graph: OpGraph) -> dict[str, int]:
    return {each.family: each.kernels for each in census(graph, ()).families}


@pytest.mark.parametrize(
    ("op", "kernel", "family", "bound"),
    [
        # The op decides where it is known: a convolution's transposes are a part of it
        ("aten.convolution", "void cudnn::ops::nchwToNhwcKernel<float>(int)", "copy", False),
        ("aten.mm", GEMM, "gemm", False),
        ("aten.add", "nobody_knows_this", "elementwise", True),
        # A custom op says nothing, nor does no op: the name does
        ("sgl_kernel.fused_add_rmsnorm", RMS, "norm", True),
        ("vllm.rocm_unquantized_gemm", "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT64x64x64", "gemm", False),
        ("", "kernel_unified_attention_2d", "attention", False),
        ("", "triton_poi_fused_add_mul_3", "elementwise", True),
        ("", "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "collective", False),
        ("c10d.allreduce_", "something", "collective", False),
        # Neither op nor name: not called memory-bound, but for an op of ATen's, whose GEMMs are all known
        ("mine.op", "nobody_knows_this", "other", False),
        ("", "nobody_knows_this", "other", False),
        ("aten._brand_new", "nobody_knows_this", "other", True),
        # On a CPU the kernel is the op, and a word in its name is no library's
        ("aten._scaled_dot_product_flash_attention_for_cpu", "aten._scaled_dot_product_flash_attention_for_cpu",
         "attention", False),
        ("aten.gelu", "aten.gelu", "elementwise", True),
    ],
)  # fmt: skip
def test_family_and_memory_bound(op: str, kernel: str, family: str, bound: bool) -> None:
    found = census(graph_of((op, kernel)), ())
    assert found.families == [FamilyTotal(family=family, kernels=1, device_us=10.0)]
    assert (found.memory_bound, found.memory_bound_us) == ((1, 10.0) if bound else (0, 0.0))
    assert found.collectives == (family == "collective")


def test_transfers_are_no_kernels() -> None:
    found = census(graph_of(("aten.to", "Memcpy HtoD (Pinned -> Device)"), ("aten.add", "add"), ("", "Memset")), ())
    assert found.families == [FamilyTotal(family="elementwise", kernels=1, device_us=10.0)]
    assert (found.memory_bound, found.memory_bound_us) == (1, 20.0)  # the copy's time is the op's, as it ever was


def test_live_fusions_tell_who_made_them_and_what_they_do() -> None:
    graph = graph_of(
        ("x.norm", RMS), ("x.norm", RMS), ("", "triton_poi_fused_add_mul_3"), ("aten.mm", GEMM),
        ("fused_replacements.rms_norm", "rms_norm_forward"), ("y.z", "acme_qkv_proj_kernel"),
    )  # fmt: skip
    found = census(graph, load_rules())
    assert found.live == [
        LiveFusion(library="FlashInfer", what="add + RMS norm", kernels=2, device_us=20.0, names=[RMS]),
        LiveFusion(
            library="fused_replacements", what="rms_norm", kernels=1, device_us=10.0, names=["rms_norm_forward"]
        ),
        LiveFusion(what="sibling gemms (FUS501)", kernels=1, device_us=10.0, names=["acme_qkv_proj_kernel"]),
        LiveFusion(
            library="Inductor", what="add + mul", kernels=1, device_us=10.0, names=["triton_poi_fused_add_mul_3"]
        ),
    ]
    assert found.fused == 5


def test_unknown_kernels_are_counted_and_the_longest_are_listed() -> None:
    names = [f"{i:03}_{'x' * 400}" for i in range(MAX_UNPLACED + 5)]
    found = census(graph_of(*(("", name) for name in names), ("", "zz"), ("", "zz")), ())
    assert found.families == [FamilyTotal(family="other", kernels=57, device_us=570.0)]
    assert found.unplaced[0] == Unplaced(name="zz", kernels=2, device_us=20.0)
    assert [each.name for each in found.unplaced[1:]] == [name[:MAX_NAME] for name in names[: MAX_UNPLACED - 1]]


def test_names_of_a_megabyte_that_differ_at_their_end_are_one() -> None:
    found = census(graph_of(("", "k" * 1_000_000 + "a"), ("", "k" * 1_000_000 + "b")), load_rules())
    assert found.unplaced == [Unplaced(name="k" * MAX_NAME, kernels=2, device_us=20.0)]


def test_what_only_can_be_fused_is_not_live() -> None:
    # Names that patterns took for epilogues: a softmax's functor, a type of cuBLAS's parameters
    names = FusedNames(load_rules())
    for name in (
        "void at::native::cunn_SoftMaxForward<8, float, at::native::SoftMaxForwardEpilogue>(int)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, biasType<float>::type>(int)",
        "create_flashinfer_kv_indices_triton",
        "void europe_property_kernel<float>(int)",
    ):
        assert names.fusion("", name) is None
    assert names.fusion("", "void cutlass::Kernel2<LinearCombinationRelu<cutlass::half_t>>(int)") is not None
    assert names.covers("apply_rope_kernel")


CHAIN = "x: f32[64, 64]\na = aten.exp(x)\nb = aten.neg(a)\nc = aten.mul(b, b)\n"


def chain_of(middle: str) -> Document:
    graph = parse(CHAIN)
    for op, name in zip(graph.ops, ("exp_kernel", middle, "mul_kernel"), strict=True):
        op.kernels = (Kernel(name, 0.0, 10.0),)
    return audit_graph(graph, rules=load_rules(), device=DEVICE).document


def test_a_kernel_that_is_fused_is_part_of_no_finding() -> None:
    assert [finding.kernels for finding in chain_of("neg_kernel").findings] == [3]
    fused = chain_of("triton_poi_fused_neg_0")
    assert fused.findings == []
    assert [(each.library, each.kernels) for each in fused.live] == [("Inductor", 1)]
    assert made_fused("aten.neg", "neg_kernel") is None


def document(**changes: object) -> Document:
    fields: dict[str, object] = {
        "totals": Totals(kernels=60, device_us=1000.0, already_fused_kernels=30),
        "families": [
            FamilyTotal(family="norm", kernels=30, device_us=300.0),
            FamilyTotal(family="other", kernels=9, device_us=9.0),
        ],
        "live": [LiveFusion(library="vLLM", what=f"fusion {i}", kernels=3, device_us=30.0) for i in range(10)],
        "unplaced": [Unplaced(name=f"k{i}<script>\x1b[31m|`", kernels=1, device_us=1.0) for i in range(5)],
    }  # fmt: skip
    return Document(**{**fields, **changes})  # type: ignore[arg-type]


def test_reports_show_what_is_live_and_what_nobody_knows() -> None:
    text = render(document(), None, "text")
    assert "fusion is live here: 30 kernels, 300 µs (30 % of the kernel time)" in text
    assert "  vLLM  fusion 7" in text
    assert "  …     2 other fusions             6  60.0 µs" in text
    assert "9 kernels of no known family, 9.00 µs (0.9 % of the kernel time)" in text
    assert "\x1b" not in text
    page = render(document(), None, "html")
    assert "What the kernels are" in page
    assert "k0&lt;script&gt;" in page
    assert "k0<script>" not in page
    comment = render(document(), None, "markdown")
    assert "<summary>fusion is live here: 30 kernels" in comment
    assert comment.count("<script>") == comment.count("| `` k") == 5  # in code spans, where it is text


def test_reports_are_silent_where_there_is_nothing_to_tell() -> None:
    nothing = document(families=[], live=[], unplaced=[])
    for form in ("text", "html", "markdown"):
        assert "fusion is live" not in render(nothing, None, form)
        assert "no known family" not in render(nothing, None, form)


def test_every_line_keeps_to_the_width_of_the_terminal() -> None:
    assert max(map(len, render(document(), None, "text", width=48).split("\n"))) <= 48


def test_families_of_a_trace_add_up() -> None:
    graph = graph_of(("aten.mm", GEMM), ("x.norm", RMS), ("", "who"))
    audit = audit_graph(graph, rules=load_rules(), device=DEVICE)
    assert sum(each.kernels for each in audit.document.families) == audit.kernels == 3
    assert sum(each.device_us for each in audit.document.families) == audit.document.totals.device_us
    assert families(graph) == {"gemm": 1, "norm": 1, "other": 1}
