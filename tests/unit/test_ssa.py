"""SSA text: what it means, what it refuses, that types are inferred as torch makes them, that it prints and parses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from graphs import graphs, structure
from hypothesis import given, settings

from auditor.errors import AuditError
from auditor.graph.model import OpGraph, Source, Value
from auditor.graph.signatures import with_dtype_names
from auditor.graph.ssa import parse, print_graph


def named(graph: OpGraph) -> dict[str, Value]:
    return {v.name: v for v in graph.values}


# ── meaning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ops_values_and_kernels() -> None:
    # GIVEN a norm with nested calls and a view
    graph = parse("""
        x: f32[2, 64, 256]
        w: f32[256]
        var = aten.mean(aten.pow(x, 2), [-1], True)
        y = aten.mul(aten.mul(x, aten.rsqrt(aten.add(var, 1e-6))), w)
        flat = aten.view(y, [128, 256])
    """)
    # THEN inner calls are ops of their own, in order, and the view launches nothing
    names = ["aten.pow", "aten.mean", "aten.add", "aten.rsqrt", "aten.mul", "aten.mul", "aten.view"]
    assert [op.name for op in graph.ops] == names
    assert graph.kernels == 6
    values = named(graph)
    assert [c.index for c in values["x"].consumers] == [0, 4]
    assert values["var"].shape == (2, 64, 1)
    assert values["flat"].base is values["y"]
    assert values["flat"].storage == values["y"].storage
    assert [v.name for v in graph.values if v.escapes] == ["flat"]


def test_several_results_by_tuple_and_by_item() -> None:
    text = "x: f32[4, 8]\n{}\ny = aten.mul({}, {})"
    unpacked = parse(text.format("lo, hi = aten.split(x, 4, -1)", "lo", "hi"))
    items = parse(text.format("parts = aten.split(x, 4, -1)", "parts[0]", "parts[-1]"))
    assert structure(unpacked) == structure(items)
    assert [v.offset for v in unpacked.ops[0].outputs] == [0, 4]


def test_in_place_makes_a_new_version_that_the_name_means_from_there_on() -> None:
    graph = parse("x: f32[4]\nold = aten.neg(x)\naten.add_(x, 1)\ny = aten.mul_(x, 2)\nz = aten.exp(x)")
    add, mul, exp = graph.ops[1:]
    assert (add.mutates, mul.args[0], exp.args[0]) == ((graph.values[0],), add.outputs[0], mul.outputs[0])
    assert len({v.storage for v in (graph.values[0], add.outputs[0], mul.outputs[0])}) == 1
    assert graph.values[0].consumers == [graph.ops[0], add]


def test_in_place_over_a_list() -> None:
    graph = parse("p: f32[4]\nq: f32[2]\naten._foreach_add_([p, q], 1)\nr = aten.neg(q)")
    assert [v.shape for v in graph.ops[0].outputs] == [(4,), (2,)]
    assert graph.ops[1].args == (graph.ops[0].outputs[1],)


def test_directives_hold_for_the_ops_that_follow() -> None:
    graph = parse("""
        x: f32[4]
        a = aten.neg(x)
        phase("backward")
        module("model.layers.0.mlp", "LlamaMLP")
        source("model.py", 12, "forward")
        device("cuda:0")
        b = aten.neg(a)
    """)
    a, b = graph.ops
    assert (a.phase, a.module, a.source, a.outputs[0].device) == ("forward", "", None, "cpu")
    assert (b.phase, b.module, b.module_class) == ("backward", "model.layers.0.mlp", "LlamaMLP")
    assert (b.source, b.outputs[0].device) == (Source("model.py", 12, "forward"), "cuda:0")


def test_return_says_what_is_read_outside() -> None:
    body = "x: f32[4]\na = aten.neg(x)\nb = aten.exp(a)\nc = aten.abs(x)"
    assert [v.name for v in parse(body).values if v.escapes] == ["b", "c"]
    assert [v.name for v in parse(f"{body}\nreturn a, b").values if v.escapes] == ["a", "b"]
    assert [v.name for v in parse(f"{body}\nreturn").values if v.escapes] == []


def test_declared_layout_and_storage() -> None:
    values = named(parse("x: f32[64, 256]\nxt: f32[256, 32](1, 256) @ 8192 in x\ns: i64"))
    xt = values["xt"]
    assert (xt.shape, xt.strides, xt.offset, xt.storage) == ((256, 32), (1, 256), 8192, values["x"].storage)
    assert (values["s"].shape, values["s"].dtype) == ((), "i64")


def test_keywords_go_into_schema_order() -> None:
    graph = parse("""
        x: f32[4, 8]
        a = aten.mean(x, [-1], keepdim=True)
        b = aten._to_copy(x, dtype=bf16, memory_format=1)
        c = aten.div(x, 2, rounding_mode="floor")
        d = aten.sum(x, keepdim=True)
        e = aten.add_(x, x, alpha=-inf)
    """)
    assert [op.args[1:] for op in graph.ops[:4]] == [
        ((-1,), True),
        ("bf16", None, None, None, False, 1),
        (2, "floor"),
        (None, True),
    ]
    assert graph.ops[4].args[2] == float("-inf")


def test_what_fx_prints_can_be_pasted() -> None:
    graph = parse("""
        x: f32[4, 8]
        split = torch.ops.aten.split.Tensor(x, 4, -1)
        y: f32[4, 4] = torch.ops.aten.add.Tensor(split[0], split[1])
        z = torch.ops.aten._to_copy.default(y, dtype=torch.bfloat16)
    """)
    assert [(op.name, op.overload) for op in graph.ops] == [
        ("aten.split", "Tensor"),
        ("aten.add", "Tensor"),
        ("aten._to_copy", ""),
    ]
    assert graph.ops[2].outputs[0].dtype == "bf16"


def test_a_reshape_that_cannot_be_a_view_copies() -> None:
    graph = parse("x: f32[4, 8]\nt = aten.t(x)\ny = aten.reshape(t, [32])\nz = aten.reshape(x, [32])")
    assert [len(op.kernels) for op in graph.ops] == [0, 1, 0]
    assert graph.ops[1].outputs[0].base is None


def test_results_of_unknown_ops_are_annotated_in_one_line_or_before() -> None:
    graph = parse("x: f32[4]\na: f32[2] = mylib.half(x)\nb: f32[3]\nc: bf16[1]\nb, c = mylib.two(a)")
    assert [(v.dtype, v.shape) for v in graph.ops[1].outputs] == [("f32", (3,)), ("bf16", (1,))]


def test_kernels_and_mutates_can_be_told() -> None:
    graph = parse("x: f32[4]\ns: f32[4]\ny: f32[4] = mylib.norm(x, s, kernels=3, mutates=[s])")
    assert (graph.kernels, graph.ops[0].mutates) == (3, (graph.values[1],))


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSED = [
    ("y = aten.neg(x)", r"^<graph>:1:14: `x` has no value yet; declare it before"),
    ("x: f32[4]\nx: f32[4]", "2:1: `x` is declared but already has a value"),
    ("x: f32[4]\ny = aten.mean(x, axis=1)", "aten.mean has no argument `axis`; it takes self, dim, keepdim, dtype"),
    ("x: f32[4]\ny = aten.mean(x, [0], dim=0)", "got `dim` twice"),
    ("x: f32[4]\ny = aten.narrow(x, length=2)", "lacks its argument `dim`"),
    ("x: f32[4]\ny = mylib.op(x, eps=1)", "write its arguments without keywords"),
    ("x: f32[4]\ny = mylib.op(x)", r"2:5: the result of mylib.op cannot be inferred; annotate it: `name: f32"),
    ("x: f32[4]\ny = aten.neg(mylib.op(x))", "the result of mylib.op cannot be inferred"),
    ("x: f32[4]\na, b = aten.neg(x)", "aten.neg has 1 results, but 2 names are given"),
    ("x: f32[4]\ny = aten.add(x[1], 1)", "there is no result number 1"),
    ("x: f32[4]\nw: f32[3]\ny = aten.add(x, w)", r"aten.add: shapes \[4\] and \[3\] do not broadcast"),
    ("x: f32[4, 3]\ny = aten.mm(x, x)", r"cannot multiply \[4, 3\] by \[4, 3\]: 3 and 4 differ"),
    ("x: f32[4, 3]\ny = aten.view(x, [5])", "has no such view"),
    ("x: f32[4, 3]\ny = aten.view(aten.t(x), [12])", r"f32\[3, 4\] with strides \[1, 3\] has no such view"),
    ("x: f32[4]\ny = aten.mean(x, [3])", "dimension 3 is out of range"),
    ("x: f32[4]\ny = aten.add(1, 2)", "at least one argument has to be a tensor"),
    ("x: f32[4]\ny = aten.softmax(x)", "aten.softmax"),
    ("x: float32[4]", "1:4: expected a type like `f32.*dtypes are bf16"),
    ("x: f32[-4]", "expected an integer that is not negative"),
    ("x: f32[4](1, 1)", "2 strides for 1 dimensions"),
    ("x: f32[4] in y", "`y` has no value yet"),
    ("f32: f32[4]", "`f32` is reserved"),
    ("x: f32[4]\nreturn x\ny = aten.neg(x)", "`return` has to be the last line"),
    ('phase("sideways")', r"expected `phase\(\"forward\"\)`"),
    ('source("f.py")', r"expected `source\("),
    ("module(x)", "takes strings and numbers only"),
    ("x = = 1", "1:5: invalid syntax; expected SSA text"),
    ("for x in y: pass", "expected `name: f32"),
    ("x: f32[4]\ny = neg(x)", "expected the name of an op as `namespace.op`"),
    ("x: f32[4]\ny = aten.sum(x, [1, ..., 9])", "stands for what was left out"),
    ("x: f32[4]\ny = aten.add(x, lambda: 1)", "expected a value, a constant, a list or a call"),
    ("x: f32[4]\ny = aten.add(x, **x)", r"`\*\*` is not part"),
    ("x: f32[4]\ny: f32[4] = x", "only the results of an op"),
    ("x: f32[4]\ny = aten.neg(x, kernels=-1)", "`kernels` takes a number from 0"),
    ("x: f32[4]\ny = aten.neg(x, mutates=3)", "`mutates` takes a list of values"),
    ("x\0: f32[4]", "SSA text"),
    ("x: f32[4]\ny = aten.neg(" + "(" * 5000 + "x" + ")" * 5000 + ")", "SSA text"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_refused_with_place_and_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(AuditError, match=message):
        parse(text)


def test_places_count_from_where_the_text_stands_in_its_file() -> None:
    with pytest.raises(AuditError, match=r"^rules/norm\.yaml:42:18: `w`"):
        parse("    x: f32[4]\n    y = aten.neg(w)", file="rules/norm.yaml", first_line=41)


# ── inferred types are torch's ───────────────────────────────────────────────────────────────────────────────────────

SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
    torch.int32: "i32", torch.bool: "bool", torch.complex64: "c64",
}  # fmt: skip
INPUTS = {
    "x": torch.rand(2, 6, 8), "w": torch.rand(8), "m": torch.rand(6, 8), "h": torch.rand(2, 6, 8).bfloat16(),
    "xt": torch.rand(2, 8, 6).transpose(1, 2), "i": torch.arange(12).view(2, 6) % 6, "b": torch.rand(2, 6, 8) > 0.5,
    "s": torch.tensor(2.0), "d": torch.rand(8).double(), "img": torch.rand(2, 4, 9, 9), "k": torch.rand(6, 4, 3, 3),
    "kt": torch.rand(4, 5, 3, 3), "q": torch.rand(2, 3, 5, 4), "z": torch.rand(2, 3, dtype=torch.complex64),
}  # fmt: skip
INFERRED = (
    """
