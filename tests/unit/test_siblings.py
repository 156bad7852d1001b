"""GEMMs that read the same activations."""

from __future__ import annotations

from functools import cache

import pytest

from auditor.engine.propose import Proposals
from auditor.engine.rules import Rule, load_rules
from auditor.engine.siblings import propose_siblings
from auditor.graph.canonical import Canonical
from auditor.graph.ssa import parse

ADAPTER = "d: f32[64, 4]\nu: f32[4, 64]\n"
CAST = "c = aten._to_copy(x, bf16)\n"
HEAD = "x: f32[8, 64]\nw1: f32[64, 64]\nw2: f32[64, 32]\nw3: f32[64, 64]\nb1: f32[64]\n"


@cache
def rule() -> Rule:
    return next(r for r in load_rules() if r.siblings is not None)


def proposed(graph: str) -> Proposals:
    return propose_siblings(Canonical(parse(HEAD + graph)), rule())


def sites(graph: str) -> list[list[int]]:
    return [[op.index for op in c.region.ops] for c in proposed(graph).candidates]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("q = aten.mm(x, w1)\nk = aten.mm(x, w2)\nv = aten.mm(x, w3)", [[0, 1, 2]]),
        ("q = aten.mm(x, w1)\nn = aten.exp(q)\nk = aten.mm(x, w2)", [[0, 2]]),
        ("q = aten.mm(x, aten.t(aten.t(w1)))\nk = aten.mm(x, w2)", [[2, 3]]),
        ("a = aten.exp(x)\nq = aten.mm(a, w1)\nk = aten.mm(aten.view(a, [8, 64]), w3)", [[1, 3]]),
        ("q = aten.addmm(b1, x, w1)\nk = aten.addmm(b1, x, w3)", [[0, 1]]),
        (
            CAST + "q = aten.mm(c, aten._to_copy(w1, bf16))\nk = aten.mm(c, aten._to_copy(w2, bf16))",
            [[2, 4]],
        ),
        ("q = aten.mm(x, w1)", []),
        ("q = aten.mm(x, w1)\nk = aten.mm(aten.exp(x), w1)", []),
        ("q = aten.mm(x, w1)\nk = aten.mm(x, w1)", []),
        ("q = aten.mm(x, w1)\nk = aten.mm(x, aten.exp(w3))", []),
        ('q = aten.mm(x, w1)\nphase("backward")\nk = aten.mm(x, w3)', []),
        ("n: f32[64, 2]\nq = aten.mm(x, w1)\nr = aten.mm(x, n)", []),
        (
            ADAPTER + "q = aten.mm(x, w1)\ns = aten.mm(x, d)\nt = aten.mm(s, u)\ny = aten.add(q, t)",
            [],
        ),
    ],
)
def test_siblings(graph: str, expected: list[list[int]]) -> None:
    assert sites(graph) == expected


def test_a_wide_down_projection_that_feeds_another_gemm_is_no_adapter() -> None:
    assert sites("q = aten.mm(x, w1)\nk = aten.mm(x, w3)\ny = aten.mm(k, w1)") == [[0, 1]]


def test_the_activations_are_counted_once() -> None:
    [site] = proposed("q = aten.mm(x, w1)\nk = aten.mm(x, w2)\nv = aten.mm(x, w3)").candidates
    assert site.region.bytes_now - site.region.bytes_fused == 2 * 8 * 64 * 4
    assert site.variant == {"width": "3"}


def test_adapters_and_narrow_siblings_are_refused_with_a_reason() -> None:
    [refusal] = proposed("n: f32[64, 2]\nq = aten.mm(x, w1)\nr = aten.mm(x, n)").refusals
    assert refusal.reason == "the siblings are adapters or too narrow"
    assert [op.index for op in refusal.ops] == [0, 1]


def test_a_sibling_that_depends_on_the_first_is_refused() -> None:
    [refusal] = proposed("a = aten.mm(x, w1)\naten._local_scalar_dense(aten.amax(a))\nb = aten.mm(x, w3)").refusals
    assert "host sync" in refusal.reason
