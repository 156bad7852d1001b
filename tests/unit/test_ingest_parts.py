"""Parts of one tensor, and gradients, in traces without identities: each part is another, each gradient one node's."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_ingest_old_traces import Writer, made_by, named

from auditor.collect.partial import partial_of
from auditor.collect.recorded_inputs import RecordedInputs, TensorSpec
from auditor.engine.claims import claim
from auditor.engine.rules import load_rules
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, OpGraph, Value, contiguous_strides
from auditor.graph.traffic import bytes_of


@pytest.fixture
def writer() -> Writer:
    return Writer()


def read(op: Op, argument: int = 0) -> Value:
    value = op.args[argument]
    assert isinstance(value, Value)
    return value


def packed(graph: OpGraph) -> list[int]:
    return [site.region.kernels for site in claim(graph, load_rules()).sites if site.rule.id == "FUS501"]


def test_layers_on_the_parts_of_a_split_share_no_input(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a split into four, whose sizes the file does not hold, and a layer on each part
    writer.op("aten::exp", [64, 256])
    writer.op("aten::split", [64, 256], [], [], kernel=False)
    for _ in range(4):
        writer.op("aten::addmm", [128], [64, 64], [64, 128])

    # WHEN it is read
    graph = writer.graph(tmp_path)

    # THEN the parts lie side by side in what was split, and nothing could be packed
    parts = [read(op, 1) for op in named(graph, "aten.addmm")]
    assert [part.offset for part in parts] == [0, 64, 128, 192]
    assert {part.base and part.base.id for part in parts} == {named(graph, "aten.exp")[0].outputs[0].id}
    assert packed(graph) == []


def test_a_split_hands_out_no_more_than_it_has(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a split of which both halves are read, and another read of that size, and one that is larger
    writer.op("aten::exp", [64, 256])
    writer.op("aten::split", [64, 256], [], [], kernel=False)
    for _ in range(3):
        writer.op("aten::tanh", [64, 128])
    writer.op("aten::tanh", [64, 200])
    graph = writer.graph(tmp_path)

    # THEN there are two halves of it
    (split,) = named(graph, "aten.split")
    assert [value.shape for value in split.outputs] == [(64, 128), (64, 128)]


@pytest.mark.parametrize(
    ("name", "parts", "size", "room"),
    [
        ("split", [3], 3, True), ("split", [3, 3, 3], 1, True), ("split", [3], 2, False),
        ("split", [3, 3, 3, 1], 1, False),
        ("split", [3, 1], 3, True), ("chunk", [5, 5], 5, False), ("split_with_sizes", [3, 2], 5, True),
        ("split_with_sizes", [3, 2], 6, False),
    ],
)  # fmt: skip
def test_what_may_be_cut_of_what_is_left(name: str, parts: list[int], size: int, room: bool) -> None:
    source = TensorSpec("f32", (4, 10), contiguous_strides((4, 10)))
    partial = partial_of(f"aten::{name}", RecordedInputs(("float",), (source,), known=True))
    assert partial is not None
    assert partial.has_room([(4, part) for part in parts], (4, size)) is room


def test_slices_in_a_backward_are_each_of_the_whole_gradient(writer: Writer, tmp_path: Path) -> None:
    # GIVEN the gradient of a concatenation, cut into three, and three layers that take one each
    writer.node("ExpBackward0", [64, 96], ("aten::mul", [64, 96], [64, 96]), ranges=True)
    cuts = [("aten::slice", [64, 96], [], [], [], [])] * 3
    writer.node("CatBackward0", [64, 96], *cuts, ranges=True)
    for _ in range(3):
        layer = [
            *(("aten::mm", [64, 32], [32, 128]), ("aten::t", [64, 32]), ("aten::mm", [32, 64], [64, 128])),
            *(("aten::t", [32, 128]), ("aten::sum", [64, 32], [], [])),
        ]
        writer.node("AddmmBackward0", [64, 32], *layer, ranges=True)
    graph = writer.graph(tmp_path)

    # THEN every slice is one of the gradient itself, and no two layers share one
    whole = named(graph, "aten.mul")[0].outputs[0]
    assert {read(op).id for op in named(graph, "aten.slice")} == {whole.id}
    inputs, weights = named(graph, "aten.mm")[::2], named(graph, "aten.mm")[1::2]
    assert len({read(op).id for op in inputs}) == 3
    # AND each product for a weight reads the transpose of its layer's gradient, and is transposed itself
    assert [read(op).base for op in weights] == [read(op) for op in inputs]
    assert [made_by(op) for op in named(graph, "aten.t")[1::2]] == weights
    # AND neither the layers nor the two products of one are siblings
    assert packed(graph) == []


@pytest.mark.parametrize(("between", "read_twice"), [("AddBackward0", True), ("NegBackward0", False)])
def test_a_gradient_goes_to_one_node_unless_a_sum_hands_it_on(
    writer: Writer, tmp_path: Path, between: str, read_twice: bool
) -> None:
    # GIVEN two nodes after one that made a gradient of their shape, with a node between that launches nothing
    writer.node("TanhBackward0", [64, 96], ("aten::tanh_backward", [64, 96], [64, 96]), ranges=True)
    writer.node(between, [64, 96], ranges=True)
    writer.node("SigmoidBackward0", [64, 96], ("aten::sigmoid_backward", [64, 96], [64, 96]), ranges=True)
    writer.node("ReluBackward0", [64, 32], ("aten::threshold_backward", [64, 32], [64, 32], []), ranges=True)
    writer.node("MulBackward0", [64, 96], ("aten::mul", [64, 96], [64, 96]), ranges=True)
    graph = writer.graph(tmp_path)

    # THEN the first reads it; the other one reads it only if it was the gradient of a sum
    (tanh,), (sigmoid,), (mul,) = (
        named(graph, f"aten.{name}") for name in ("tanh_backward", "sigmoid_backward", "mul")
    )
    assert made_by(sigmoid) is tanh
    assert (made_by(mul) is tanh) is read_twice or made_by(mul) is sigmoid


def test_offsets_of_views_are_those_of_the_recorded_numbers(tmp_path: Path) -> None:
    # GIVEN halves of a tensor, as newer profilers write them
    writer = Writer()
    writer.op("aten::exp", [64, 128])
    for start, end in (("0", "64"), ("64", "128")):
        numbers = {"Concrete Inputs": ["", "1", start, end, "1"], "Input Strides": [[128, 1], [], [], [], []]}
        writer.op("aten::slice", [64, 128], [], [], [], [], kernel=False, **numbers)
        writer.op("aten::tanh", [64, 64], **{"Concrete Inputs": [""], "Input Strides": [[128, 1]]})
    graph = writer.graph(tmp_path)

    # THEN they begin where they do, count apart, and are in the whole where that is read, too
    one, other = (read(op) for op in named(graph, "aten.tanh"))
    whole = named(graph, "aten.exp")[0].outputs[0]
    assert (one.offset, other.offset) == (0, 64)
    assert bytes_of([one, other]) == bytes_of([whole]) == bytes_of([whole, one, other]) == 64 * 128 * 4
    assert len({id(Canonical(graph).cvalue(value)) for value in (one, other)}) == 2
