"""From a match to the recorded ops: which casts belong to it, its variant, and what is refused."""

from __future__ import annotations

from functools import cache

import pytest

from auditor.engine.propose import Candidate, propose
from auditor.engine.rules import Rule, load_rules
from auditor.graph.canonical import Canonical
from auditor.graph.ssa import parse


@cache
def rule(rule_id: str) -> Rule:
    return next(r for r in load_rules() if r.id == rule_id)


def candidates(rule_id: str, text: str) -> list[Candidate]:
    return propose(Canonical(parse(text)), rule(rule_id)).candidates


def reasons(rule_id: str, text: str) -> list[str]:
    return [r.reason for r in propose(Canonical(parse(text)), rule(rule_id)).refusals]


NORM = """
    x: bf16[64, 256]
    w: {w}[256]
    x32 = aten._to_copy(x, f32)
    var = aten.mean(aten.pow(x32, 2), [-1], True)
    xn = aten.mul(x32, aten.rsqrt(aten.add(var, 1e-06)))
    {end}
"""
LOW_END = "low = aten._to_copy(xn, bf16)\n    y = aten.mul(low, w)"
HIGH_END = "xw = aten.mul(xn, w)\n    y = aten._to_copy(xw, bf16)"


def test_casts_between_and_at_the_border_belong_to_the_site() -> None:
    [low] = candidates("FUS201", NORM.format(w="bf16", end=LOW_END))
    [high] = candidates("FUS201", NORM.format(w="f32", end=HIGH_END))
    assert [c.region.kernels for c in (low, high)] == [8, 8]
    assert low.variant == {"casts": "x to f32, xn to bf16"}
    # the two casting modes give other bf16 results: they are other variants
    assert high.variant != low.variant


def test_a_cast_at_the_border_that_others_read_stays_outside() -> None:
    text = NORM.format(w="bf16", end=LOW_END + "\n    z = aten.exp(x32)\n    return y, z")
    [site] = candidates("FUS201", text)
    assert site.region.kernels == 7
    assert [v.name for v in site.region.inputs] == ["x32", "w"]


def test_a_trailing_cast_that_others_do_not_share_is_the_output() -> None:
    [site] = candidates("FUS201", NORM.format(w="f32", end=HIGH_END))
    assert [v.name for v in site.region.outputs] == ["y"]
    shared = HIGH_END + "\n    z = aten.exp(xw)\n    return y, z"
    [smaller] = candidates("FUS201", NORM.format(w="f32", end=shared))
    assert [v.name for v in smaller.region.outputs] == ["xw"]


def test_a_longer_form_hides_the_shorter_ones_inside_it() -> None:
    text = NORM.format(w="bf16", end=LOW_END)
    proposals = propose(Canonical(parse(text)), rule("FUS201"))
    assert len(proposals.candidates) == 1
    assert proposals.deferred != []


GATE = "g: f32[4, 8]\nu: f32[4, 8]\na = aten.silu(g)\ny = aten.mul(a, u)\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (GATE.replace("u: f32[4, 8]", "u: f32[8]"), "up is broadcast over act"),
        (GATE + "z = aten.neg(a)\nreturn y, z", "act escapes to aten.neg"),
        (GATE + "return y, a", "act escapes as a result of the step"),
    ],
)
def test_refused_with_the_names_of_the_pattern(text: str, reason: str) -> None:
    assert len(candidates("FUS206", GATE)) == 1
    assert candidates("FUS206", text) == []
    assert reasons("FUS206", text) == [reason]
