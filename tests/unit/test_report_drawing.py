"""Pictures of sites, and their layout."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_factory import chain_graph, rms_graph

from auditor.document import Site
from auditor.graph.model import OpGraph
from auditor.graph.ssa import parse
from auditor.report.draw import draw
from auditor.report.layers import arrange
from auditor.report.subgraph import MOST_ENDS, MOST_OPS, Edge, after, before


def _titles(picture, kind):
    return [n.title for n in picture.nodes.values() if n.kind == kind]


def _edges(picture):
    def name(key):
        return picture.nodes[key].title

    return [(name(e.tail), name(e.head), e.label, e.via) for e in picture.edges]


def test_a_norm_before_and_after():
    # GIVEN the ops of a norm between a residual add and a GEMM
    graph, ops = rms_graph()
    site = Site(ops=ops, kernels=8, kernels_after=1, bytes_fused=67_000_000)
    # WHEN it is drawn as recorded
    now = before(graph, site)
    # THEN there are its eight kernels with their constants, what they read from outside, and who reads the result
    assert now is not None
    assert _titles(now, "op") == ["_to_copy(·)", "pow(·, 2)", "mean(·, [-1], True)", "add(·, 1e-06)", "rsqrt(·)",
                                  "mul(·, ·)", "_to_copy(·)", "mul(·, ·)"]  # fmt: skip
    assert now.nodes["op3"].lines == ("f32[2, 2048, 4096]", "31.0 µs")
    assert _titles(now, "input") == ["hidden from add", "weight"]
    assert [n.lines for n in now.nodes.values() if n.kind == "output"] == [
        ("bf16[2, 2048, 4096] · 33.6 MB", "read by mm")
    ]
    assert ("pow(·, 2)", "mean(·, [-1], True)", "[2, 2048, 4096] · 67.1 MB", "") in _edges(now)
    # WHEN it is fused THEN the same inputs and outputs hang on one kernel
    then = after(now, site, "rms_norm")
    assert then.nodes["fused"].lines == ("1 kernel", "67.0 MB moved")
    assert _edges(then) == [
        ("hidden from add", "rms_norm", "[2, 2048, 4096] · 33.6 MB", ""),
        ("weight", "rms_norm", "[4096] · 8.19 kB", ""),
        ("rms_norm", "output", "[2, 2048, 4096] · 33.6 MB", ""),
    ]


def test_views_are_folded_into_the_edges_and_slices_keep_their_own_size():
    # GIVEN halves of one tensor, gated, and a transpose on the way to the last op
    graph = parse(
        "x: f32[4, 8]\nlo, hi = aten.split(x, 4, -1)\ng = aten.silu(lo)\ny = aten.mul(g, hi)\n"
        "t = aten.t(y)\nz = aten.neg(t)\nreturn z"
    )
    picture = before(graph, Site(ops=[op.index for op in graph.ops]))
    assert picture is not None
    assert _titles(picture, "op") == ["silu(·)", "mul(·, ·)", "neg(·)"]
    fused = after(picture, Site(ops=[]), "silu_mul")
    assert _edges(fused)[0] == ("x", "silu_mul", "[4, 8] · 128 B", "")
    assert _edges(picture) == [
        ("x", "silu(·)", "[4, 4] · 64 B", "split"),
        ("x", "mul(·, ·)", "[4, 4] · 64 B", "split"),
        ("silu(·)", "mul(·, ·)", "[4, 4] · 64 B", ""),
        ("mul(·, ·)", "neg(·)", "[4, 4] · 64 B", "t"),
        ("neg(·)", "z", "[4, 4] · 64 B", ""),
    ]


def test_an_intermediate_that_is_read_outside_is_an_output_with_its_readers():
    graph = parse(
        "x: f32[8]\ns = aten.add(x, 1)\nn = aten.mul(s, 2)\na = aten.neg(s)\nb = aten.exp(s)\nc = aten.sin(s)\n"
        "d = aten.cos(aten.view(s, [2, 4]))\nreturn n"
    )
    picture = before(graph, Site(ops=[0, 1], saved=[graph.ops[1].outputs[0].id]))
    assert picture is not None
    outputs = {n.title: n.lines[1] for n in picture.nodes.values() if n.kind == "output"}
    assert outputs == {"s": "read by neg, exp, sin and 1 more", "n": "saved for backward, result of the step"}
    assert [e for e in picture.edges if e.outside] == [
        Edge("op0", f"out{graph.ops[0].outputs[0].id}", "[8] · 32 B", outside=True),
        Edge("op1", f"out{graph.ops[1].outputs[0].id}", "[8] · 32 B", outside=True),
    ]


@pytest.mark.parametrize("ops", [[], [99], [-1], [0, 99]])
def test_ops_that_are_not_at_hand_give_no_picture(ops):
    graph, _ = chain_graph(3)
    assert before(graph, Site(ops=ops)) is None
    assert before(None, Site(ops=ops)) is None
    assert before(OpGraph(), Site(ops=ops)) is None


def test_a_long_chain_is_cut_and_many_inputs_are_folded():
    graph, ops = chain_graph(MOST_OPS + 30)
    picture = before(graph, Site(ops=ops))
    assert picture is not None
    assert (len(_titles(picture, "op")), picture.left_out) == (MOST_OPS, 30)
    fused = after(picture, Site(ops=ops), "chain")
    assert len(_titles(fused, "input")) == MOST_ENDS + 1
    assert _titles(fused, "input")[-1] == f"{1 + MOST_OPS // 3 - MOST_ENDS} more inputs"


def test_a_chain_is_drawn_as_a_straight_line_no_wider_than_its_side_inputs():
    # GIVEN a chain of sixty ops, every third with a side input
    graph, ops = chain_graph(60)
    picture = before(graph, Site(ops=ops))
    assert picture is not None
    # WHEN it is laid out
    sizes = dict.fromkeys(picture.nodes, (100.0, 40.0))
    placed = arrange(sizes, [(e.tail, e.head) for e in picture.edges])
    # THEN all its ops are below one another
    assert len({round(placed.boxes[f"op{i}"].center, 3) for i in ops}) == 1
    assert placed.width < 500
    tops = [placed.boxes[f"op{i}"].y for i in ops]
    assert tops == sorted(tops)


@st.composite
def _graphs(draw):
    n = draw(st.integers(1, 14))
    pairs = [(str(i), str(j)) for i in range(n) for j in range(i + 1, n)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=24, unique=True)) if pairs else []
    sizes = {str(i): (float(draw(st.integers(10, 200))), float(draw(st.integers(10, 80)))) for i in range(n)}
    return sizes, edges


@settings(max_examples=60, deadline=None)
@given(_graphs())
def test_no_two_boxes_overlap_and_every_edge_leads_down(drawn):
    sizes, edges = drawn
    placed = arrange(sizes, edges)
    boxes = list(placed.boxes.values())
    for i, a in enumerate(boxes):
        assert a.x >= 0
        assert a.x + a.width <= placed.width + 1e-6
        assert a.y + a.height <= placed.height + 1e-6
        for b in boxes[i + 1 :]:
            apart = a.x + a.width <= b.x + 1e-6 or b.x + b.width <= a.x + 1e-6
            assert apart or a.y + a.height <= b.y or b.y + b.height <= a.y
    for (tail, head), path in zip(edges, placed.paths, strict=True):
        assert path[0] == (placed.boxes[tail].center, placed.boxes[tail].y + placed.boxes[tail].height)
        assert path[-1] == (placed.boxes[head].center, placed.boxes[head].y)
        assert [y for _, y in path] == sorted(y for _, y in path)


def test_the_drawing_tells_a_screen_reader_what_it_shows():
    graph, ops = rms_graph()
    picture = before(graph, Site(ops=ops))
    assert picture is not None
    drawing = draw(picture, "f1-before", "rms").markup
    assert 'role="img" aria-labelledby="f1-before-t" aria-describedby="f1-before-d"' in drawing
    assert "8 kernels (2 inputs, 1 output): _to_copy(·) then pow(·, 2) then" in drawing


def test_results_of_unlike_shapes_are_labelled_each_by_itself():
    graph = parse("x: f32[8, 4]\ns = aten.add(x, 1)\nm = aten.mean(s, [-1])\nreturn s, m")
    picture = before(graph, Site(ops=[0, 1]))
    assert picture is not None
    drawing = draw(after(picture, Site(ops=[0, 1]), "fused"), "a", "a").markup
    assert "f32[8, 4] · 128 B" in drawing
    assert "f32[8] · 32 B" in drawing
    assert drawing.count('class="tag"') == 1
