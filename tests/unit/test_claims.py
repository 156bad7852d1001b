"""Who gets which kernels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from auditor.engine.claims import claim, turns
from auditor.engine.rules import Rule, load_rules
from auditor.graph.model import ACCUMULATE
from auditor.graph.ssa import parse

ADD_NORM = """
    r: f32[64, 256]
    h: f32[64, 256]
    w: f32[256]
    s = aten.add(r, h)
    var = aten.mean(aten.pow(s, 2), [-1], True)
    y = aten.mul(aten.mul(s, aten.rsqrt(aten.add(var, 1e-06))), w)
"""


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def sites(text: str, chosen: tuple[Rule, ...] | None = None) -> list[tuple[str, int]]:
    return [(s.rule.id, s.region.kernels) for s in claim(parse(text), chosen or rules()).sites]


def without(*ids: str) -> tuple[Rule, ...]:
    return tuple(r for r in rules() if r.id not in ids)


def test_the_larger_site_wins_and_the_smaller_rule_takes_over_without_it() -> None:
    assert sites(ADD_NORM) == [("FUS202", 7)]
    assert sites(ADD_NORM, without("FUS202")) == [("FUS201", 6)]
    assert sites(ADD_NORM, without("FUS202", "FUS201")) == [("FUS101", 7)]


def test_sites_come_in_execution_order() -> None:
    text = "    g: f32[64, 256]\n    u: f32[64, 256]\n    a = aten.mul(aten.silu(g), u)" + ADD_NORM
    assert [rule for rule, _ in sites(text)] == ["FUS206", "FUS202"]


def test_an_epilogue_yields_to_the_norm_that_wants_its_add() -> None:
    text = ADD_NORM.replace("s = aten.add(r, h)", "m: f32[256, 256]\n    s = aten.add(r, aten.mm(h, m))")
    assert sites(text) == [("FUS202", 7)]
    assert sites(text, without("FUS202")) == [("FUS301", 2), ("FUS201", 6)]


def test_a_sibling_goes_to_its_own_epilogue_where_that_saves_more_and_the_others_are_packed() -> None:
    # GIVEN three layers on one input, one of them with an activation: as wide as the input, it saves twice its bytes
    text = """
        x: f32[128, 256]
        wq: f32[256, 256]
        wk: f32[256, 256]
        wg: f32[256, 256]
        q = aten.mm(x, wq)
        k = aten.mm(x, wk)
        g = aten.mm(x, wg)
        y = aten.gelu(g)
        return q, k, y
    """
    assert sites(text) == [("FUS501", 2), ("FUS301", 2)]
    assert sites(text, without("FUS301")) == [("FUS501", 3)]
    # AND where it is so narrow that the input's bytes weigh more, all are packed
    assert sites(text.replace("wg: f32[256, 256]", "wg: f32[256, 32]")) == [("FUS501", 3)]


def test_what_adds_to_a_parameters_gradient_is_no_epilogue() -> None:
    graph = parse(
        """
        d: f32[64, 128]
        x: f32[128, 256]
        total: f32[64, 256]
        g = aten.mm(d, x)
        sum = aten.add(total, g)
        """
    )
    assert [s.rule.id for s in claim(graph, rules()).sites] == ["FUS301"]
    graph.ops[-1].scope = ACCUMULATE
    claims = claim(graph, rules())
    assert claims.sites == []
    assert [r.reason for _, r in claims.refused] == [
        "aten.add adds to a parameter's gradient, which autograd does apart"
    ]


def test_a_smaller_form_gets_its_chance_where_the_larger_one_lost() -> None:
    # GIVEN a scaled softmax whose scale a gate needs too
    text = """
        q: f32[8, 64, 32]
        k: f32[8, 32, 64]
        m: f32[64, 64]
        s = aten.bmm(q, k)
        a = aten.mul(s, 0.125)
        b = aten.add(a, m)
        p = aten._softmax(b, -1, False)
        z = aten.neg(a)
        return p, z
    """
    # THEN the mask and the softmax are still one site
    assert ("FUS204", 2) in sites(text)


def test_a_suppressed_site_is_nobody_elses() -> None:
    claims = claim(parse(ADD_NORM), rules(), keep=lambda candidate: candidate.rule.id != "FUS202")
    assert claims.sites == []


def test_refusals_of_kernels_that_went_elsewhere_are_not_reported() -> None:
    text = "g: f32[64]\nu: f32[64]\na = aten.silu(g)\ny = aten.mul(a, u)\nz = aten.neg(a)\nreturn y, z"
    alone = claim(parse(text), [r for r in rules() if r.id == "FUS206"])
    assert [refusal.reason for _, refusal in alone.refused] == ["act escapes to aten.neg"]
    assert [s.rule.id for s in claim(parse(text), rules()).sites] == ["FUS101"]


def test_turns_respect_who_yields_and_put_chains_last() -> None:
    order = [{rule.id for rule in turn} for turn in turns(rules())]
    place = {rule: i for i, turn in enumerate(order) for rule in turn}
    for rule in rules():
        assert all(place[rule.id] > place[other] for other in rule.yields_to)
    assert order[-3:] == [{"FUS101"}, {"FUS102"}, {"FUS701"}]  # these need what is left
    assert sorted(place) == sorted(r.id for r in rules())


def test_turns_survive_a_circle_of_yields_and_absent_rules() -> None:
    a, b = (r for r in rules() if r.id in ("FUS201", "FUS202"))
    circle = [replace(a, yields_to=(b.id,)), replace(b, yields_to=(a.id, "FUS999"))]
    assert sorted(r.id for turn in turns(circle) for r in turn) == ["FUS201", "FUS202"]


def test_no_rules_and_no_ops() -> None:
    assert claim(parse(ADD_NORM), []).sites == []
    assert claim(parse("x: f32[4]"), rules()).sites == []
