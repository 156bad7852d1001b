"""Traces without shapes: chains by the order of kernels and the names of ops, cut where order alone would mislead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from auditor.api import load
from auditor.audit import audit_graph
from auditor.config import Config, Suppression
from auditor.devices.describe import Device
from auditor.document import Document, Run
from auditor.engine.rules import load_rules
from auditor.graph.model import ACCUMULATE, Kernel, Op, OpGraph, Phase, StepSpan, StepSpans
from auditor.kernels.columns import goes_down_columns
from auditor.report import facts, render

RULES = load_rules()
DEVICE = Device(name="test device", kind="cuda", peak_gbps=100.0)

DENSE = "void at::native::vectorized_elementwise_kernel<4, at::native::{}Functor<float>, std::array<char*, 3> >(int)"
SPREAD = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl<at::native::{}Functor> >(int)"
ROWS = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)"
COLUMNS = "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<float> >(at::native::ReduceOp<float>)"


def graph_of(ops: Sequence[str], phase: Phase = "forward", steps: int = 0) -> OpGraph:
    """Ops by name, each with one kernel: of ``mul:spread`` a broadcast one, of ``sum:columns`` one down columns."""
    graph = OpGraph(provenance="inferred", device_kind="cuda")
    for i, word in enumerate(ops):
        name, _, walk = word.partition(":")
        kernel = {"columns": COLUMNS, "rows": ROWS, "spread": SPREAD.format(name)}.get(walk, DENSE.format(name))
        scope = ACCUMULATE if walk == "weight" else ""
        launched = () if name == "_local_scalar_dense" else (Kernel(kernel, 10.0 * i, 5.0, 7),)
        graph.add(Op(0, f"aten.{name}", (), (), kernels=launched, phase=phase, scope=scope))
    graph.steps = StepSpans("profiler", "ProfilerStep", tuple(StepSpan(str(i), 0.0, 1.0) for i in range(steps)))
    return graph


def audited(graph: OpGraph, config: Config | None = None) -> Document:
    return audit_graph(graph, rules=RULES, device=DEVICE, run=Run(source="trace"), config=config).document


def sites(graph: OpGraph) -> list[tuple[str, str]]:
    """Rule and ops of each site, in order."""
    found = [(place.ops[0], f.rule, place.ops) for f in audited(graph).findings for place in f.places]
    return [(rule, " ".join(graph.ops[i].name[5:] for i in ops)) for _, rule, ops in sorted(found)]


LAYER_NORM = "var:rows sum:rows div add rsqrt sub:spread mul:spread mul:spread add:spread"
RMS_NORM = "pow mean:rows add rsqrt mul:spread mul:spread"
ROTATION = "mul:spread neg cat mul:spread add"


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (f"addmm {LAYER_NORM}", [("FUS203", "var sum div add rsqrt sub mul mul add")]),
        (f"addmm {LAYER_NORM} sigmoid mul", [("FUS101", "var sum div add rsqrt sub mul mul add sigmoid mul")]),
        (f"mm add {RMS_NORM}", [("FUS202", "add pow mean add rsqrt mul mul")]),
        (f"mm {ROTATION} {ROTATION}", [("FUS207", "mul neg cat mul add")] * 2),
        ("bmm add _softmax bmm", [("FUS601", "bmm add _softmax bmm")]),
        ("addmm relu", [("FUS301", "addmm relu")]),
        ("mm silu mm mul", [("FUS206", "silu mul")]),
        ("convolution native_batch_norm add_ relu_", [("FUS209", "native_batch_norm add_ relu_")]),
        ("mm add tanh _to_copy _to_copy", [("FUS101", "add tanh")]),  # the casts may be of the next GEMM's weight
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_order_that_repeats_is_a_site(layer: str, expected: list[tuple[str, str]]) -> None:
    # GIVEN a trace without shapes of two such layers WHEN it is audited THEN each is found, as one site
    assert sites(graph_of([*layer.split(), "mm", *layer.split(), "mm"])) == expected * 2


@pytest.mark.parametrize(
    "layer",
    [
        "mm tanh",  # of one kernel only, after a GEMM whose shape might be another: an epilogue, checked above
        "mm mul mul mm",  # of two tensors, by one kernel
        "mm clamp clamp nan_to_num nan_to_num",  # two lists
        "mm mul eq",  # a question about another tensor
        "mm add clone",  # a copy of whatever the next GEMM needs
        "mm sum:columns mul",  # complete only after its kernel
        "mm add _local_scalar_dense tanh",
        "mm add embedding tanh",
        "addmm gelu addmm mul",  # two layers and a scale
    ],
)
def test_what_an_order_does_not_tell_is_no_chain(layer: str) -> None:
    found = sites(graph_of(layer.split() * 3))
    assert [rule for rule, _ in found if rule != "FUS301"] == []


def test_backward_orders() -> None:
    # GIVEN two products of one gradient, sums down columns, and gradients of weights added up in between
    swish = "mul mul:spread sigmoid_backward sum:columns sum:columns add_:weight"
    relu = "add add_:weight threshold_backward native_batch_norm_backward add_:weight convolution_backward"
    graph = graph_of([*f"mm {swish} mm {relu}".split() * 2], "backward")

    # WHEN it is audited THEN weights' gradients part nothing, and what follows a sum of columns is another chain
    assert sites(graph) == [
        ("FUS101", "mul mul sigmoid_backward sum sum"),
        ("FUS209", "add threshold_backward native_batch_norm_backward"),
    ] * 2  # fmt: skip


def test_what_a_checkpoint_computes_again_is_no_gradient() -> None:
    layer = "convolution native_batch_norm relu_ threshold_backward native_batch_norm_backward convolution_backward"
    found = sites(graph_of(layer.split() * 2, "backward"))
    assert [ops for _, ops in found] == ["native_batch_norm relu_", "threshold_backward native_batch_norm_backward"] * 2


def test_an_order_has_to_stand_twice_in_a_step() -> None:
    # GIVEN two steps with one such place each
    once = audited(graph_of(["mm", "add", "tanh", "mm"] * 2, steps=2))

    # WHEN audited THEN it is refused, and says why; with two places in each step it is a site
    assert [f.rule for f in once.findings] == []
    assert [(r.rule, r.count) for r in once.refused] == [("FUS101", 1), ("FUS101", 1)]
    assert "does not stand twice in a step" in once.refused[0].reason
    assert len(sites(graph_of(["mm", "add", "tanh", "mm"] * 4, steps=2))) == 4

    # AND a norm that is spelled out is no coincidence, nor a part that stands elsewhere
    assert sites(graph_of(f"mm {RMS_NORM} mm".split())) == [("FUS201", "pow mean add rsqrt mul mul")]
    odd = f"mm {LAYER_NORM} mm cat {LAYER_NORM} exp mm {LAYER_NORM} mm"
    assert [ops for _, ops in sites(graph_of(odd.split()))] == [
        LAYER_NORM.replace(":rows", "").replace(":spread", "")
    ] * 3


def test_nothing_is_said_that_the_trace_does_not_carry() -> None:
    # GIVEN a trace without shapes WHEN audited
    graph = graph_of(f"addmm {LAYER_NORM}".split() * 3)
    document = audited(graph)

    # THEN times and kernels are those of the trace, and there are no bytes and no saving
    (finding,) = document.findings
    assert (finding.sites, finding.kernels, finding.kernels_after, finding.device_us) == (3, 27, 3, 135.0)
    assert (finding.provenance, finding.bytes_now, finding.bytes_fused) == ("inferred", 0, 0)
    saving = finding.saving
    assert (saving.ideal_us, saving.likely_us, saving.step_us) == (0, 0, 0)
    assert (document.totals.saving.step_us, document.totals.saving.likely_us) == (0, 0)
    assert facts.by_order(finding)

    # AND it says why, and what to do
    assert "stands 3 times in the trace" in finding.places[0].formula
    assert "below the 45 µs" in finding.places[0].formula
    assert "record with record_shapes=True" in document.run.notes[-1]
    text = render(document, graph, "text")
    assert "without shapes nobody knows what it saves" in text
    assert "inferred from the order of kernels" in text
    assert "memory traffic not known" in text
    assert "0 B" not in text
    for fmt in ("html", "markdown", "json"):
        assert render(document, graph, fmt)


def test_settings_take_sites_away() -> None:
    config = Config(suppress=[Suppression(rule="FUS203", modules="*", reason="known")])
    document = audited(graph_of(f"addmm {LAYER_NORM}".split() * 2), config)
    assert document.findings == []
    assert document.suppressed[0].sites == 2


def test_graphs_with_shapes_are_left_to_their_edges() -> None:
    graph = graph_of(["mm", "add", "tanh", "mm"] * 2)
    graph.value("f32", (4, 4))
    assert audited(graph).findings == []


def test_columns_are_told_by_the_template() -> None:
    mangled = "_ZN2at6native13reduce_kernelILi128ELi4ENS0_8ReduceOpIfEEEEvT1_"
    kernels = (COLUMNS, ROWS, DENSE.format("x"), "", mangled, "reduce_kernel<512u, 2, at::native::ReduceOp<float> >()")
    assert [goes_down_columns(kernel) for kernel in kernels] == [True, False, False, False, False, True]


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.out = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)
        self.norm = torch.nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.norm(x + self.out(torch.relu(self.fc(x))))
        return made


def test_a_recording_without_shapes_finds_what_one_with_shapes_does(tmp_path: Path) -> None:
    # GIVEN one step of a model, recorded with shapes and without
    model, x = torch.nn.Sequential(*(Block() for _ in range(3))), torch.randn(8, 32)
    found = []
    for shapes in (True, False):
        with torch.no_grad(), profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as recorded:
            model(x)
        path = tmp_path / f"{shapes}.json"
        recorded.export_chrome_trace(str(path))

        # WHEN both are audited
        audit = load(path)
        found.append({(f.rule, tuple(f.ops), f.sites, f.kernels) for f in audit.findings if f.rule != "FUS501"})

    # THEN both have the same sites
    assert found[0] == found[1]
    assert {rule for rule, *_ in found[0]} == {"FUS203", "FUS301"}
