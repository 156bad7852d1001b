"""A rule's pattern text, compiled: forms, classes, optional ops, and how all calls are reached from one."""

from __future__ import annotations

from typing import Any

import pytest

from auditor.engine.match import find_matches
from auditor.engine.pattern import Call, Pattern, Rest, Result, Variable, Wildcard, compile_patterns
from auditor.errors import AuditError
from auditor.graph.canonical import Canonical
from auditor.graph.normal import ConstantVariable
from auditor.graph.ssa import parse


def compiled(text: str, *outputs: str) -> list[Pattern]:
    return compile_patterns(text, outputs, "here")


def one(text: str, *outputs: str) -> Pattern:
    [pattern] = compiled(text, *outputs)
    return pattern


def test_names_constants_lists_and_wildcards() -> None:
    cat = one("y = aten.cat([a, aten.mul(b, c_k), a], -1)").sink
    parts, dim = cat.args
    assert (cat.name, cat.kinds, dim) == ("y", {"cat"}, -1)
    assert parts[0] == parts[2] == Variable("a")
    assert isinstance(parts[1], Call)
    assert parts[1].args == (Variable("b"), ConstantVariable("c_k"))
    assert one("y = aten.where(_, x, ...)").sink.args == (Wildcard(), Variable("x"), Rest())
    assert one("y = aten.pow(x, -2.5)").sink.args == (Variable("x"), -2.5)


def test_calls_are_canonical() -> None:
    pattern = one("s = aten.pow(x, 2)\nv = aten.mean(s, [-1])\ny = aten.div(v, c_n)")
    assert [c.kinds for c in pattern.calls] == [{"square"}, {"mean"}, {"mul"}]
    assert [c.commutative for c in pattern.calls] == [False, False, True]


def test_ops_by_alternative_and_by_class() -> None:
    assert one("y = (aten.silu | aten.gelu | mylib.act)(x)").sink.kinds == {"silu", "gelu", "mylib.act"}
    assert {"mm", "addmm", "bmm", "linear"} <= one("y = anyof.gemm(a, b, ...)").sink.kinds
    assert not one("y = anyof.gemm(a, b, ...)").sink.kinds & {"convolution_backward", "softmax"}
    assert one("y = anyof.mask(s, m, ...)").sink.kinds == {"add", "masked_fill"}


def test_several_results() -> None:
    pattern = one("v, m = aten.var_mean(x, [-1], _)\nd = aten.sub(x, m)\ny = aten.mul(d, v)")
    var_mean, sub, mul = pattern.calls
    assert sub.args == (Variable("x"), Result(var_mean, 1))
    assert mul.args == (sub, var_mean)


def test_an_optional_op_is_there_or_its_first_operand_takes_its_place() -> None:
    longer, shorter = compiled("y = aten.tanh(optional(aten.mul(x, c_k)))")
    assert [c.kinds for c in longer.calls] == [{"mul"}, {"tanh"}]
    assert [c.kinds for c in shorter.calls] == [{"tanh"}]
    assert shorter.sink.args == (Variable("x"),)


def test_nested_and_repeated_optionals_give_each_form_once_longest_first() -> None:
    patterns = compiled("a = optional(optional(aten.neg(optional(aten.neg(x)))))\ny = aten.exp(a)")
    assert [len(p.calls) for p in patterns] == [3, 2, 1]
    assert [len(p.calls) for p in compiled("y = optional(aten.add(optional(aten.mul(aten.neg(x), w)), b))")] == [
        3,
        2,
        2,
        1,
    ]


def test_an_absent_optional_takes_the_ops_of_its_other_operands_with_it() -> None:
    longer, shorter = compiled("y = aten.exp(optional(aten.mul(x, aten.neg(w))))")
    assert len(longer.calls) == 3
    assert [c.kinds for c in shorter.calls] == [{"exp"}]


def test_outputs_are_the_named_ones_and_the_last() -> None:
    pattern = one("a = aten.neg(x)\nb = aten.exp(a)\ny = aten.sin(b)", "a")
    assert pattern.outputs == {"a", "y"}
    assert {"a", "b", "x", "y"} <= pattern.names


