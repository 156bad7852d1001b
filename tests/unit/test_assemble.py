"""From claimed sites to findings, totals and refusals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from auditor.devices.describe import Device
from auditor.engine.assemble import Assembled, assemble, home_of
from auditor.engine.claims import claim
from auditor.engine.rules import Rule, load_rules
from auditor.graph.model import Kernel, OpGraph
from auditor.graph.ssa import parse

DEVICE = Device(name="test device", kind="cuda", peak_gbps=100.0)


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def gate(i: int, shape: str = "[64, 512]", line: int = 7, path: str = "model.py", dtype: str = "f32") -> str:
    return f"""\
module("layers.{i}.mlp", "MLP")
source("{path}", {line}, "forward")
g{i}: {dtype}{shape}
u{i}: {dtype}{shape}
a{i} = aten.silu(g{i})
y{i} = aten.mul(a{i}, u{i})
"""


def timed(text: str, dur_us: float = 10.0) -> OpGraph:
    graph = parse(text)
    for op in graph.ops:
        op.kernels = tuple(replace(k, start_us=20.0 * op.index, dur_us=dur_us) for k in op.kernels)
    return graph


def assembled(graph: OpGraph | str) -> Assembled:
    graph = timed(graph) if isinstance(graph, str) else graph
    return assemble(graph, claim(graph, rules()), rules(), DEVICE)


def test_sites_of_one_kind_of_place_are_one_finding_summed_over_their_own_shapes() -> None:
    # GIVEN three layers, one of another size, on other lines of one function
    parts = assembled(gate(0) + gate(1, "[64, 1024]") + gate(2, line=9))
    [finding] = parts.findings
    assert (finding.rule, finding.sites, finding.kernels, finding.kernels_after) == ("FUS206", 3, 6, 3)
    assert finding.modules == ["layers.0.mlp", "layers.1.mlp", "layers.2.mlp"]
    one = 64 * 512 * 4
    assert (finding.bytes_now, finding.bytes_fused) == (5 * one * 4, 3 * one * 4)
    assert [s.bytes_now for s in finding.places] == [5 * one, 10 * one, 5 * one]
    assert finding.device_us == 60.0
    assert finding.source is not None
    assert (finding.source.file, finding.source.line, finding.source.function) == ("model.py", 7, "forward")
    assert finding.ops == ["aten.silu", "aten.mul"]


@pytest.mark.parametrize(
    "other",
    [
        gate(1).replace('"MLP"', '"GatedMLP"'),
        gate(1).replace('"forward"', '"gate"'),
        gate(1, path="other.py"),
        gate(1, dtype="bf16"),
        gate(1).replace("silu", "gelu"),
    ],
)
def test_other_places_dtypes_and_ops_are_other_findings(other: str) -> None:
    parts = assembled(gate(0) + other)
    assert [f.sites for f in parts.findings] == [1, 1]


def test_fingerprints_survive_moved_lines_renumbered_layers_and_other_sizes() -> None:
    def fingerprint(text: str) -> str:
        return assembled(text).findings[0].fingerprint

    known = fingerprint(gate(0))
    assert fingerprint(gate(5, "[8, 64]", line=99)) == known
    assert fingerprint(gate(0, path="/elsewhere/model.py")) == known
    assert fingerprint(gate(0).replace('"MLP"', '"Other"')) != known
    assert fingerprint(gate(0).replace("silu", "gelu")) != known
    assert len(known) == 16


def test_totals() -> None:
    graph = timed(gate(0) + "w: f32[512, 64]\nh = aten.mm(y0, w)\nn = aten.exp(u0)\n")
    graph.unlinked = [Kernel("fused_silu_and_mul_kernel", 100.0, 5.0)]
    totals = assembled(graph).totals
    # The kernel that no op is known for is told by its name
    assert (totals.kernels, totals.memory_bound_kernels) == (5, 4)
    assert (totals.unfused_kernels, totals.avoidable_kernels) == (2, 1)
    assert (totals.device_us, totals.memory_bound_us) == (45.0, 35.0)
    assert totals.already_fused_kernels == 1
    one, out = 64 * 512 * 4, 64 * 64 * 4
    assert totals.bytes == 5 * one + (one + 512 * 64 * 4 + out) + 2 * one
    assert totals.saving.bytes == 2 * one


def test_findings_come_with_the_largest_saving_first() -> None:
    graph = timed(gate(0) + "m: f32[4096, 512]\np = aten.exp(m)\nq = aten.neg(p)")
    for op in graph.ops[2:]:
        op.kernels = tuple(replace(k, dur_us=1000.0) for k in op.kernels)
    parts = assembled(graph)
    assert [f.rule for f in parts.findings] == ["FUS101", "FUS206"]
    likely = [f.saving.likely_us for f in parts.findings]
    assert likely == sorted(likely, reverse=True)


def test_without_times_no_time_is_saved_but_bytes_are_counted() -> None:
    [finding] = assembled(parse(gate(0))).findings
    assert (finding.saving.ideal_us, finding.saving.likely_us, finding.device_us) == (0.0, 0.0, 0.0)
    assert finding.bytes_now > finding.bytes_fused > 0
    assert "no timing" in finding.places[0].formula


def test_a_finding_built_on_inferred_edges_says_so() -> None:
    graph = timed(gate(0))
    assert assembled(graph).findings[0].provenance == "observed"
    graph.ops[1].inferred = True
    assert assembled(graph).findings[0].provenance == "inferred"


def test_the_printed_graph_of_a_finding_shows_the_views_between_and_parses() -> None:
    text = "x: f32[64, 512]\nu: f32[64, 512]\na = aten.silu(x)\nv = aten.view(a, [64, 512])\ny = aten.mul(v, u)"
    [finding] = assembled(text).findings
    names = [op.name for op in parse(finding.graph).ops]
    assert names == ["aten.silu", "aten.view", "aten.mul"]


def test_refusals_are_grouped_and_counted() -> None:
    read = "z{0} = aten.mm(a{0}, aten.t(a{0}))\n"
    parts = assembled("".join(gate(i) + read.format(i) for i in range(3)))
    [refused] = [r for r in parts.refused if r.rule == "FUS206"]
    assert (refused.reason, refused.count, refused.at) == ("act escapes to aten.mm", 3, "layers.0.mlp")
    assert refused.ops == [0, 1]


def test_home_is_where_most_ops_are() -> None:
    graph = parse("""
        module("block", "Block")
        x: f32[4]
        a = aten.exp(x)
        module("block.norm", "Norm")
        b = aten.neg(a)
        c = aten.sin(b)
    """)
    assert home_of(graph.ops).module == "block.norm"
    assert home_of(graph.ops).index == 1


def test_coverage_is_counted_where_the_trace_did_not_say() -> None:
    coverage = assembled(gate(0)).coverage
    assert (coverage.kernels, coverage.linked, coverage.edges, coverage.steps) == (2, 2, "observed", 1)
