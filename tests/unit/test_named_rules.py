"""Rules beside each other: which of them takes what several match, and what would remain of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from auditor.devices.describe import Device
from auditor.engine.assemble import assemble
from auditor.engine.claims import Claims, claim
from auditor.engine.rules import Rule, load_rules
from auditor.graph.ssa import parse

NORM = """
w: f32[16]
b: f32[16]
rm: f32[16]
rv: f32[16]
"""


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


def claimed(text: str) -> Claims:
    return claim(parse(text), rules())


def taken(text: str) -> list[tuple[str, list[int]]]:
    """Each site's rule and the ops that it covers, views not counted."""
    return [(site.rule.id, [op.index for op in site.region.ops]) for site in claimed(text).sites]


def refused_by(claims: Claims, ids: Sequence[str]) -> list[str]:
    return [refusal.reason for rule, refusal in claims.refused if rule.id in ids]


def test_a_norm_takes_the_add_that_a_convolution_could_have_taken() -> None:
    # GIVEN a residual branch that ends in a batch norm, and a shortcut that is a convolution
    text = f"""{NORM}
x: f32[4, 16, 32, 32]
z: f32[4, 16, 32, 32]
k: f32[16, 16, 1, 1]
n, mean, inv = aten.native_batch_norm(x, w, b, rm, rv, True, 0.1, 1e-05)
short = aten.convolution(z, k, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
s = aten.add_(n, short)
y = aten.relu_(s)
return y
"""
    # THEN the named rule has all three, and neither chains nor epilogues have any
    assert taken(text) == [("FUS209", [0, 2, 3])]


def test_of_two_norms_that_are_added_the_nearer_one_adds() -> None:
    # GIVEN a shortcut with a norm of its own, computed first, as in ResNet's first block of a stage
    text = f"""{NORM}
x: f32[4, 16, 32, 32]
k: f32[16, 16, 1, 1]
short, mean, inv = aten.native_batch_norm(x, w, b, rm, rv, True, 0.1, 1e-05)
h = aten.convolution(x, k, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
n, mean2, inv2 = aten.native_batch_norm(h, w, b, rm, rv, True, 0.1, 1e-05)
s = aten.add_(n, short)
y = aten.relu_(s)
return y
"""
    # THEN the norm beside the add is the one, although both would save the same
    assert taken(text) == [("FUS209", [2, 3, 4])]


BATCH_NORM_OF_THREE = f"""
device("hip")
{NORM}
x: f32[4, 16, 32, 32]
n: f32[4, 16, 32, 32]
mean: f32[16]
inv: f32[16]
n, mean, inv = aten.miopen_batch_norm(x, w, b, rm, rv, True, 0.1, 1e-05, kernels=3)
y = aten.relu_(n)
return y
"""
SPLIT_GEMM = """
device("hip")
x: f32[64, 256]
w: f32[256, 64]
g = aten.mm(x, w, kernels=2)
y = aten.relu(g)
return y
"""
LOSS_OF_MANY = """
device("hip")
z: f32[32, 100]
t: f32[32, 100]
loss: f32
loss = aten.binary_cross_entropy_with_logits(z, t, kernels=14)
return loss
"""


@pytest.mark.parametrize(
    ("text", "rule", "kernels", "after"),
    [(BATCH_NORM_OF_THREE, "FUS209", 4, 3), (SPLIT_GEMM, "FUS301", 3, 2), (LOSS_OF_MANY, "FUS205", 14, 1)],
    ids=["passes of a norm stay", "parts of a GEMM stay", "a loss by parts is one"],
)
def test_kernels_of_a_native_op_that_are_not_what_is_fused_remain(
    text: str, rule: str, kernels: int, after: int
) -> None:
    # GIVEN an op that launches several kernels
    graph = parse(text)

    # WHEN it is audited
    parts = assemble(graph, claim(graph, rules()), rules(), Device(name="a GPU", kind="hip"))

    # THEN only those are counted as avoidable that a fused kernel does away with
    (finding,) = parts.findings
    assert (finding.rule, finding.kernels, finding.kernels_after) == (rule, kernels, after)
    assert parts.totals.avoidable_kernels == kernels - after