add(x, w)|add(h, 1)|add(h, w)|add(h, s)|add(i, 1.5)|add(i, i)|mul(xt, xt)|mul(xt, w)|mul(xt, 2)|div(i, 2)|mul(w, d)
div(i, 2, rounding_mode="floor")|pow(x, 2)|pow(i, 2)|sqrt(i)|rsqrt(h)|neg(i)|eq(x, 1)|logical_not(x)|mul(b, 2)
where(b, x, h)|masked_fill(h, b, 1.0)|silu(h)|gelu(x, approximate="tanh")|clamp(i, 0, 3)|maximum(x, w)|mul(z, 2)
addcmul(x, x, x, value=2)|isnan(h)|bitwise_and(b, b)|abs(h)|sigmoid(i)|relu(i)|lerp(x, x, 0.5)|exp(xt)|add(s, 1)
mean(x, [-1], True)|mean(h, [0, 2])|sum(i)|sum(b, [1])|sum(x, [1], dtype=f64)
amax(x, [-1], True)|var(x, [2], correction=0)
var_mean(h, [-1], correction=0, keepdim=True)|argmax(x, -1)|all(b)|any(b, 1)|max(x)|max(x, 1)|max(x, w)|min(x, -1, True)
logsumexp(x, [1])|linalg_vector_norm(x, 2, [-1], True)|prod(i)|cumsum(i, 1)|cumsum(h, 1)
mm(m, aten.t(m))|bmm(x, xt_)|addmm(w6, m, aten.t(m))|baddbmm(x6, x, xt_)|matmul(x, w)|matmul(m, xt_)|linear(x, m)
matmul(q, aten.transpose(q, 2, 3))|dot(w, w)|mv(m, w)
cat([x, x], 1)|cat([x, h], -1)|stack([w, w])|stack([x, x], -1)|clone(xt)|contiguous(xt)|_to_copy(x, dtype=bf16)
to(x, f16)|clone(xt, memory_format=0)|softmax(x, -1)|softmax(h, -1, f32)|_softmax(x, -1, False)|log_softmax(x, 1)
layer_norm(x, [8], w, w)|native_layer_norm(x, [8], w, w, 1e-5)|native_layer_norm(x, [6, 8], m, m, 1e-5)
rms_norm(x, [8], w)|native_group_norm(img, None, None, 2, 4, 81, 2, 1e-5)
native_batch_norm(img, None, None, None, None, True, 0.1, 1e-5)
convolution(img, k, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
convolution(img, k, None, [1, 1], [0, 0], [2, 2], False, [0, 0], 1)
convolution(img, kt, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)
_scaled_dot_product_flash_attention_for_cpu(q, q, q)|embedding(m, i)|index_select(x, 1, i1)|gather(m, 1, i)
native_dropout(x, 0.5, True)|tril(m)|flip(x, [0])|repeat(m, [2, 1, 3])|glu(x, -1)|type_as(x, h)
empty([2, 3])|zeros([2, 3], dtype=bf16)|full([2], 1)|full([2], 1.0)|full([2], True)|zeros_like(h)|new_zeros(h, [3])
scalar_tensor(1.0)|empty_strided([2, 3], [1, 2])|ones_like(xt)|full_like(x, 2)
view(x, [12, 8])|reshape(xt, [96])|expand_as(w, x)|view_as(x, x)|flatten(x, 1)|unbind(x, 0)|chunk(x, 2, -1)
view_as_real(z)|permute(x, [2, 0, 1])|split_with_sizes(x, [3, 5], 2)|unsqueeze(m, 0)|expand(w, [3, -1])|select(x, 1, -1)
slice(x, 2, 1, 9223372036854775807, 2)|add_(xt, 1)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
INPUTS |= {
    "w6": torch.rand(6), "x6": torch.rand(2, 6, 6), "xt_": torch.rand(2, 8, 6), "i1": torch.arange(3),
}  # fmt: skip


def text_type(x: torch.Tensor) -> str:
    shape = ", ".join(map(str, x.shape))
    strides = ", ".join(map(str, x.stride()))
    return f"{SHORT[x.dtype]}[{shape}]({strides}) @ {x.storage_offset()}" if x.dim() else SHORT[x.dtype]


def evaluate(call: str) -> list[torch.Tensor]:
    dtypes = {short: dtype for dtype, short in SHORT.items()}
    aten: Any = torch.ops.aten
    call = call.replace("memory_format=0", "memory_format=torch.contiguous_format")
    name = call.partition("(")[0]
    if name in ("max", "min") and call.count(",") == 1 and "w" in call:
        call = call.replace("max(", "maximum(", 1)
    out = eval(
        f"aten.{call}",
        {
            "aten": aten,
            "torch": torch,
            **dtypes,
            **{k: v.clone() if name.endswith("_") else v for k, v in INPUTS.items()},
        },
    )
    return [out] if isinstance(out, torch.Tensor) else list(out)


@pytest.mark.parametrize("call", INFERRED)
def test_inferred_types_are_those_of_torch(call: str) -> None:
    declared = "\n".join(f"{name}: {text_type(x)}" for name, x in INPUTS.items())
    outputs = parse(f"{declared}\nout = aten.{call}").ops[-1].outputs
    expected = evaluate(call)
    assert [(v.dtype, v.shape) for v in outputs] == [(SHORT[x.dtype], tuple(x.shape)) for x in expected]
    strides = [tuple(s for s, n in zip(v.strides, v.shape, strict=True) if n != 1) for v in outputs]
    assert strides == [tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n != 1) for x in expected]


