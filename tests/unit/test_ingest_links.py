"""Which op launched which kernel."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile

from auditor.collect.inferred import inferred_graph
from auditor.collect.kineto import Event, Trace, by_thread, load_trace
from auditor.collect.nesting import Nest
from auditor.graph.garbage import collection_paused
from auditor.graph.model import Op, OpGraph, Value


def op(name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launch(ts: float, correlation: int, name: str = "cudaLaunchKernel") -> dict[str, Any]:
    args = {"correlation": correlation}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1, "args": args}


def kernel(ts: float, correlation: int, cat: str = "kernel", name: str = "k", **args: Any) -> dict[str, Any]:
    args = {"correlation": correlation, "stream": 7, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2, "args": args}


def load(tmp_path: Path, *events: dict[str, Any]) -> Trace:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    return load_trace(path)


def graph_of(tmp_path: Path, *events: dict[str, Any]) -> OpGraph:
    return inferred_graph(load(tmp_path, *events))


def test_a_kernel_belongs_to_the_op_around_its_launch_not_to_its_external_id(tmp_path: Path) -> None:
    # GIVEN a kernel whose External id names another op than the one around its launch
    add, mul = op("aten::add", 0, 10, **{"External id": 1}), op("aten::mul", 20, 10, **{"External id": 2})

    # WHEN the graph is made
    graph = graph_of(tmp_path, add, mul, launch(22, 5), kernel(40, 5, **{"External id": 1}))

    # THEN the op around the launch has it
    assert [(o.name, len(o.kernels)) for o in graph.ops] == [("aten.add", 0), ("aten.mul", 1)]
    assert graph.coverage.linked == graph.coverage.kernels == 1


def test_every_unlinked_kernel_is_counted_with_its_reason(tmp_path: Path) -> None:
    # GIVEN kernels launched before the window, by a graph replay, outside any op, and by an op
    graph = graph_of(
        tmp_path,
        op("aten::add", 0, 10), launch(1, 1), launch(12, 2), launch(14, 3, "cudaGraphLaunch"),
        kernel(20, 1), kernel(23, 2), kernel(26, 3), kernel(29, 3), kernel(32, 99),
    )  # fmt: skip

    # THEN each is in exactly one place
    c = graph.coverage
    assert (c.kernels, c.linked, c.before_window, c.graph_replayed, c.outside_ops) == (5, 1, 1, 2, 1)
    assert len(graph.unlinked) == 4
    assert graph.kernels == 5


def test_an_id_that_is_given_again_and_again_costs_no_look_at_all_its_launches_for_each_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN one id that 400 launches of two processes have, and as many kernels
    launches = [launch(10 * i, 5) | {"pid": 1 + i % 2} for i in range(400)]
    kernels = [kernel(2000 + 10 * i, 5) for i in range(400)]
    looks = []
    monkeypatch.setattr(Event, "start", property(lambda event: looks.append(1) or event.ts))

    # WHEN they are linked THEN nothing tells the process, and the work is not the product of both
    graph = graph_of(tmp_path, op("aten::add", 0, 5000), *launches, *kernels)
    assert (graph.coverage.kernels, graph.coverage.unattributed) == (400, 400)
    assert len(looks) < 400 * 40


def test_a_device_to_host_copy_is_seen_at_its_op_and_is_no_kernel(tmp_path: Path) -> None:
    copy = kernel(20, 1, "gpu_memcpy", "Memcpy DtoH (Device -> Pinned)")
    graph = graph_of(tmp_path, op("aten::_local_scalar_dense", 0, 10), launch(1, 1, "cudaMemcpyAsync"), copy)

    assert [k.name for o in graph.ops for k in o.kernels] == ["Memcpy DtoH (Device -> Pinned)"]
    assert graph.coverage.kernels == 0


def test_composite_ops_are_opened_and_dispatched_ones_are_not(tmp_path: Path) -> None:
    # GIVEN linear > (t > transpose, addmm > copy_) and silu_backward, which has a decomposition and a kernel
    graph = graph_of(
        tmp_path,
        op("aten::linear", 0, 50), op("aten::t", 1, 5), op("aten::transpose", 2, 2), op("aten::addmm", 10, 20),
        op("aten::copy_", 12, 3), op("aten::silu_backward", 60, 5),
    )  # fmt: skip

    assert [o.name for o in graph.ops] == ["aten.t", "aten.addmm", "aten.silu_backward"]
    assert [len(o.kernels) for o in graph.ops] == [0, 1, 1]  # no device: one kernel per op but views


def test_phases_come_from_autograd_nodes_and_optimizer_ranges(tmp_path: Path) -> None:
    optimizer = {**op("Optimizer.step#SGD.step", 40, 20), "cat": "user_annotation"}
    graph = graph_of(
        tmp_path,
        op("aten::mul", 0, 5, **{"Sequence number": 4}),
        op("autograd::engine::evaluate_function: MulBackward0", 10, 20, **{"Sequence number": 4, "Fwd thread id": 1}),
        op("aten::mul", 12, 5), optimizer, op("aten::add_", 45, 5),
    )  # fmt: skip

    assert [(o.name, o.phase) for o in graph.ops] == [
        ("aten.mul", "forward"), ("aten.mul", "backward"), ("aten.add_", "optimizer"),
    ]  # fmt: skip


def test_what_an_optimizer_runs_in_its_closure_is_no_part_of_it(tmp_path: Path) -> None:
    # Lightning and L-BFGS: optimizer.step(closure) calls the model, and its backward may run on another thread
    optimizer = {**op("Optimizer.step#SGD.step", 0, 60), "cat": "user_annotation"}
    zero = {**op("Optimizer.zero_grad#SGD.zero_grad", 10, 5), "cat": "user_annotation"}
    graph = graph_of(
        tmp_path, optimizer, op("aten::mul", 1, 5), zero, op("aten::zero_", 11, 2),
        {**op("autograd::engine::evaluate_function: MulBackward0", 20, 20), "tid": 7},
        {**op("aten::neg", 22, 5), "tid": 7}, op("aten::add_", 45, 5),
    )  # fmt: skip

    assert {(o.name, o.phase) for o in graph.ops} == {
        ("aten.mul", "forward"), ("aten.zero_", "optimizer"), ("aten.neg", "backward"), ("aten.add_", "optimizer"),
    }  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=25))
def test_a_parent_contains_its_children(spans: list[tuple[int, int]]) -> None:
    # GIVEN properly nested or disjoint spans, made from any spans by clipping to the open one
    events = [Event(name=str(i), ts=float(s), dur=float(d)) for i, (s, d) in enumerate(sorted(spans))]
    events.sort(key=lambda e: (e.start, -(e.dur or 0)))
    nest = Nest(events)

    for i, parent in enumerate(nest.parent):
        if parent >= 0:
            assert parent < i
            assert events[parent].start <= events[i].start <= events[parent].end
            assert nest.depth[i] == nest.depth[parent] + 1


SPANS = st.lists(st.tuples(st.integers(0, 30), st.none() | st.integers(0, 12)), max_size=25)


def events_of(spans: list[tuple[int, int | None]]) -> list[Event]:
    return [Event(name=str(i), pid=1, tid=1, ts=float(s), dur=d and float(d)) for i, (s, d) in enumerate(spans)]


@given(SPANS)
def test_events_of_a_thread_are_by_start_the_longer_first_and_alike_ones_as_in_the_file(
    spans: list[tuple[int, int | None]],
) -> None:
    # GIVEN events of two threads in any order, some without a duration
    events = events_of(spans)
    others = [Event(name="other", pid=1, tid="2", ts=event.ts) for event in events[::2]]

    found = by_thread([*events[:5], *others, *events[5:]])

    assert found.get((1, 1), []) == sorted(events, key=lambda e: (e.start, -(e.dur or 0.0)))
    assert len(found.get((1, "2"), [])) == len(others)


@given(SPANS, st.lists(st.integers(0, 45), max_size=20))
def test_the_innermost_event_around_a_time_is_the_last_that_began_and_has_not_ended(
    spans: list[tuple[int, int | None]], times: list[int]
) -> None:
    # GIVEN spans that need not be nested: clocks of real traces are rounded
    nest = Nest(by_thread(events_of(spans)).get((1, 1), []))
    asked = sorted(float(time) for time in times)

    for time, found in zip(asked, nest.enclosing(asked), strict=True):
        around = [i for i, event in enumerate(nest.events) if event.start <= time <= event.end]
        assert found == max(around, default=-1)


def test_each_step_of_a_long_trace_is_linked_as_if_it_were_alone(tmp_path: Path) -> None:
    # GIVEN a step with alike values, a shared input, a list and a write into a view; alone, and forty times in a row
    def step(begin: float) -> list[dict[str, Any]]:
        square = {"Input Dims": [[8, 8], [8, 8], []], "Input type": ["float", "float", "Scalar"]}
        two = {"Input Dims": [[8, 8], [8, 8]], "Input type": ["float", "float"]}
        listed = {"Input Dims": [[[8, 8], [8, 8]], []], "Input type": ["TensorList", "Scalar"],
                  "Concrete Inputs": ["", "0"]}  # fmt: skip
        view = {"Input Dims": [[8, 8], [], []], "Input type": ["float", "Scalar", "Scalar"],
                "Concrete Inputs": ["", "0", "1"]}  # fmt: skip
        row = {"Input Dims": [[8]], "Input type": ["float"]}
        drawn = {"Input Dims": [[], [], [], [], []], "Input type": ["ScalarList", "", "", "", ""],
                 "Concrete Inputs": ["[3]", "", "", "", ""]}  # fmt: skip
        names = [
            ("aten::rand", drawn), ("aten::mul", two), ("aten::mm", two), ("aten::mm", two), ("aten::add", square),
            ("aten::cat", listed), ("aten::select", view), ("aten::relu_", row), ("aten::add", square),
            ("aten::mul", two),
        ]  # fmt: skip
        mark = {**op("ProfilerStep#1", begin, 900), "cat": "user_annotation"}
        return [mark, *(op(name, begin + 10 * i, 5, **args) for i, (name, args) in enumerate(names, 1))]

    alone = graph_of(tmp_path, *step(0))
    (tmp_path / "long").mkdir()
    long = graph_of(tmp_path / "long", *(event for i in range(40) for event in step(1000.0 * i)))

    # THEN every copy reads what its own step made, as the lone one does
    assert sum(map(len, edges(alone, 0))) > 6
    size = len(alone.ops)
    assert [edges(long, i * size)[:size] for i in range(40)] == [edges(alone, 0)] * 40


def edges(graph: OpGraph, first: int) -> list[list[int | None]]:
    """Producers of what each op from ``first`` on reads, counted from there; ``None`` for what no op made."""
    return [
        [value.producer.index - first if value.producer else None for value in op.inputs()]
        for op in graph.ops[first:]
    ]  # fmt: skip


def test_a_graph_taken_apart_leaves_nothing_to_the_garbage_collector(tmp_path: Path) -> None:
    two = {"Input Dims": [[8], [8]], "Input type": ["float", "float"]}
    gc.collect()
    before = sum(type(thing) in (Op, Value) for thing in gc.get_objects())

    with collection_paused():
        graph = graph_of(tmp_path, op("aten::mul", 0, 5, **two), op("aten::mul", 10, 5, **two))
        assert graph.ops[1].inputs()[0].producer is graph.ops[0]
        graph.dismantle()

        assert sum(type(thing) in (Op, Value) for thing in gc.get_objects()) == before


def test_the_weights_of_an_attention_are_the_left_operand_though_its_values_look_alike(tmp_path: Path) -> None:
    # GIVEN an attention whose sequence is as long as its values are wide, recorded
    q, k, x = torch.randn(2, 4, 16, 8), torch.randn(2, 4, 8, 16), torch.randn(2, 4, 16, 16)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        values = x.exp()
        torch.matmul(torch.softmax(torch.matmul(q, k), -1), values)
    recorded.export_chrome_trace(str(tmp_path / "t.json"))

    # WHEN it is read
    graph = inferred_graph(load_trace(tmp_path / "t.json"))

    # THEN the product reads the softmax on its left, and on its right the values, which were made before
    *_, product = (o for o in graph.ops if o.name == "aten.bmm")
    left, right = product.args
    assert [made_by(left), made_by(right)] == ["aten._softmax", "aten.exp"]


def made_by(value: object) -> str:
    while isinstance(value, Value) and value.producer is not None and value.base is not None:
        value = value.base
    assert isinstance(value, Value)
    assert value.producer is not None
    return value.producer.name
