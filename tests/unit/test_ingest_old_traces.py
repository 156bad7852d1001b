"""Edges of traces that tell little: shapes without numbers, backward nodes without ranges, unknown libraries' ops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auditor.collect.ingest import graph_from_trace
from auditor.collect.partial import keys_of, partial_of
from auditor.collect.recorded_inputs import RecordedInputs, TensorSpec
from auditor.graph.model import Op, OpGraph, Value, contiguous_strides, owner_of

Dims = list[Any]


class Writer:
    """Writes a trace as profilers before the concrete inputs did: one call after the other, a kernel for each op."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.now = 0
        self.launched = 0

    def event(self, name: str, tid: int, start: int, dur: int, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": start, "dur": dur, "args": args}
        )

    def op(self, name: str, *dims: Dims, tid: int = 1, kernel: bool = True, types: str = "float", **args: Any) -> None:
        """A list of sizes for each argument; an empty one for a number, which the file does not hold."""
        start, self.now = self.now, self.now + 20
        kinds = [types if size else "Scalar" for size in dims]
        self.event(name, tid, start, 10, **{"Input Dims": list(dims), "Input type": kinds}, **args)
        if kernel:
            self.launched += 1
            link = {"correlation": self.launched}
            base = {"ph": "X", "pid": 1, "ts": start + 1, "dur": 2}
            self.events.append({**base, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": tid, "args": link})
            self.events.append(
                {**base, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "args": {**link, "stream": 7}}
            )

    def node(self, name: str, gradient: Dims, *ops: tuple[Any, ...], ranges: bool, tid: int = 2) -> None:
        """A backward node, in its range or, as older profilers wrote it, alone."""
        start, length = self.now, 20 * len(ops) + 4
        if ranges:
            self.event(f"autograd::engine::evaluate_function: {name}", tid, start, length)
        self.event(name, tid, start, length - 1, **{"Input Dims": [gradient], "Input type": ["float"]})
        self.now += 1
        for op, *dims in ops:
            self.op(op, *dims, tid=tid)
        self.now = start + length + 2

    def graph(self, folder: Path) -> OpGraph:
        path = folder / "trace.json"
        path.write_text(json.dumps({"traceEvents": self.events}))
        return graph_from_trace(path)


@pytest.fixture
def writer() -> Writer:
    return Writer()


def named(graph: OpGraph, name: str) -> list[Op]:
    return [op for op in graph.ops if op.name == name]


def made_by(op: Op, argument: int = 0) -> Op | None:
    value = op.args[argument]
    assert isinstance(value, Value)
    return owner_of(value).producer


def test_a_views_shape_is_that_of_its_reader(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a view whose sizes the file does not hold
    writer.op("aten::tanh", [64, 96])
    writer.op("aten::view", [64, 96], [], kernel=False)
    writer.op("aten::exp", [64, 12, 8])

    # WHEN it is read
    graph = writer.graph(tmp_path)

    # THEN what has as many elements and was made by nothing else is the view
    assert made_by(named(graph, "aten.exp")[0]) is named(graph, "aten.tanh")[0]
    assert named(graph, "aten.view")[0].outputs[0].shape == (64, 12, 8)


def test_a_convolutions_result_is_told_by_the_norm_behind_it(writer: Writer, tmp_path: Path) -> None:
    writer.op("aten::convolution", [8, 16, 32, 32], [24, 16, 3, 3], [], [], [], [], [], [], [])
    writer.op("aten::relu", [8, 24, 16, 16])
    graph = writer.graph(tmp_path)
    assert made_by(named(graph, "aten.relu")[0]) is named(graph, "aten.convolution")[0]


@pytest.mark.parametrize(
    ("name", "made", "read", "fits"),
    [
        ("view", (64, 96), (64, 12, 8), True),
        ("view", (64, 96), (64, 12, 9), False),
        ("transpose", (4, 7), (7, 4), True),
        ("unsqueeze", (4, 7), (4, 1, 7), True),
        ("unsqueeze", (4, 7), (4, 7), False),
        ("slice", (4, 8), (4, 3), True),
        ("slice", (4, 8), (3, 3), False),
        ("select", (4, 8, 3), (4, 3), True),
        ("expand", (1, 8), (5, 8), True),
        ("sum", (4, 8), (1, 8), True),
        ("sum", (4, 8), (8,), True),
        ("sum", (4, 8), (3,), False),
        ("_to_copy", (4, 8), (4, 8), True),
        ("relu_of_someone", (4, 8), (4, 8), True),
    ],
)
def test_what_a_read_may_be_of(name: str, made: tuple[int, ...], read: tuple[int, ...], fits: bool) -> None:
    source = TensorSpec("f32", made, contiguous_strides(made))
    library = "aten" if name != "relu_of_someone" else "mylib"
    partial = partial_of(f"{library}::{name}", RecordedInputs(("float",), (source,), known=True))
    assert partial is not None
    looks = TensorSpec("f32", read, contiguous_strides(read))
    assert (partial.key in keys_of(looks) and partial.fits(looks)) is fits


@pytest.mark.parametrize("ranges", [True, False], ids=["in ranges", "alone"])
def test_a_linear_layers_backward_reads_one_gradient(writer: Writer, tmp_path: Path, ranges: bool) -> None:
    # GIVEN square layers, so that gradients of input and output look alike, and two products of one gradient
    writer.node("SigmoidBackward0", [64, 64], ("aten::sigmoid_backward", [64, 64], [64, 64]), ranges=ranges)
    writer.node(
        "AddmmBackward0",
        [64, 64],
        ("aten::mm", [64, 64], [64, 64]),
        ("aten::t", [64, 64]),
        ("aten::mm", [64, 64], [64, 64]),
        ranges=ranges,
    )
    writer.node(
        "MulBackward0", [64, 64], ("aten::mul", [64, 64], [64, 64]), ("aten::mul", [64, 64], [64, 64]), ranges=ranges
    )

    # WHEN the trace is read
    graph = writer.graph(tmp_path)

    # THEN all of it is backward; the transpose reads the gradient, not the product that the node made before
    sigmoid, first, transpose, _, one, other = (op for op in graph.ops if op.phase == "backward")
    assert made_by(first) is sigmoid
    assert made_by(transpose) is sigmoid
    # AND both products read the same gradient, which is that of the layer's input; saved tensors were made elsewhere
    assert made_by(one) is made_by(other)
    assert made_by(one) is not one
    assert made_by(other, 1) is None


def test_counters_do_not_feed_each_other(writer: Writer, tmp_path: Path) -> None:
    for _ in range(3):
        start = writer.now
        writer.op("aten::relu", [8, 8])
        counted = {"Input Dims": [[], [], []], "Input type": ["long int", "Scalar", "Scalar"]}
        writer.event("aten::add_", 1, start + 12, 3, **counted)
    graph = writer.graph(tmp_path)
    assert len(named(graph, "aten.add_")) == 3
    assert all(made_by(op) is None for op in named(graph, "aten.add_"))


def test_clamps_in_a_row_are_of_different_tensors(writer: Writer, tmp_path: Path) -> None:
    # GIVEN three clamps, then three nan_to_nums, all alike
    for _ in range(3):
        writer.op("aten::clamp", [8, 64], [], [])
    for _ in range(3):
        writer.op("aten::nan_to_num", [8, 64], [], [], [])

    # WHEN THEN they are three pairs
    graph = writer.graph(tmp_path)
    clamps, ends = named(graph, "aten.clamp"), named(graph, "aten.nan_to_num")
    assert [made_by(op) for op in clamps] == [None] * 3
    assert [made_by(op) for op in ends] == clamps


def test_an_unknown_op_that_calls_others_is_a_range(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a library's op that launches nothing itself, and one that does
    writer.event("mylib::wraps", 1, 0, 19, **{"Input Dims": [[8, 8]], "Input type": ["float"]})
    writer.op("aten::exp", [8, 8])
    writer.op("mylib::computes", [8, 8])
    writer.op("aten::neg", [8, 8])

    # WHEN THEN what it calls is seen, and what the other one makes has a reader
    graph = writer.graph(tmp_path)
    assert [op.name for op in graph.ops] == ["aten.exp", "mylib.computes", "aten.neg"]
    assert made_by(graph.ops[2]) is graph.ops[1]
    assert graph.coverage.linked == 3


def test_what_launches_is_an_op_whatever_it_is_called(writer: Writer, tmp_path: Path) -> None:
    writer.op("torch::autograd::CppNode<Lookup>", [8, 8])
    graph = writer.graph(tmp_path)
    assert graph.coverage.linked == 1
    assert graph.coverage.outside_ops == 0


PACKAGES = "/home/me/envs/old/lib/python3.7/site-packages"
LAYER = f"{PACKAGES}/torch/nn/functional.py(2263): relu;{PACKAGES}/torch/nn/modules/module.py(1051): _call_impl"
MODEL = f"{PACKAGES}/torchvision/models/resnet.py(125): forward;train.py(46): <module>"


def called(writer: Writer, stack: object, sequence: int = -1) -> None:
    writer.op("aten::relu", [64, 96])
    op = next(event for event in reversed(writer.events) if event["cat"] == "cpu_op")
    op["args"] |= {"Call stack": stack, "Sequence number": sequence}


@pytest.mark.parametrize(
    ("stack", "source"),
    [
        (f"{LAYER};{MODEL};", "torchvision/models/resnet.py:125"),  # each frame ends with the mark
        (f"{LAYER};C:/work/net.py(12): forward;train.py(3): main", "C:/work/net.py:12"),
        (f"{PACKAGES}/torch/optim/sgd.py(117): step;train.py(51): <module>", "train.py:51"),
        (f"{LAYER};/usr/lib/python3.7/threading.py(926): _bootstrap_inner", None),
        (f"{PACKAGES}/torch_guard.py(283): wrapper;{MODEL}", "torchvision/models/resnet.py:125"),
        ("", None),
        ("no frame; (12): , 7", None),
        (["a list"], None),
        (None, None),
    ],
)
def test_an_ops_call_stack_has_its_line(stack: object, source: str | None, writer: Writer, tmp_path: Path) -> None:
    called(writer, stack)
    (op,) = writer.graph(tmp_path).ops
    assert (str(op.source) if op.source else None) == source


def test_a_backward_op_stands_where_the_call_stack_of_its_forward_op_says(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a trace with call stacks, which backward ops have none of
    called(writer, f"{LAYER};{MODEL}", sequence=7)
    writer.event("ReluBackward1", 2, writer.now, 30, **{"Sequence number": 7})
    writer.op("aten::threshold_backward", [64, 96], [64, 96], [], tid=2)

    # THEN the forward op's line is theirs
    (forward, backward) = writer.graph(tmp_path).ops
    assert (backward.phase, backward.source) == ("backward", forward.source)
    assert backward.source is not None
    assert backward.source.function == "forward"


def test_recorded_calls_go_before_an_ops_call_stack(writer: Writer, tmp_path: Path) -> None:
    # GIVEN a trace of the era that has both
    call = {"ph": "X", "cat": "python_function", "name": "net.py(10): forward", "pid": 1, "tid": 1, "ts": 0, "dur": 90}
    called(writer, "net.py(12): forward;train.py(3): main")
    writer.events.append(call)

    assert str(writer.graph(tmp_path).ops[0].source) == "net.py:10"