@pytest.mark.parametrize("anchor", range(5))
def test_every_call_is_reached_from_any_anchor(anchor: int) -> None:
    pattern = one("m = aten.mean(x, [-1])\nd = aten.sub(x, m)\nv = aten.mean(aten.pow(d, 2), [-1])\ny = aten.mul(d, v)")
    reached = {pattern.calls[anchor]}
    pending = list(reached)
    steps = pattern.plan(pattern.calls[anchor])
    while pending:  # upward by operands, downward by the plan
        call = pending.pop()
        near = [a for a in call.args if isinstance(a, Call)] + [to for source, to in steps if source is call]
        pending += [c for c in near if c not in reached]
        reached |= set(near)
    assert reached == set(pattern.calls)


@pytest.mark.parametrize(
    ("where", "symmetric"),
    [
        ({}, True),
        ({"dtype": {"a": ["f32"], "b": ["f32"]}}, True),
        ({"same_size": [["b", "a"]]}, True),
        ({"full_size": {"a": "y", "b": "y"}}, True),
        ({"dtype": {"a": ["f32"]}}, False),
        ({"full_size": {"a": "b"}}, False),
        ({"halves_of": {"y": ["a", "b"]}}, False),
        ({"halves_of": {"b": ["s", "y"]}}, False),
    ],
)
def test_two_operands_are_alike_unless_where_tells_them_apart(where: dict[str, Any], symmetric: bool) -> None:
    [pattern] = compile_patterns("s = aten.mul(a, b)\ny = aten.exp(s)", (), "here", where)
    assert pattern.calls[0].symmetric is symmetric
    assert set(pattern.constrained) <= {"a", "b"}
    assert symmetric or pattern.constrained


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "here: the pattern is empty"),
        ("y = aten.neg(", "here, line 1: "),
        ("a = aten.neg(x)\ny == aten.neg(a)", "here, line 2: expected `name = aten.op(args)`"),
        ("y = 3 + x", "here, line 1: cannot read `3 + x`"),
        ("y = aten.neg(x).T", "here, line 1: cannot read"),
        ("y = neg(x)", "here, line 1: `neg` is not an op; expected aten.NAME, namespace.NAME or anyof.CLASS"),
        ("y = anyof.everything(x)", "here, line 1: no op class `anyof.everything`; known: anyof.gemm"),
        ("y = aten.neg(x=3)", "here, line 1: keyword arguments are not part of a pattern"),
        ("y = aten.exp(optional(x))", "here, line 1: expected optional(aten.op(…))"),
        ("y = aten.exp(optional(aten.neg()))", "here, line 1: "),
        ("a, (b, c) = aten.split(x, 2)", "here, line 1: expected a name"),
        ("y[0] = aten.neg(x)", "here, line 1: expected"),
        ("y = aten.addmm(x)", "here, line 1: aten.addmm needs more arguments"),
        ("y = " + "optional(aten.neg(" * 9 + "x" + "))" * 9, "here: 9 optional(…) in one pattern; at most 8"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(AuditError) as error:
        compiled(text)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "graph"),
    [
        ("s = aten.sigmoid(x)\ny = aten.mul(x, s)", "s = aten.sigmoid(x)\ny = aten.mul(x, s)"),
        ("y = aten.mul(aten.sigmoid(x), x)", "s = aten.sigmoid(x)\ny = aten.mul(x, s)"),
        ("r = aten.sqrt(x)\ny = aten.div(z, r)", "r = aten.sqrt(x)\ny = aten.div(z, r)"),
        ("y = aten.mul(z, aten.reciprocal(aten.sqrt(x)))", "y = aten.div(z, aten.sqrt(x))"),
        ("y = aten.exp(aten.mul(x, x))", "y = aten.exp(aten.pow(x, 2))"),
        ("y = aten.mul(x, aten.sigmoid(aten.mul(x, c_k)))", "y = aten.mul(x, aten.sigmoid(aten.mul(x, 1.702)))"),
    ],
)
def test_a_pattern_in_recorded_ops_is_made_canonical_like_the_graph(pattern: str, graph: str) -> None:
    # GIVEN a pattern written as the ops were recorded
    [compiled] = compile_patterns(pattern, (), "here")
    # WHEN it is laid over a graph of those ops, which has a shorter canonical form
    recorded = Canonical(parse("x: f32[8, 64]\nz: f32[8, 64]\n" + graph))
    # THEN it covers all of them
    [match] = find_matches(recorded, compiled)
    assert sum(1 for _ in match.op_indices()) == len(recorded.graph.ops)