# ── printing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

PRINTED = """\
x: f32[2, 64, 256]
w: f32[256]
sq: f32[2, 64, 256] = aten.pow(x, 2)
var: f32[2, 64, 1] = aten.mean(sq, [-1], True)
module("model.norm", "RMSNorm")
source("model.py", 12, "forward")
inv: f32[2, 64, 1] = aten.rsqrt(var)
lo, hi = aten.split(x, 128, -1)
xt: f32[2, 256, 64](16384, 1, 256) = aten.transpose(x, 1, 2)
half: bf16[2, 64, 256] = aten._to_copy.default_(x, dtype=bf16)
last: f32[2, 64](16384, 256) @ 255 = aten.select(x, -1, -1)
a: f32[2]
b: bf16[3]
a, b = mylib.two(w, "none", [1, 2], None, kernels=2)
w_1: f32[256] = aten.add_(w, 1.5, alpha=2)
return var, inv, hi
"""


def test_printed_text() -> None:
    assert print_graph(parse(PRINTED)) == PRINTED


@settings(max_examples=300, deadline=None)
@given(graphs())
def test_parse_undoes_print(graph: OpGraph) -> None:
    text = print_graph(graph, max_items=None)
    again = parse(text)
    assert structure(again) == structure(graph)
    assert print_graph(again, max_items=None) == text


