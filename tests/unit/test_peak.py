"""Peak memory of a step, from its graph."""

from __future__ import annotations

from auditor.graph.model import Op, OpGraph
from auditor.graph.peak import peak_bytes
from auditor.graph.ssa import parse

ONE = 256 * 4
"""Bytes of one of the tensors."""


def test_nothing() -> None:
    assert peak_bytes(OpGraph()) == 0


def test_a_chain_holds_the_input_and_two_neighbours() -> None:
    # x is held all the time; while b is made, a is read
    graph = parse("x: f32[256]\na = aten.exp(x)\nb = aten.sin(a)\nc = aten.cos(b)\nreturn c")
    assert peak_bytes(graph) == 3 * ONE


def test_a_value_that_is_read_late_is_held_until_then() -> None:
    graph = parse("x: f32[256]\na = aten.exp(x)\nb = aten.sin(a)\nc = aten.cos(b)\nd = aten.add(c, a)\nreturn d")
    assert peak_bytes(graph) == 4 * ONE


def test_views_count_once_with_their_base_and_keep_it() -> None:
    base = "x: f32[256]\na = aten.exp(x)\nv = aten.view(a, [16, 16])\nb = aten.sin(x)\nc = aten.cos(b)\n"
    kept = parse(base + "d = aten.sum(v)\nreturn d")
    view = next(op for op in kept.ops if op.name == "aten.view")
    assert view.outputs[0].base is not None
    assert peak_bytes(kept) == 4 * ONE  # x, a (by its view), b, c


def test_a_result_is_held_to_the_end() -> None:
    graph = parse("x: f32[256]\na = aten.exp(x)\nb = aten.sin(x)\nc = aten.cos(b)\nreturn a, c")
    assert peak_bytes(graph) == 4 * ONE


def test_an_in_place_op_takes_no_memory_of_its_own() -> None:
    graph = OpGraph()
    x = graph.value("f32", (256,))
    a = graph.value("f32", (256,), storage=7)
    graph.add(Op(0, "aten.exp", (x,), (a,)))
    again = graph.value("f32", (256,), storage=7)
    graph.add(Op(0, "aten.relu_", (a,), (again,), mutates=(a,)))
    again.escapes = True
    assert peak_bytes(graph) == 2 * ONE


def test_the_device_counts_and_not_its_host() -> None:
    graph = OpGraph(device_kind="cuda")
    host = graph.value("f32", (100_000,))
    moved = graph.value("f32", (256,), device="cuda:0")
    graph.add(Op(0, "aten._to_copy", (host,), (moved,)))
    assert peak_bytes(graph) == ONE


def test_numbers_of_python_take_no_memory() -> None:
    graph = parse("x: f32[256]\na = aten.exp(x)\nreturn a")
    number = graph.value("f64", ())
    doubled = graph.value("f32", (256,))
    graph.add(Op(1, "aten.mul", (graph.ops[0].outputs[0], number), (doubled,)))
    assert peak_bytes(graph) == 3 * ONE


def test_it_does_not_depend_on_the_order_of_values() -> None:
    graph = parse("x: f32[256]\na = aten.exp(x)\nb = aten.sin(a)\nc = aten.add(a, b)\nreturn c")
    before = peak_bytes(graph)
    graph.values.reverse()
    assert peak_bytes(graph) == before == 4 * ONE
