"""One function in many spellings is one site of one rule; what only looks like it is none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count, product

import pytest

from auditor.engine.claims import claim
from auditor.engine.rules import Rule, load_rules
from auditor.graph.ssa import parse

PICK = count()


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def found(text: str) -> list[tuple[str, int]]:
    """Rule and kernels of every site, the catch-all's left out."""
    sites = claim(parse(text), rules()).sites
    return [(site.rule.id, site.region.kernels) for site in sites if site.rule.id != "FUS101"]


def check_all(programs: Iterator[str], rule: str, kernels_besides: int = 0) -> int:
    """Each program is one site of ``rule`` over all of its kernels; how many there were."""
    seen = set()
    for text in programs:
        if text not in seen:
            seen.add(text)
            assert found(text) == [(rule, parse(text).kernels - kernels_besides)], text
    return len(seen)


def turn(*choices: str) -> str:
    """One of the choices, each as often as the others: covers what a full product would be too long for."""
    return choices[next(PICK) * 7919 // 13 % len(choices)]


# ── RMS norm ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SQUARE = ("aten.pow({0}, 2)", "aten.pow({0}, 2.0)", "aten.mul({0}, {0})", "aten.square({0})")
MEAN = (
    "aten.mean({0}, [-1], True)",
    "aten.mean({0}, [2], True)",
    "aten.div(aten.sum({0}, [-1], True), 256)",
    "aten.mul(aten.sum({0}, [2], True), 0.00390625)",
    "aten.unsqueeze(aten.mean({0}, [-1]), -1)",
)
EPS = ("aten.add({0}, 1e-06)", "aten.add(eps, {0})", "aten.add({0}, eps)")
INVERSE = {
    "rsqrt": "aten.rsqrt({0})",
    "one over the root": "aten.reciprocal(aten.sqrt({0}))",
    "one over the root, as Python writes it": "aten.mul(aten.reciprocal(aten.sqrt({0})), 1)",
    "power -0.5": "aten.pow({0}, -0.5)",
    "division by the root": "aten.sqrt({0})",
    "division by power 0.5": "aten.pow({0}, 0.5)",
}
WEIGHT = (
    "",
    "aten.mul(w, {0})",
    "aten.mul({0}, w)",
    "aten.mul({0}, aten.add(w, 1.0))",
    "aten.mul(aten.add(w, 1), {0})",
)
CASTS = ("none", "back before the weight", "back after the weight")


def rms_norms(inverse: str) -> Iterator[str]:
    for square, weight, casts in product(SQUARE, WEIGHT, CASTS):
        mean = turn(*MEAN)
        low = casts != "none"
        lines = [f"x: {'bf16' if low else 'f32'}[2, 64, 256]", "eps: f32"]
        lines.append(f"w: {'bf16' if casts == 'back before the weight' else 'f32'}[256]")
        x = "x"
        if low:
            lines.append("x32 = aten._to_copy(x, f32)")
            x = "x32"
        lines.append("sq = " + square.format(x))
        lines.append("ve = " + turn(*EPS).format(mean.format("sq")))
        lines.append("inv = " + INVERSE[inverse].format("ve"))
        divided = inverse.startswith("division")
        scaled = f"aten.div({x}, inv)" if divided else turn(f"aten.mul({x}, inv)", f"aten.mul(inv, {x})")
        lines.append("y0 = " + scaled)
        if casts == "back before the weight":
            lines.append("y1 = aten._to_copy(y0, bf16)")
        last = "y1" if casts == "back before the weight" else "y0"
        lines.append(turn(f"v = aten.view({last}, [128, 256])", f"v = aten.alias({last})"))
        if weight:
            lines.append("y2 = " + weight.format("v"))
        if casts == "back after the weight":
            lines.append(f"y3 = aten._to_copy({'y2' if weight else 'v'}, bf16)")
        yield "\n".join(lines)


@pytest.mark.parametrize("inverse", INVERSE)
def test_every_spelling_of_an_rms_norm(inverse: str) -> None:
    assert check_all(rms_norms(inverse), "FUS201") == len(SQUARE) * len(WEIGHT) * len(CASTS)


@pytest.mark.parametrize("inverse", ["rsqrt", "division by the root"])
def test_every_spelling_of_an_rms_norm_after_a_residual_add(inverse: str) -> None:
    texts = (
        t.replace("x: bf16", "r: bf16[2, 64, 256]\nh: bf16").replace("x: f32", "r: f32[2, 64, 256]\nh: f32")
        for t in rms_norms(inverse)
    )
    added = (t.replace("eps: f32\n", f"eps: f32\nx = aten.add({turn('r, h', 'h, r')})\n", 1) for t in texts)
    assert check_all(added, "FUS202") == len(SQUARE) * len(WEIGHT) * len(CASTS)


# ── layer norm ───────────────────────────────────────────────────────────────────────────────────────────────────────

VARIANCE = {
    "mean of squares": "{m}\nd = aten.sub(x, m)\nv = " + MEAN[0].format("{sq}"),
    "sum of squares over n": "{m}\nd = aten.sub(x, m)\nv = aten.div(aten.sum({sq}, [-1], True), 256)",
    "var": "{m}\nd = aten.sub(x, m)\nv = aten.var(x, [-1], 0, True)",
    "var first, unbiased": "v = aten.var(x, [-1], 1, True)\n{m}\nd = aten.sub(x, m)",
    "var_mean": "v, m = aten.var_mean(x, [-1], 0, True)\nd = aten.sub(x, m)",
}
AFFINE = (
    "",
    "y = aten.mul(n, w)",
    "y = aten.add(aten.mul(w, n), b)",
    "y = aten.add(b, aten.mul(n, w))",
    "y = aten.add(n, b)",
)


def layer_norms(variance: str) -> Iterator[str]:
    for square, inverse, affine in product(SQUARE, INVERSE, AFFINE):
        m = "m = " + turn("aten.mean(x, [-1], True)", "aten.div(aten.sum(x, [-1], True), 256)")
        lines = ["x: f32[2, 64, 256]", "w: f32[256]", "b: f32[256]", "eps: f32"]
        lines += VARIANCE[variance].format(m=m, sq=square.format("d")).splitlines()
        lines.append("inv = " + INVERSE[inverse].format(turn(*EPS).format("v")))
        divided = inverse.startswith("division")
        lines.append("n = " + ("aten.div(d, inv)" if divided else turn("aten.mul(d, inv)", "aten.mul(inv, d)")))
        yield "\n".join([*lines, affine])


@pytest.mark.parametrize("variance", VARIANCE)
def test_every_spelling_of_a_layer_norm(variance: str) -> None:
    assert check_all(layer_norms(variance), "FUS203") >= len(INVERSE) * len(AFFINE)


# ── rotary embedding ─────────────────────────────────────────────────────────────────────────────────────────────────

HALVES = {
    "slices": "x1 = aten.slice(q, -1, 0, 32)\nx2 = aten.slice(q, 3, 32, 9223372036854775807)",
    "split": "x1, x2 = aten.split(q, 32, -1)",
    "chunk": "x1, x2 = aten.chunk(q, 2, -1)",
    "split with sizes": "x1, x2 = aten.split_with_sizes(q, [32, 32], 3)",
    "unbind of pairs": "p = aten.view(q, [2, 4, 64, 2, 32])\nx1, x2 = aten.unbind(p, -2)",
}


def rotations(halves: str) -> Iterator[str]:
    head = f"q: f32[2, 4, 64, 64]\ncos: f32[1, 1, 64, 64]\nsin: f32[1, 1, 64, 64]\n{HALVES[halves]}"
    products = product(("q, cos", "cos, q"), ("r, sin", "sin, r"), ("a, c", "c, a"), (True, False))
    for left, right, total, early in products:
        turned = "r = aten.cat([aten.neg(x2), x1], -1)"
        first = f"a = aten.mul({left})"
        body = [first, turned] if early else [turned, first]
        yield "\n".join([head, *body, f"c = aten.mul({right})", f"y = aten.add({total})"])


def separate_halves(halves: str) -> Iterator[str]:
    head = f"q: f32[2, 4, 64, 64]\ncos: f32[1, 1, 64, 32]\nsin: f32[1, 1, 64, 32]\n{HALVES[halves]}"
    for a, b, c, d in product(
        ("x1, cos", "cos, x1"), ("x2, sin", "sin, x2"), ("x2, cos", "cos, x2"), ("x1, sin", "sin, x1")
    ):
        o1 = f"o1 = aten.sub(aten.mul({a}), aten.mul({b}))"
        o2 = f"o2 = aten.add({turn(f'aten.mul({c}), aten.mul({d})', f'aten.mul({d}), aten.mul({c})')})"
        yield "\n".join([head, *turn(f"{o1}|{o2}", f"{o2}|{o1}").split("|"), "y = aten.cat([o1, o2], -1)"])


@pytest.mark.parametrize("halves", HALVES)
def test_every_spelling_of_a_rotation(halves: str) -> None:
    if halves != "unbind of pairs":  # halves of another shape than q can only be rotated one by one
        assert check_all(rotations(halves), "FUS207") == 16
    assert check_all(separate_halves(halves), "FUS207") >= 16


# ── gates ────────────────────────────────────────────────────────────────────────────────────────────────────────────

GATES = {
    "silu": "a = aten.silu(g)",
    "silu by hand": "a = aten.mul(g, aten.sigmoid(g))",
    "silu by hand, sigmoid first": "a = aten.mul(aten.sigmoid(g), g)",
    "silu in place": "g0 = aten.clone(g)\na = aten.silu_(g0)",
    "gelu": "a = aten.gelu(g)",
    "gelu, tanh": "a = aten.gelu(g, 'tanh')",
    "relu": "a = aten.relu(g)",
    "clamp at 0": "a = aten.clamp_min(g, 0)",
    "sigmoid": "a = aten.sigmoid(g)",
    "silu in f64": "a = aten.silu(aten._to_copy(g, f64))",
}


@pytest.mark.parametrize("gate", GATES)
def test_every_spelling_of_a_gate(gate: str) -> None:
    sources = {
        "two tensors": "g: f32[2, 64, 512]\nu: f32[2, 64, 512]",
        "halves": "h: f32[2, 64, 1024]\ng, u = aten.split(h, 512, -1)",
        "halves the other way": "h: f32[2, 64, 1024]\nu, g = aten.chunk(h, 2, -1)",
        "another shape": "g: f32[2, 64, 512]\nu0: f32[128, 512]\nu = aten.view(u0, [2, 64, 512])",
    }
    programs = (f"{s}\n{GATES[gate]}\ny = aten.mul({o})" for s in sources.values() for o in ("a, u", "u, a"))
    copies = 1 if "in place" in gate else 0
    for text in programs:
        assert found(text) in ([("FUS206", parse(text).kernels)], [("FUS206", parse(text).kernels - copies)]), text


# ── softmax ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def softmaxes() -> Iterator[str]:
    scale = ("", "a = aten.mul(s, 0.125)", "a = aten.div(s, 8.0)", "a = aten.div(s, 8)", "a = aten.mul(s, t)")
    mask = (
        "",
        "b = aten.add({0}, m)",
        "b = aten.add(m, {0})",
        "b = aten.masked_fill({0}, k, -65504.0)",
        "b = aten.add(aten.add({0}, m), m2)",
        "b = aten.where(k, {0}, fill)",
    )
    softmax = (
        "p = aten._softmax({0}, -1, False)",
        "p = aten._softmax({0}, 3, False)",
        "p = aten._safe_softmax({0}, -1)",
    )
    head = ["s: f32[2, 4, 64, 64]", "t: f32", "m: f32[1, 1, 64, 64]", "m2: f32[2, 1, 64, 64]", "fill: f32"]
    for scaled, masked, soft in product(scale, mask, softmax):
        if scaled or masked:
            lines = [*head, "k: bool[1, 1, 64, 64]", scaled, masked.format("a" if scaled else "s")]
            yield "\n".join([*lines, soft.format("b" if masked else "a")])


def test_every_spelling_of_a_scaled_masked_softmax() -> None:
    assert check_all(softmaxes(), "FUS204") == 5 * 6 * 3 - 3


# ── what only looks alike ────────────────────────────────────────────────────────────────────────────────────────────

RMS = """
    x: f32[2, 64, 256]
    w: f32[256]
    var = aten.mean(aten.pow(x, 2), [-1], True)
    inv = aten.rsqrt(aten.add(var, 1e-06))
    y = aten.mul(aten.mul(x, inv), w)
"""
SQUARE_RMS = RMS.replace("[2, 64, 256]", "[256, 256]").replace("aten.pow(x, 2)", "{0}")
ROPE = """
    q: f32[2, 4, 64, 64]
    cos: f32[1, 1, 64, 64]
    sin: f32[1, 1, 64, 64]
    x1, x2 = aten.split(q, 32, -1)
    r = aten.cat([aten.neg(x2), x1], -1)
    y = aten.add(aten.mul(q, cos), aten.mul(r, sin))
"""
SOFTMAX = """
    s: f32[2, 4, 64, 64]
    m: f32[1, 1, 64, 64]
    p = aten._softmax(aten.add(aten.mul(s, 0.125), m), -1, False)
"""
GATE = """
    g: f32[64, 512]
    u: f32[64, 512]
    y = aten.mul(aten.silu(g), u)
"""

NEAR_MISSES = {
    "mean over another dimension": RMS.replace("[-1]", "[1]"),
    "mean over two dimensions": RMS.replace("[-1]", "[1, 2]"),
    "mean over everything": RMS.replace("2), [-1], True", "2)"),
    "sum without the division": RMS.replace("aten.mean", "aten.sum"),
    "maximum instead of the mean": RMS.replace("aten.mean", "aten.amax"),
    "cube instead of the square": RMS.replace("x, 2", "x, 3"),
    "square root instead of its inverse": RMS.replace("rsqrt", "sqrt"),
    "no eps": RMS.replace("aten.add(var, 1e-06)", "var"),
    "the sum is divided by another number": RMS.replace("aten.mean", "aten.sum").replace(
        "(var,", "(aten.div(var, 255),"
    ),
    "eps is scaled": RMS.replace("aten.add(var, 1e-06)", "aten.add(var, 1e-06, 2)").replace("1e-06", "var"),
    "product of two tensors": "    z: f32[2, 64, 256]" + RMS.replace("aten.pow(x, 2)", "aten.mul(x, z)"),
    "another tensor is scaled": "    z: f32[2, 64, 256]" + RMS.replace("aten.mul(x, inv)", "aten.mul(z, inv)"),
    "the mean is subtracted in the variance alone": RMS.replace(
        "pow(x, 2)", "pow(aten.sub(x, aten.mean(x, [-1], True)), 2)"
    ),
    "a tensor times its transpose": SQUARE_RMS.format("aten.mul(x, aten.t(x))"),
    "halves swapped": ROPE.replace("[aten.neg(x2), x1]", "[x1, aten.neg(x2)]"),
    "the first half negated": ROPE.replace("[aten.neg(x2), x1]", "[x2, aten.neg(x1)]"),
    "nothing negated": ROPE.replace("aten.neg(x2)", "aten.abs(x2)"),
    "the first half negated, in its own place": ROPE.replace("[aten.neg(x2), x1]", "[aten.neg(x1), x2]"),
    "one half twice": ROPE.replace("[aten.neg(x2), x1]", "[aten.neg(x1), x1]"),
    "two quarters": ROPE.replace("x1, x2 = aten.split(q, 32, -1)", "x1, x2, x3, x4 = aten.split(q, 16, -1)").replace(
        "[aten.neg(x2), x1]", "[aten.neg(x2), x1, x3, x4]"
    ),
    "unequal parts": ROPE.replace("split(q, 32", "split_with_sizes(q, [16, 48]"),
    "products subtracted": ROPE.replace("y = aten.add", "y = aten.sub"),
    "softmax over another dimension": SOFTMAX.replace("-1, False", "1, False"),
    "log-softmax": SOFTMAX.replace("_softmax", "_log_softmax"),
    "scores and mask subtracted": SOFTMAX.replace("aten.add(aten.mul(s, 0.125), m)", "aten.sub(s, m)"),
    "gate of another activation": GATE.replace("silu", "sin"),
    "gate added": GATE.replace("aten.mul(", "aten.add(", 1),
    "gate of a row": GATE.replace("u: f32[64, 512]", "u: f32[512]"),
}  # fmt: skip


def test_the_near_misses_miss_by_one_change() -> None:
    assert found(RMS) == [("FUS201", 6)]
    assert found(SQUARE_RMS.format("aten.mul(x, x)")) == [("FUS201", 6)]
    assert found(ROPE) == [("FUS207", 5)]
    assert found(SOFTMAX) == [("FUS204", 3)]
    assert found(GATE) == [("FUS206", 2)]


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_what_only_looks_alike_is_no_site(miss: str) -> None:
    assert NEAR_MISSES[miss] not in (RMS, ROPE, SOFTMAX, GATE)
    assert found(NEAR_MISSES[miss]) == []


def test_rows_scaled_by_the_norms_of_columns_are_no_site() -> None:
    assert found(SQUARE_RMS.format("aten.pow(aten.t(x), 2)")) == []


@pytest.mark.parametrize("products", ["aten.mul(q, cos), aten.mul(r, sin)", "aten.mul(sin, r), aten.mul(cos, q)"])
def test_the_halves_of_another_tensor_are_no_rotation(products: str) -> None:
    rotation = ROPE.replace("aten.mul(q, cos), aten.mul(r, sin)", products)
    assert found(rotation) == [("FUS207", 5)]
    assert found("    z: f32[2, 4, 64, 64]" + rotation.replace("split(q", "split(z")) == []
