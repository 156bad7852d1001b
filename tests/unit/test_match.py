"""Laying patterns over graphs: orders, casts, constants, several readers, symmetric regions."""

from __future__ import annotations

import time

import pytest

from auditor.engine.match import MAX_BINDINGS, Match, find_matches, rarest_call
from auditor.engine.pattern import compile_patterns
from auditor.graph.canonical import Canonical
from auditor.graph.ssa import parse

HEAD = "x: f32[16, 16]\nz: f32[16, 16]\nw: f32[16]\ns: f32\n"


def matches(pattern: str, graph: str) -> list[Match]:
    [compiled] = compile_patterns(pattern, (), "here")
    return list(find_matches(Canonical(parse(HEAD + graph)), compiled))


def covered(found: list[Match]) -> list[list[int]]:
    return [sorted(m.op_indices()) for m in found]


CHAIN = "a = aten.mul(x, c_k)\ny = aten.tanh(a)"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("y = aten.tanh(aten.mul(x, 2.0))", [[0, 1]]),
        ("y = aten.tanh(aten.div(x, 2.0))", [[0, 1]]),
        ("y = aten.tanh(aten.mul(x, s))", [[0, 1]]),
        ("y = aten.tanh(aten.mul(x, w))", []),
        ("y = aten.tanh(aten.add(x, 2.0))", []),
        ("a = aten.mul(x, 2.0)\ny = aten.tanh(x)", []),
        ("a = aten.mul(x, 2.0)\ny = aten.tanh(aten._to_copy(a, bf16))", [[0, 2]]),
        ("a = aten.mul(x, 2.0)\ny = aten.tanh(aten.view(a, [256]))", [[0, 2]]),
        ("a = aten.mul(x, 2.0)\ny = aten.tanh(aten.slice(a, 0, 0, 4))", []),
        ("a = aten.mul(x, 2.0)\ny = aten.tanh(a)\nb = aten.tanh(a)", [[0, 1], [0, 2]]),
        ("aten.mul_(x, 2.0)\naten.tanh_(x)", [[0, 1]]),
        ('a = aten.mul(x, 2.0)\nphase("backward")\ny = aten.tanh(a)', []),
    ],
)
def test_a_chain(graph: str, expected: list[list[int]]) -> None:
    assert sorted(covered(matches(CHAIN, graph))) == expected


def test_variables_and_constants_are_reported() -> None:
    [match] = matches(CHAIN, "y = aten.tanh(aten.div(x, 8.0))")
    assert match.variables["x"].value.name == "x"
    assert match.constants == {"c_k": 0.125}
    assert match.sink.op.name == "aten.tanh"


@pytest.mark.parametrize(
    ("pattern", "graph", "count"),
    [
        ("y = aten.mul(x, aten.neg(x))", "y = aten.mul(x, aten.neg(x))", 1),
        ("y = aten.mul(x, aten.neg(x))", "y = aten.mul(aten.neg(x), x)", 1),
        ("y = aten.mul(x, aten.neg(x))", "y = aten.mul(z, aten.neg(x))", 0),
        ("y = aten.sub(x, aten.neg(x))", "y = aten.sub(aten.neg(x), x)", 0),
        ("y = aten.add(aten.mul(a, c_k), aten.mul(b, c_k))", "y = aten.add(aten.mul(x, 2), aten.mul(z, 2.0))", 1),
        ("y = aten.add(aten.mul(a, c_k), aten.mul(b, c_k))", "y = aten.add(aten.mul(x, 2), aten.mul(z, 3))", 0),
        ("y = aten.pow(x, 3)", "y = aten.pow(x, 3.0)", 1),
        ("y = aten.pow(x, 3)", "y = aten.pow(x, 4)", 0),
        ("y = aten.softmax(x, -1)", "y = aten._softmax(x, 1, False)", 1),
        ("y = aten.softmax(x, -1)", "y = aten._softmax(x, 0, False)", 0),
        ("y = aten.cat([a, b], -1)", "y = aten.cat([x, z], 1)", 1),
        ("y = aten.cat([a, b], -1)", "y = aten.cat([x, z, x], 1)", 0),
        ("y = aten.cat([a, b], _)", "y = aten.cat([x, z], 0)", 1),
        ("y = anyof.gemm(a, b, ...)", "y = aten.addmm(w, x, z)", 1),
        ("y = anyof.gemm(a, b)", "y = aten.addmm(w, x, z)", 0),
        ("y = anyof.mask(aten.neg(a), m, ...)", "y = aten.add(z, aten.neg(x))", 1),
        ("y = anyof.mask(aten.neg(a), m, ...)", "k: bool[16, 16]\ny = aten.masked_fill(aten.neg(x), k, 0.0)", 1),
        (
            "v, m = aten.var_mean(x, [-1], _)\ny = aten.sub(x, m)",
            "v, m = aten.var_mean(x, [-1], 0, True)\ny = aten.sub(x, m)",
            1,
        ),
        (
            "v, m = aten.var_mean(x, [-1], _)\ny = aten.sub(x, m)",
            "v, m = aten.var_mean(x, [-1], 0, True)\ny = aten.sub(x, v)",
            0,
        ),
    ],
)
def test_arguments(pattern: str, graph: str, count: int) -> None:
    assert len(matches(pattern, graph)) == count


def test_the_search_starts_at_the_rarest_op() -> None:
    [pattern] = compile_patterns(CHAIN, (), "here")
    graph = Canonical(parse(HEAD + "a = aten.mul(x, 2)\nb = aten.mul(a, 3)\ny = aten.tanh(b)"))
    anchor = rarest_call(graph, pattern)
    assert anchor is not None
    assert anchor.kinds == {"tanh"}
    assert rarest_call(Canonical(parse(HEAD + "y = aten.neg(x)")), pattern) is None


def test_matches_of_one_set_of_ops_are_one() -> None:
    assert len(matches("y = aten.add(aten.neg(a), aten.neg(b))", "y = aten.add(aten.neg(x), aten.neg(z))")) == 1


def test_a_long_symmetric_sum_does_not_explode() -> None:
    # GIVEN a pattern of six adds over a tree of 63 adds, where every order fits
    pattern = "y = aten.add(aten.add(aten.add(a, b), aten.add(c, d)), aten.add(aten.add(e, f), g))"
    lines, level = [], ["x", "z"] * 32
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=True)
        made = []
        for a, b in pairs:
            made.append(f"n{len(lines)}")
            lines.append(f"{made[-1]} = aten.add({a}, {b})")
        level = made
    started = time.monotonic()
    found = matches(pattern, "\n".join(lines))
    # THEN the ways tried for each of them are bounded
    assert 0 < len(found) <= 63 * MAX_BINDINGS
    assert time.monotonic() - started < 5