def test_part_of_a_graph_declares_what_it_reads_and_returns_what_is_read() -> None:
    graph = parse(
        "x: f32[4]\na = aten.neg(x)\nb = aten.exp(a)\nc = aten.abs(b)\nd = aten.add(b, c)\ne = aten.mul(d, a)"
    )
    assert print_graph(graph.ops[1:4]) == (
        "a: f32[4]\nb: f32[4] = aten.exp(a)\nc: f32[4] = aten.abs(b)\nd: f32[4] = aten.add(b, c)\nreturn d\n"
    )


def test_halves_from_outside_still_share_their_storage() -> None:
    graph = parse("x: f32[4, 8]\nlo, hi = aten.chunk(x, 2, -1)\ny = aten.mul(lo, hi)")
    text = print_graph(graph.ops[1:])
    assert text.splitlines()[:2] == ["lo: f32[4, 4](8, 1)", "hi: f32[4, 4](8, 1) @ 4 in lo"]
    assert len({v.storage for v in parse(text).values[:2]}) == 1


def test_dtypes_that_traces_write_as_numbers_get_their_names() -> None:
    assert with_dtype_names("aten._to_copy", ("x", 15, None)) == ("x", "bf16", None)
    assert with_dtype_names("aten.add_", ("x", 1, 6)) == ("x", 1, 6)  # has no dtype
    assert with_dtype_names("aten.mean", ("x", 0, True)) == ("x", 0, True)  # the number is a dimension's
    assert with_dtype_names("aten.cumsum", ("x", 1, 77)) == ("x", 1, 77)  # has no name


def test_a_number_for_a_dtype_stays_one() -> None:
    graph = parse("x: f32[2]\ny: u8 = aten.mean(x, None, False, dtype=0)")
    text = print_graph(graph)
    assert "dtype=0)" in text
    assert structure(parse(text)) == structure(graph)


def test_hostile_names_stay_inside_their_string() -> None:
    graph = parse("x: f32[2]\ny = aten.neg(x)")
    graph.ops[0].module = '"); import os\n</script>\x1b[31m'
    graph.values[1].name = "y = evil()"
    text = print_graph(graph)
    assert text.isascii()
    assert "\x1b" not in text
    assert structure(parse(text)) == structure(graph)


def test_long_lists_and_strings_are_cut_and_say_so_when_read() -> None:
    graph = parse(f"x: f32[4]\ny: f32[4] = mylib.op(x, {list(range(500))}, {'s' * 500!r})")
    text = print_graph(graph, max_items=4)
    assert "[0, 1, ..., 498, 499]" in text
    assert len(text) < 150
    with pytest.raises(AuditError, match="left out"):
        parse(text)
    assert structure(parse(print_graph(graph, max_items=None))) == structure(graph)
