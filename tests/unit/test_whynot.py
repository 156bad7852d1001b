"""Why a rule found nothing at a place."""

from __future__ import annotations

from functools import cache

import pytest

from auditor.config import Config, Suppression
from auditor.engine.rules import Rule, load_rules
from auditor.engine.whynot import MAX_LINES, explain, ops_at
from auditor.errors import AuditError
from auditor.graph.model import Kernel
from auditor.graph.ssa import parse
from auditor.selection import Selection

NORM = """
    x: f32[64, 256]
    w: f32[256]
    module("model.norm", "Norm")
    source("/home/me/model.py", 12, "forward")
    var = aten.mean(aten.pow(x, 2), [-1], True)
    inv = aten.rsqrt(aten.add(var, 1e-06))
    y = aten.mul(aten.mul(x, inv), w)
"""


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def lines(text: str, rule: str, at: str = "model.norm", **settings: object) -> list[str]:
    selection = Selection(Config(**settings), rules())  # type: ignore[arg-type]
    wanted = next(r for r in rules() if r.id == rule)
    said = explain(parse(text), wanted, at, chosen=selection.chosen, suppressed=selection.suppressed)
    return said.split("\n")


def test_found() -> None:
    assert lines(NORM, "FUS201") == [
        "FUS201 unfused-rms-norm at model.norm: 6 ops recorded, 6 kernels",
        "  found: a site of 6 ops, op 0 aten.pow to op 5 aten.mul; it is in the findings",
    ]


def test_another_rule_took_it_and_why() -> None:
    added = NORM.replace("    var =", "    r: f32[64, 256]\n    x = aten.add(x0, r)\n    var =").replace(
        "x: ", "x0: ", 1
    )
    # THEN a rule that yields says so
    [_, line] = lines(added, "FUS201")
    assert line.endswith("FUS202 unfused-add-rms-norm took aten.pow (op 1): FUS201 leaves such kernels to FUS202")
    # AND between equals the bytes decide
    gate = (
        'module("m", "M")\ng: f32[64]\nu: f32[64]\nw: f32[64]\na = aten.silu(g)\nh = aten.mul(a, u)\nt = aten.mul(h, w)'
    )
    gated = next(rule for rule in rules() if rule.id == "FUS206")
    assert "FUS101 takes only what no other rule claims" in lines(gate, "FUS101", "m")[1]
    assert gated.id in lines(gate, "FUS101", "m")[1]


def test_a_kernel_that_is_fused_already_is_named() -> None:
    graph = parse(NORM)
    graph.ops[0].kernels = (Kernel("triton_poi_fused_pow_0", 0.0, 1.0),)
    rule = next(r for r in rules() if r.id == "FUS201")
    [_, line] = explain(graph, rule, "model.norm", chosen=rules()).split("\n")
    assert line == "  matched, but aten.pow (op 0) ran as a fused kernel already: Inductor: pow"


def test_refused_with_reason_op_and_source() -> None:
    escaping = NORM + "    z = aten.exp(inv)\n    return y, z\n"
    [_, line] = lines(escaping, "FUS201")
    assert line == "  refused: inv escapes to aten.exp; op 6 aten.exp (/home/me/model.py:12)"


def test_what_is_found_does_not_hide_what_is_refused() -> None:
    # GIVEN two norms of one module class, an intermediate of one of which is read elsewhere
    second = NORM.replace("model.norm", "model.last").replace("x: f32[64, 256]", "v: f32[64, 256]")
    second = second.replace("(x, ", "(v, ").replace("w: f32[256]", "u: f32[256]").replace(", w)", ", u)")
    for name in ("var", "inv", "y"):
        second = second.replace(f"{name} =", f"{name}2 =").replace(f"({name},", f"({name}2,")
    second = second.replace(", inv)", ", inv2)")
    said = lines(f"{NORM}{second}    z = aten.exp(inv2)\n    return y, y2, z\n", "FUS201", "Norm")
    # THEN both are told
    assert said[1:] == [
        "  found: a site of 6 ops, op 0 aten.pow to op 5 aten.mul; it is in the findings",
        "  refused: inv escapes to aten.exp; op 12 aten.exp (/home/me/model.py:12)",
    ]


SUPPRESS = [Suppression(rule="FUS2", modules="model.*", reason="frozen")]


def test_a_suppressed_site_says_for_what_reason() -> None:
    assert lines(NORM, "FUS201", suppress=SUPPRESS)[1:] == [
        "  suppressed: frozen (pyproject.toml); a site of 6 ops, op 0 aten.pow to op 5 aten.mul",
    ]
    elsewhere = [Suppression(rule="FUS201", modules="vision", reason="frozen")]
    assert lines(NORM, "FUS201", suppress=elsewhere)[1].startswith("  found: a site of 6 ops")


def test_a_suppressed_site_keeps_its_kernels_from_other_rules() -> None:
    [_, line] = lines(NORM, "FUS101", suppress=SUPPRESS)
    assert line.startswith("  matched, but FUS201 unfused-rms-norm took aten.pow (op 0): FUS101 takes ")
    assert line.endswith("only what no other rule claims, suppressed: frozen")


