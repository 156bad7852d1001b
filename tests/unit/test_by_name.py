"""Sites among kernels without ops: by the names of their kernels, where these mean nothing else in the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.api import load
from auditor.audit import audit_graph
from auditor.config import Config, Suppression
from auditor.devices.describe import Device
from auditor.document import Document, Run
from auditor.engine.rules import load_rules
from auditor.graph.model import Kernel, OpGraph
from auditor.graph.ssa import parse
from auditor.report import facts, perfetto, render
from auditor.report.waterfall import split

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
DEVICE = Device(name="test device", kind="cuda", peak_gbps=100.0)

LAYER = """
module("layers.{i}.mlp", "MLP")
g{i} = aten.mm(x{i}, w)
a{i} = aten.silu(g{i})
u{i} = aten.mm(x{i}, v)
y{i} = aten.mul(a{i}, u{i})
x{j} = aten.mm(y{i}, d)
"""
"""A gate whose two kernels have a GEMM between them."""

HEAD = "x0: bf16[64, 256]\nw: bf16[256, 512]\nv: bf16[256, 512]\nd: bf16[512, 256]\n"
NAMES = ("gemm_a", "silu_k", "gemm_a", "mul_k", "gemm_b")


def model(layers: int = 2, more: str = "") -> OpGraph:
    text = HEAD + "".join(LAYER.format(i=i, j=i + 1) for i in range(layers)) + more
    graph = parse(text)
    for op in graph.ops:
        name = {"aten.silu": "silu_k", "aten.mul": "mul_k"}.get(op.name, NAMES[op.index % 5])
        op.kernels = (Kernel(name, 1000.0 + 10 * op.index, 5.0),)
    graph.provenance = "inferred"
    return graph


def unlinked(*names: str, at: float = 0.0, stream: int = 0) -> list[Kernel]:
    return [Kernel(name, at + 10 * i, 5.0, stream) for i, name in enumerate(names)]


def audited(graph: OpGraph, source: str = "trace") -> Document:
    run = Run(source=source)
    return audit_graph(graph, rules=[r for r in load_rules() if r.id == "FUS206"], device=DEVICE, run=run).document


def by_name(document: Document) -> list[tuple[str, int, int]]:
    return [(f.rule, f.sites, f.kernels) for f in document.findings if not f.bytes_now]


def test_the_same_names_in_the_same_order_are_a_site() -> None:
    graph = model()
    graph.unlinked = unlinked(*NAMES, *NAMES, "silu_k", "gemm_a")
    document = audited(graph)
    linked, named = document.findings
    assert (linked.sites, linked.kernels, linked.bytes_now > 0) == (2, 4, True)
    assert (named.rule, named.sites, named.kernels, named.kernels_after) == ("FUS206", 2, 4, 2)
    assert named.device_us == 20.0  # the GEMMs between are no part of it
    assert (named.provenance, named.bytes_fused, named.saving.likely_us, named.saving.step_us) == ("inferred", 0, 0, 0)
    assert named.module_class == "MLP"
    assert [place.ops for place in named.places] == [[], []]
    assert "as at 2 linked sites" in named.places[0].formula
    assert named.fingerprint != linked.fingerprint
    totals = document.totals
    assert (totals.unfused_kernels, totals.avoidable_kernels) == (8, 4)
    assert totals.saving.likely_us == linked.saving.likely_us
    assert "2 sites of 4 kernels that no op is known for" in document.run.notes[-1]


def test_a_recorded_run_is_left_alone() -> None:
    # Its kernels without ops are graph replays of sites that were recorded too, and `fix` needs ops
    graph = model()
    graph.unlinked = unlinked(*NAMES)
    assert by_name(audited(graph, "profile")) == []


@pytest.mark.parametrize(
    "names",
    [
        ("silu_k", "gemm_b", "mul_k"),  # another kernel between
        ("silu_k", "mul_k"),
        ("mul_k", "gemm_a", "silu_k"),
        ("silu_k", "gemm_a"),  # cut by the window
        ("silu_k", "gemm_a", "mul_k2"),
    ],
)
def test_any_other_order_is_none(names: tuple[str, ...]) -> None:
    graph = model()
    graph.unlinked = unlinked(*names)
    assert by_name(audited(graph)) == []


def test_names_of_which_one_linked_run_is_no_site_say_nothing() -> None:
    # The same three names, but the silu's result is read twice: no site
    graph = model(
        more="h = aten.mm(x2, w)\ns = aten.silu(h)\nk = aten.mm(x2, v)\nm = aten.mul(k, k)\nn = aten.mm(s, d)\n"
    )
    graph.unlinked = unlinked(*NAMES)
    for op, name in zip(graph.ops[-5:], NAMES, strict=True):
        op.kernels = (Kernel(name, op.kernels[0].start_us, 5.0),)
    assert sum(f.sites for f in audited(graph).findings) == 2
    assert by_name(audited(graph)) == []


def test_one_linked_site_may_be_a_coincidence() -> None:
    graph = model(layers=1)
    graph.unlinked = unlinked(*NAMES)
    assert by_name(audited(graph)) == []


def test_kernels_of_two_streams_are_two_orders() -> None:
    graph = model()
    graph.unlinked = [*unlinked("silu_k", "mul_k"), *unlinked("gemm_a", at=5.0, stream=7)]
    assert by_name(audited(graph)) == []
    graph.unlinked = [*unlinked(*NAMES), *unlinked("elsewhere", "elsewhere", at=15.0, stream=7)]
    assert by_name(audited(graph)) == [("FUS206", 1, 2)]


def test_a_linked_kernel_in_the_run_is_no_part_of_it() -> None:
    graph = model()
    graph.unlinked = [*unlinked("silu_k", at=980.0), *unlinked("gemm_a", at=990.0)]
    # Of the kernels that follow, the first is linked: silu, gemm | gemm, silu, …
    assert by_name(audited(graph)) == []


def test_transfers_between_change_nothing() -> None:
    graph = model()
    graph.unlinked = [*unlinked(*NAMES), Kernel("Memcpy HtoD (Pinned -> Device)", 15.0, 1.0)]
    assert by_name(audited(graph)) == [("FUS206", 1, 2)]


def test_a_kernel_is_in_one_site_only() -> None:
    # silu, gemm, mul three times over: each run of them once
    graph = model()
    graph.unlinked = unlinked(*(["silu_k", "gemm_a", "mul_k"] * 3))
    document = audited(graph)
    assert by_name(document) == [("FUS206", 3, 6)]
    kernels = [f.device_us for f in document.findings if not f.bytes_now]
    assert sum(kernels) == 30.0 <= sum(k.dur_us for k in graph.unlinked)


def test_suppressed_sites_are_no_signature() -> None:
    graph = model()
    graph.unlinked = unlinked(*NAMES)
    config = Config(suppress=[Suppression(rule="FUS206", modules="*", reason="kept for export")])
    document = audit_graph(graph, rules=load_rules(), device=DEVICE, config=config, run=Run(source="trace")).document
    assert [f for f in document.findings if f.rule == "FUS206"] == []


def test_reports_tell_what_such_a_finding_stands_on() -> None:
    graph = model()
    graph.unlinked = unlinked(*NAMES)
    document = audited(graph)
    text = render(document, graph, "text")
    assert "inferred from kernel names" in text
    assert "unknown" in text
    assert "10.0 µs now; without shapes nobody knows what it saves" in text
    for form in ("html", "markdown", "json"):
        assert "FUS206" in render(document, graph, form)
    assert facts.NO_OPS in render(document, graph, "html")
    parts = split(document, graph)
    assert parts is not None


def test_the_export_marks_the_kernels_of_such_a_site() -> None:
    graph = model()
    graph.device_kind = "cuda"
    graph.unlinked = unlinked(*NAMES)
    made = list(perfetto.events(audited(graph), graph))

    # The site's own two kernels are marked, the GEMM between them is not
    marked = [e for e in made if e["ph"] == "X" and e["cat"] == "finding" and e["ts"] < 1000]
    assert [(e["ts"], e["dur"]) for e in marked] == [(10.0, 25.0), (10.0, 5.0), (30.0, 5.0)]
    args = marked[0]["args"]
    assert args["saving"] == facts.NO_SHAPES
    assert not args.keys() & {"bytes_now", "bytes_fused", "likely_saving_us", "step_saving_us"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/traces here")
def test_the_tail_of_the_step_before_the_window() -> None:
    # truth.json: 21 add + RMS norms of 9 kernels, 20 rotary embeddings of 5, 11 silu · mul of 2, a GEMM in their middle
    audit = load(SHARED / "h100_qwen1.5-0.5b_eager.json.gz", config=Config())
    named = {(f.name, f.sites, f.kernels) for f in audit.findings if not f.bytes_now and f.family != "horizontal"}
    assert named == {
        ("unfused-add-rms-norm", 21, 189),
        ("unfused-rotary-embedding", 20, 120),
        ("unfused-gated-activation", 11, 22),
    }
    assert {f.provenance for f in audit.findings} == {"inferred"}
    assert sum(f.device_us for f in audit.findings) < audit.document.totals.device_us