def test_the_add_before_a_norm_is_the_norms_and_not_the_dropouts() -> None:
    # GIVEN a block that drops out, adds, and normalises; and an add that no norm reads
    text = """
x: f32[64, 256]
r: f32[64, 256]
h: f32[64, 256]
w: f32[256]
b: f32[256]
d, mask = aten.native_dropout(x, 0.1, True)
s = aten.add(r, d)
y, mean, rstd = aten.native_layer_norm(s, [256], w, b, 1e-05)
e, mask2 = aten.native_dropout(h, 0.1, True)
z = aten.add(s, e)
return y, z
"""
    assert taken(text) == [("FUS203", [1, 2]), ("FUS208", [3, 4])]


ATTENTION = """
q: f32[8, 64, 32]
k: f32[8, 32, 64]
v: f32[8, 64, 32]
rows: i64[64, 1]
columns: i64[1, 64]
slopes: f32[8, 1, 1]
distance = aten.sub(columns, rows)
bias = aten.mul(slopes, distance)
s = aten.bmm(q, k)
a = aten.add(aten.mul(s, 0.17), bias)
p = aten._softmax(a, -1, False)
o = aten.bmm(p, v)
"""


def test_a_bias_computed_for_one_attention_belongs_to_it_and_a_shared_one_does_not() -> None:
    assert [rule for rule, _ in taken(ATTENTION + "return o")] == ["FUS602"]
    assert "FUS601" in [rule for rule, _ in taken(ATTENTION + "return o, bias")]


def test_a_soft_cap_takes_its_softmax_and_its_scores_from_other_rules() -> None:
    text = """
q: bf16[8, 64, 32]
k: bf16[8, 32, 64]
v: bf16[8, 64, 32]
mask: bf16[1, 64, 64]
s = aten.mul(aten.bmm(q, k), 0.17)
t = aten.mul(aten.tanh(aten.div(s, 50.0)), 50.0)
m = aten.add(t, mask)
wide = aten._to_copy(m, f32)
p = aten._to_copy(aten._softmax(wide, -1, False), bf16)
o = aten.bmm(p, v)
return o
"""
    assert taken(text) == [("FUS602", list(range(10)))]


def test_plain_matmuls_and_clamps_are_no_refused_quantizations() -> None:
    # GIVEN what has the form of a rule and means something else
    claims = claimed("""
x: bf16[64, 64]
w: bf16[64, 64]
y = aten.mm(x, w)
r = aten.relu(y)
c = aten.clamp(aten.mul(r, 2.0), -1.0, 1.0)
d = aten.mul(aten.sub(aten.sigmoid(c), r), x)
return d
""")

    # THEN nothing of it is told to have been refused
    assert refused_by(claims, ["FUS205", "FUS210", "FUS401"]) == []
    assert not {site.rule.id for site in claims.sites} & {"FUS205", "FUS210", "FUS401"}


def test_a_quantized_norm_is_one_kernel_and_not_a_norm_and_a_chain() -> None:
    # GIVEN a residual add, an RMS norm by hand, and int8 for each token
    text = """
h: f32[64, 256]
r: f32[64, 256]
w: f32[256]
x = aten.add(r, h)
inv = aten.rsqrt(aten.add(aten.mean(aten.pow(x, 2), [-1], True), 1e-06))
y = aten.mul(w, aten.mul(x, inv))
scale = aten.div(aten.clamp_min(aten.amax(aten.abs(y), [-1], True), 1e-05), 127.0)
q = aten._to_copy(aten.clamp(aten.round(aten.div(y, scale)), -128, 127), i8)
return q, scale, x
"""
    # THEN one site holds it all, with three results
    (site,) = claimed(text).sites
    assert (site.rule.id, site.region.kernels, len(site.region.outputs)) == ("FUS210", 15, 3)


def test_activations_in_int8_that_a_matmul_reads_as_they_are_need_no_dequantization() -> None:
    claims = claimed("""
x: i8[64, 256]
w: i8[256, 64]
y: i32[64, 64]
y = aten._int_mm(x, w)
return y
""")
    assert claims.sites == []
    assert refused_by(claims, ["FUS401"]) == []
