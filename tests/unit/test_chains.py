"""The catch-all: which kernels make one chain."""

from __future__ import annotations

from functools import cache

import pytest

from auditor.engine.chains import propose_chains
from auditor.engine.propose import Proposals
from auditor.engine.rules import Rule, load_rules
from auditor.graph.canonical import Canonical
from auditor.graph.ssa import parse

HEAD = "x: f32[32, 16]\nz: f32[32, 16]\nw: f32[16]\nm: f32[16, 16]\n"


@cache
def rule() -> Rule:
    return next(r for r in load_rules() if r.chain is not None)


def proposed(graph: str, *claimed: int) -> Proposals:
    return propose_chains(Canonical(parse(HEAD + graph)), rule(), set(claimed))


def chains(graph: str, *claimed: int) -> list[list[int]]:
    return sorted([op.index for op in c.region.ops] for c in proposed(graph, *claimed).candidates)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        # along the dataflow, through views, casts and broadcasts
        ("a = aten.exp(x)\nb = aten.mul(a, w)\ny = aten.neg(b)", [[0, 1, 2]]),
        ("a = aten.exp(x)\ny = aten.neg(aten.view(a, [512]))", [[0, 2]]),
        ("a = aten._to_copy(x, bf16)\ny = aten.neg(a)", [[0, 1]]),
        ("a = aten.exp(x)\nb = aten.exp(z)\ny = aten.add(a, b)", [[0, 1, 2]]),
        ("a = aten.exp(x)\nc = aten.mm(z, m)\ny = aten.neg(a)", [[0, 2]]),
        ("aten.add_(x, 1)\naten.mul_(x, 2)", [[0, 1]]),
        ("a = aten.exp(x)\nb = aten.exp(z)\ny = aten.cat([a, b], -1)", [[0, 1, 2]]),
        # normalisations: a reduction over rows and what broadcasts its result back
        ("r = aten.amax(x, [-1], True)\ny = aten.sub(x, r)", [[0, 1]]),
        ("a = aten.exp(x)\nr = aten.sum(a, [-1], True)\ny = aten.div(a, r)", [[0, 1, 2]]),
        ("a = aten.exp(x)\ny = aten.sum(a)", [[0, 1]]),
        ("a = aten.mul(x, 2)\ny = aten._softmax(a, -1, False)", [[0, 1]]),
        ("r = aten.linalg_vector_norm(x, 2, [-1], True)\ny = aten.div(x, r)", [[0, 1]]),
        # constants that nobody else reads
        ("a = aten.exp(x)\nc = aten.full([32, 16], 2.0)\ny = aten.mul(a, c)", [[0, 1, 2]]),
        ("a = aten.exp(x)\nc = aten.full([32, 16], 2.0)\ny = aten.mul(a, c)\nd = aten.mm(c, m)", [[0, 2]]),
        # a table made of nothing reads its range: a replacement needs a tensor
        ("r: i64[16] = aten.arange(16)\na = aten.neg(r)\nb = aten.div(a, 8)\ny = aten.exp(b)", [[1, 2, 3]]),
        # a reduction over columns ends the kernel for the elements it came from
        ("r = aten.amax(x, [0], True)\ny = aten.sub(x, r)", []),
        ("r = aten.sum(x)\ny = aten.sub(x, r)", []),
        # not along the dataflow
        ("a = aten.exp(x)\nb = aten.neg(x)", []),
        ("a = aten.exp(x)\nb = aten.neg(z)", []),
        ("a = aten.mm(x, m)\nb = aten.mm(a, m)", []),
        ("a = aten.exp(x)", []),
        ('a = aten.exp(x)\nphase("backward")\ny = aten.neg(a)', []),
        ("a = aten.exp(x)\ny: f32[32, 16] = mylib.secret(a)", []),
    ],
)
def test_chain(graph: str, expected: list[list[int]]) -> None:
    assert chains(graph) == expected


def test_thirteen_pairs_are_thirteen_chains_however_they_are_launched() -> None:
    first = [f"p{i}: f32[32]\na{i} = aten.clamp(p{i}, -1.0, 1.0)" for i in range(13)]
    second = [f"b{i} = aten.nan_to_num(a{i})" for i in range(13)]
    assert chains("\n".join(first + second)) == [[i, 13 + i] for i in range(13)]


def test_claimed_kernels_are_left_alone() -> None:
    graph = "a = aten.exp(x)\nb = aten.neg(a)\nc = aten.sin(b)\ny = aten.cos(c)"
    assert chains(graph) == [[0, 1, 2, 3]]
    assert chains(graph, 1) == [[2, 3]]
    assert chains(graph, 1, 2) == []


def test_a_residual_through_a_gemm_stays_apart_with_a_reason() -> None:
    proposals = proposed("a = aten.exp(x)\nb = aten.mm(a, m)\ny = aten.add(a, b)")
    assert proposals.candidates == []
    assert [r.reason for r in proposals.refusals] == ["a path leaves and comes back through aten.mm"]


def test_the_chain_goes_on_with_the_part_that_may_join() -> None:
    graph = "a = aten.exp(x)\nb = aten.neg(a)\nc = aten.mm(b, m)\nd = aten.add(b, c)\ny = aten.sin(d)"
    assert chains(graph) == [[0, 1], [3, 4]]


def test_a_host_check_is_refused() -> None:
    proposals = proposed("a = aten.eq(x, 0.0)\nb = aten.all(a)\naten._local_scalar_dense(b)")
    assert proposals.candidates == []
    assert [(r.reason, r.op.index) for r in proposals.refusals] == [
        ("its result only decides what the host does next", 2)
    ]


def test_a_chain_of_a_thousand_kernels_is_one_and_quick() -> None:
    lines = ["a0 = aten.exp(x)", *(f"a{i} = aten.sin(a{i - 1})" for i in range(1, 1000))]
    assert chains("\n".join(lines)) == [list(range(1000))]


def test_a_kernel_that_joins_a_long_chain_does_not_walk_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a chain of 300 kernels, and a count of who is asked for what runs before it
    text = HEAD + "v0 = aten.exp(x)\n" + "\n".join(f"v{i} = aten.exp(v{i - 1})" for i in range(1, 300))
    graph, asked, before = Canonical(parse(text)), [], Canonical.before
    monkeypatch.setattr(Canonical, "before", lambda self, op: asked.append(op) or before(self, op))

    (found,) = propose_chains(graph, rule(), set()).candidates

    assert len(found.region.ops) == 300
    assert len(asked) < 10 * 300
