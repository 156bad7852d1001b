"""The canonical form: transparent views, roots behind casts, composites, readers, barriers."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.engine.claims import claim
from auditor.engine.rules import load_rules
from auditor.graph.canonical import Canonical
from auditor.graph.model import Kernel, Op, OpGraph
from auditor.graph.ssa import parse


def canonical(text: str) -> Canonical:
    return Canonical(parse(text))


def kinds(text: str) -> list[str]:
    return [node.kind for node in canonical(text).nodes if node.ops]


def values(graph: Canonical) -> dict[str, Any]:
    return {v.name: v for v in graph.graph.values}


# ── views, casts, slices ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "view",
    [
        "aten.view(x, [128, 16])", "aten.unsqueeze(x, 0)", "aten.transpose(x, 0, 1)", "aten.expand(x, [2, 64, 16])",
        "aten.permute(x, [1, 0, 2])", "aten.slice(x, 0, 0, 2)", "aten.alias(aten.view(x, [32, 64]))",
    ],
)  # fmt: skip
def test_a_view_of_everything_is_the_value_itself(view: str) -> None:
    graph = canonical(f"x: f32[2, 64, 16]\nv = {view}\ny = aten.neg(v)")
    assert [n.kind for n in graph.nodes] == ["neg"]
    named = values(graph)
    assert graph.cvalue(named["v"]) is graph.cvalue(named["x"])
    assert graph.readers[named["x"].id] == [graph.graph.ops[-1]]


def test_a_slice_is_a_node_of_its_own_with_its_bounds() -> None:
    graph = canonical("x: f32[4, 64]\na, b = aten.split(x, 32, -1)\ny = aten.neg(a)\nz = aten.exp(b)")
    slices = graph.by_kind["slice"]
    x = graph.cvalue(values(graph)["x"])
    assert [n.args for n in slices] == [(x, -1, 0, 32), (x, -1, 32, 64)]
    assert all(not n.ops for n in slices)


def test_equal_slices_are_one_content() -> None:
    graph = canonical("x: f32[4, 64]\na = aten.slice(x, 1, 0, 8)\nb = aten.slice(x, -1, 0, 8)\ny = aten.add(a, b)")
    assert len(graph.by_kind["slice"]) == 1


def test_casts_and_copies_lead_to_their_root() -> None:
    graph = canonical("x: bf16[4, 8]\na = aten._to_copy(x, f32)\nb = aten.clone(a)\ny = aten.neg(b)")
    named = values(graph)
    assert graph.cvalue(named["b"]).root is graph.cvalue(named["x"])
    # the reader of the copy of the cast is a deep reader of what was cast
    assert [n.kind for n in graph.cvalue(named["x"]).deep_users] == ["neg"]


def test_a_cast_to_the_same_dtype_is_a_copy() -> None:
    assert kinds("x: f32[4]\na = aten._to_copy(x, f32)") == ["copy"]
    assert kinds("x: f32[4]\na = aten._to_copy(x, bf16)") == ["cast"]


def test_a_copy_over_a_whole_fresh_buffer_is_a_copy_and_over_a_part_of_it_a_write() -> None:
    whole = "x: f32[4, 8]\nb = aten.empty([4, 8])\naten.copy_(b, x)"
    part = "x: f32[4, 4]\nb = aten.empty([4, 8])\naten.copy_(aten.slice(b, 1, 0, 4), x)"
    live = "x: f32[4, 8]\nb: f32[4, 8]\naten.copy_(b, x)"
    assert [kinds(t)[-1] for t in (whole, part, live)] == ["copy", "copy_into", "copy_into"]


# ── composites ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = aten.mul(x, x)", ["square"]),
        ("y = aten.mul(x, z)", ["mul"]),
        ("y = aten.mul(x, aten.t(x))", ["mul"]),
        ("y = aten.mul(x, aten.alias(x))", ["square"]),
        ("y = aten.mul(x, aten.sigmoid(x))", ["silu"]),
        ("y = aten.mul(aten.sigmoid(x), x)", ["silu"]),
        ("y = aten.mul(z, aten.sigmoid(x))", ["sigmoid", "mul"]),
        ("y = aten.div(aten.sum(x, [-1], True), 16)", ["mean"]),
        ("y = aten.div(aten.sum(x, [-1], True), 15)", ["sum", "mul"]),
        ("y = aten.reciprocal(aten.sqrt(x))", ["rsqrt"]),
        ("y = aten.div(z, aten.sqrt(x))", ["rsqrt", "mul"]),
        ("y = aten.div(z, x)", ["div"]),
    ],
)
def test_composite(body: str, expected: list[str]) -> None:
    assert kinds(f"x: f32[16, 16]\nz: f32[16, 16]\n{body}") == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s = aten.sigmoid(x)\ny = aten.mul(x, s)\nz = aten.neg(s)", ["sigmoid", "mul", "neg"]),
        ("s = aten.sum(x, [-1], True)\ny = aten.div(s, 16)\nz = aten.neg(s)", ["sum", "mul", "neg"]),
        ("s = aten.sqrt(x)\ny = aten.reciprocal(s)\nz = aten.neg(s)", ["sqrt", "reciprocal", "neg"]),
        ("s = aten.sqrt(x)\ny = aten.div(x, s)\nreturn y, s", ["sqrt", "div"]),
    ],
)
def test_no_composite_where_the_inner_value_is_read_elsewhere(body: str, expected: list[str]) -> None:
    assert kinds(f"x: f32[16, 16]\n{body}") == expected


def test_a_composite_keeps_its_recorded_ops_in_order() -> None:
    graph = canonical("x: f32[4]\ns = aten.sigmoid(x)\nz = aten.exp(x)\ny = aten.mul(s, x)")
    [silu] = graph.by_kind["silu"]
    assert [op.name for op in silu.ops] == ["aten.sigmoid", "aten.mul"]
    assert silu.op.name == "aten.mul"
    assert [op.index for op in silu.ops] == [0, 2]
    assert "sigmoid" not in graph.by_kind


def test_dropout_drawn_scaled_and_multiplied_is_one_node() -> None:
    graph = canonical("""
        x: f32[4, 8]
        e = aten.empty([4, 8])
        aten.bernoulli_(e, 0.9)
        aten.div_(e, 0.9)
        y = aten.mul(x, e)
    """)
    assert [n.kind for n in graph.nodes] == ["dropout"]
    assert [op.name for op in graph.nodes[0].ops] == ["aten.bernoulli_", "aten.div_", "aten.mul"]


def test_arguments_that_no_schema_allows_leave_the_op_as_it_is() -> None:
    """A cut trace may hold anything."""
    graph = parse("x: f32[4, 4]\ny = aten.neg(x)")
    op = graph.ops[0]
    op.name, op.args = "aten.mean", (op.args[0], (op.args[0], op.args[0]))
    assert [n.kind for n in Canonical(graph).nodes] == ["aten.mean"]


# ── who reads what ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("result", "dims"),
    [("f32[2, 8, 1]", (-1,)), ("f32[2, 8]", (-1,)), ("f32[2, 1, 16]", None), ("f32", None), ("f32[2, 1, 1]", None)],
)
def test_the_dims_that_an_old_trace_does_not_tell_are_those_that_the_result_lacks(
    result: str, dims: tuple[int, ...] | None
) -> None:
    graph = canonical(
        f"x: f32[2, 8, 16]\np = aten.pow.Tensor_Scalar(x, None)\nm: {result} = aten.mean.dim(p, None, None)"
    )
    power, mean = graph.nodes
    assert (power.kind, mean.args[1]) == ("square", dims)


def test_a_power_that_an_old_trace_does_not_tell_is_no_square_where_it_is_not_averaged() -> None:
    assert kinds("x: f32[8, 16]\np = aten.pow.Tensor_Scalar(x, None)\ny = aten.mul(p, 0.5)") == ["pow", "mul"]
    assert kinds("x: f32[8, 16]\np = aten.pow(x, 3)\nm = aten.mean(p, [-1])") == ["pow", "mean"]


def test_a_softmax_of_an_old_trace_is_over_the_last_dim() -> None:
    old, new = (canonical(f"x: f32[8, 16]\np = aten._softmax(x, {dim}, None)").nodes[0] for dim in ("None", "1"))
    assert old.args[1] == new.args[1] == -1


def test_readers_through_views_and_results_of_the_step() -> None:
    graph = canonical("x: f32[4, 8]\na = aten.neg(x)\nv = aten.view(a, [8, 4])\ny = aten.exp(v)\nreturn y, v")
    named = values(graph)
    assert [op.name for op in graph.readers[named["a"].id]] == ["aten.exp"]
    assert graph.escaping == {named["a"].id, named["y"].id}


def test_what_overwrites_a_tensor_from_before_the_step_is_seen_by_its_owner() -> None:
    buffer = canonical("x: f32[4]\naten.add_(x, 1)\naten.mul_(x, 2)\ny = aten.neg(x)\nreturn y")
    newest = buffer.graph.ops[1].outputs[0]
    assert newest.id in buffer.escaping
    assert buffer.graph.ops[0].outputs[0].id not in buffer.escaping
    fresh = canonical("z: f32[4]\nx = aten.exp(z)\naten.add_(x, 1)\ny = aten.neg(x)\nreturn y")
    assert fresh.escaping == {fresh.graph.ops[-1].outputs[0].id}


def test_ops_that_have_to_run_before() -> None:
    graph = canonical("z: f32[4]\nx = aten.exp(z)\na = aten.neg(x)\nb = aten.sin(z)\naten.add_(x, b)")
    write = graph.graph.ops[-1]
    # what makes x and b, and what reads x before it is overwritten
    assert {op.index for op in graph.before(write)} == {0, 1, 2}


@pytest.mark.parametrize(
    "text",
    [
        "aten._local_scalar_dense(x)",
        "i: i64[4, 1] = aten.nonzero(x)",
        "r: f32[4] = _c10d_functional.all_reduce(x, 'sum')",
        "r: f32[2] = aten.masked_select(x, x)",
    ],
)
def test_barriers(text: str) -> None:
    graph = canonical(f"x: f32[4]\ny = aten.neg(x)\n{text}\nz = aten.exp(x)")
    assert graph.barriers == [1]


def test_ops_without_arguments_are_opaque() -> None:
    # GIVEN ops of a trace without shapes: names and kernels, nothing else
    graph = OpGraph()
    for name in ("aten.mul", "aten.mm", "aten._to_copy", "aten.copy_", "aten.softmax", "aten.div", "aten.cat"):
        out = graph.value("f32", ())
        graph.add(Op(0, name, (), (out,), kernels=(Kernel(name, 0.0, 1.0),)))
    # WHEN made canonical and matched against every rule THEN nothing is claimed and nothing breaks
    canonical = Canonical(graph)
    assert {node.kind for node in canonical.nodes} == {"opaque"}
    assert claim(canonical, load_rules()).sites == []