@pytest.mark.parametrize("settings", [{"ignore": ["FUS201"]}, {"select": ["FUS1"]}, {"ignore": ["unfused-rms-norm"]}])
def test_an_ignored_rule_says_so_and_what_it_would_do(settings: dict[str, list[str]]) -> None:
    [_, ignored, would] = lines(NORM, "FUS201", **settings)
    assert ignored == "  the rule is ignored: the run's settings did not choose it"
    assert would.startswith("  matched, but FUS101 unfused-elementwise-chain took ")
    [_, ignored, would] = lines(NORM, "FUS201", ignore=["FUS201", "FUS101"])
    assert would == "  it would match: a site of 6 ops, op 0 aten.pow to op 5 aten.mul"


def test_a_rule_that_is_ignored_takes_nothing_from_others() -> None:
    added = NORM.replace("    var =", "    r: f32[64, 256]\n    x = aten.add(x0, r)\n    var =").replace(
        "x: ", "x0: ", 1
    )
    assert lines(added, "FUS201", ignore=["FUS202"])[1].startswith("  found: a site of 6 ops")


def test_a_chain_is_found() -> None:
    chain = 'module("m", "M")\nx: f32[64]\na = aten.exp(x)\ny = aten.neg(a)'
    found = lines(chain, "FUS101", "m")
    assert found[1].startswith("  found: a site of 2 ops")


def test_a_missing_op() -> None:
    [_, line] = lines(NORM.replace("aten.rsqrt", "aten.exp"), "FUS201")
    assert line.startswith("  no match: the closest form needs ")
    assert "aten.rsqrt" in line
    assert line.endswith("and no such op was recorded here")


def test_a_broken_edge_is_named_at_the_op_before_it() -> None:
    # GIVEN all ops of a norm, but the mean is taken of another tensor
    broken = NORM.replace("aten.mean(aten.pow(x, 2), [-1], True)", "aten.mean(x, [-1], True)").replace(
        "    inv", "    sq = aten.pow(x, 2)\n    inv"
    )
    [_, line] = lines(broken, "FUS201")
    # THEN the square is where it still agreed
    assert "up to `sq` = op 1 aten.pow; then `var` = aten.mean of those values is not there" in line


def test_a_broken_edge_at_the_end() -> None:
    broken = NORM.replace("aten.mul(x, inv)", "aten.mul(z, inv)").replace(
        "    module(", "    z: f32[64, 256]\n    module("
    )
    [_, line] = lines(broken, "FUS201")
    assert "op 3 aten.rsqrt" in line
    assert line.endswith("of those values is not there")


def test_chains() -> None:
    alone = 'module("m", "M")\nx: f32[64]\nw: f32[64, 64]\nq: f32[2, 64]\na = aten.exp(x)\ny = aten.mm(q, w)'
    assert lines(alone, "FUS101", "m")[1] == (
        "  op 0 aten.exp stands alone: no neighbour along the dataflow is a memory-bound op over the same elements"
    )
    gemm = 'module("m", "M")\nw: f32[64, 64]\nq: f32[2, 64]\ny = aten.mm(q, w)'
    assert lines(gemm, "FUS101", "m")[1] == "  no memory-bound op that could join a chain was recorded here"


def test_siblings() -> None:
    text = 'module("m", "M")\nw: f32[64, 64]\nq: f32[2, 64]\ny = aten.mm(q, w)'
    assert lines(text, "FUS501", "m")[1] == "  no two GEMMs here read the same activations with weights of their own"


def test_many_places_are_cut() -> None:
    text = 'module("m", "M")\n' + "\n".join(f"x{i}: f32[64]\na{i} = aten.exp(x{i})" for i in range(20))
    shown = lines(text, "FUS101", "m")
    assert len(shown) == 1 + MAX_LINES + 1
    assert shown[-1] == f"  … and {20 - MAX_LINES} more"


# ── places ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "at",
    [
        "model.norm", "model", "Norm", "model.*", "*.norm", "model.py:12", "me/model.py:12", "/home/me/model.py:12",
        "me\\model.py:12", "12",
    ],
)  # fmt: skip
def test_ways_to_name_a_place(at: str) -> None:
    assert len(ops_at(parse(NORM), at)) == 6


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("mode", "no op was recorded at 'mode'; give a module, its class, or file.py:LINE; modules: model.norm"),
        ("model.nor", "modules: model.norm"),
        ("odel.py:12", "lines with ops: /home/me/model.py:12"),
        ("model.py:13", "file.py:LINE; lines with ops: /home/me/model.py:12"),
        ("", "modules: model.norm"),
    ],
)
def test_places_without_ops(at: str, message: str) -> None:
    with pytest.raises(AuditError) as error:
        explain(parse(NORM), rules()[0], at, chosen=rules())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("at", ["op 2", "op 2 aten.add"])
def test_an_op_of_no_module_is_named_as_reports_do(at: str) -> None:
    assert [op.index for op in ops_at(parse(NORM), at)] == [2]


@pytest.mark.parametrize("at", ["op 2 aten.mul", "op 6", "op -1", "op ²", "op", "op 99999999999"])
def test_ops_that_there_are_not(at: str) -> None:
    with pytest.raises(AuditError, match="no op was recorded at"):
        ops_at(parse(NORM), at)


def test_runs_without_modules_or_lines() -> None:
    plain = parse("x: f32[4]\ny = aten.neg(x)")
    for at, what in (("m", "this run has no modules"), ("a.py:1", "this run has no lines with ops")):
        with pytest.raises(AuditError, match=what):
            ops_at(plain, at)
