"""Steps of a trace that nothing marks, and that differ a little: found where they are, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_traces import BACKWARD, Made, TraceMaker

from auditor.collect.ingest import graph_from_trace
from auditor.collect.kineto import load_trace
from auditor.collect.step_structure import Steps, find_steps

X = [8, 64]
UNARY = ("relu", "sigmoid", "tanh", "neg", "exp", "cos")
UPDATE = [Made("aten::_foreach_add_", [[64, 64]], [("update", 5.0)]) for _ in range(3)]
READ_OUT = [Made("aten::item", [[1]]), Made("aten::_local_scalar_dense", [[1]])]
LOAD = [Made("aten::stack", [[8]]), Made("aten::copy_", [[8], [8]])]


def layer(number: int) -> list[Made]:
    ops = [Made("aten::mm", [X, [64, 64]], [("gemm", 9.0)])]
    return ops + [Made(f"aten::{UNARY[(number + i) % 6]}", [X], [("unary", 3.0)]) for i in range(4)]


def model(layers: int = 6) -> list[Made]:
    """32 ops with 6 layers, the first of which reads what nothing has made."""
    made = [op for number in range(layers) for op in layer(number)]
    return [Made("aten::embedding", [[100, 64], [8]], [("gather", 3.0)]), *made, Made("aten::mm", [X, [64, 100]])]


def backward(trace: TraceMaker) -> None:
    begin = trace.now
    trace.ops(layer(0) * 3, BACKWARD)
    trace.mark("autograd::engine::evaluate_function: MmBackward0", begin, "cpu_op", BACKWARD)


def updates_that_are_left_out(trace: TraceMaker) -> list[float]:
    begins = []
    for number in range(6):
        begins.append(trace.now)
        trace.ops(model())
        backward(trace)
        trace.ops(UPDATE if number in (1, 4, 5) else [])  # a scaler leaves out what overflowed
    return begins


def a_number_read_out_now_and_then(trace: TraceMaker) -> list[float]:
    begins = []
    for number in range(5):
        begins.append(trace.now)
        trace.ops(model())
        trace.ops(READ_OUT if number == 2 else [])
    return begins


def a_first_step_that_makes_state(trace: TraceMaker) -> list[float]:
    begins = []
    for number in range(4):
        begins.append(trace.now)
        trace.ops(model())
        backward(trace)
        trace.ops([Made("aten::zeros_like", [[64, 64]])] * 20 if number == 0 else [])
        trace.ops(UPDATE)
    return begins


def a_loader_that_loads_more_or_less(trace: TraceMaker) -> list[float]:
    begins = []
    for number in (1, 0, 2, 1):
        trace.ops(LOAD * number)
        begins.append(trace.now)
        trace.ops(model())
    begins[0] = float("-inf")  # what the window begins with belongs to its first step
    return begins


@pytest.mark.parametrize(
    "make",
    [updates_that_are_left_out, a_number_read_out_now_and_then, a_first_step_that_makes_state,
     a_loader_that_loads_more_or_less],
)  # fmt: skip
def test_steps_that_differ_a_little_are_steps(make: Callable[[TraceMaker], list[float]], tmp_path: Path) -> None:
    # GIVEN steps in which nothing is marked
    trace = TraceMaker()
    begins = make(trace)

    # THEN each begins where it does, but for what the step before may as well have ended with
    steps = found(trace, tmp_path)
    assert (steps.found.by, steps.found.complete, len(steps.found.spans)) == ("likeness", len(begins), len(begins))
    late = [span.start_us - begin for span, begin in zip(steps.found.spans[1:], begins[1:], strict=True)]
    assert all(-20 <= each <= 0 for each in late)  # two ops of the loader

    # AND the audit says what that rests on
    note = next(n for n in graph_from_trace(tmp_path / "trace.json").coverage.notes if n.startswith("Nothing marks"))
    assert note == steps.assumed
    assert "It is assumed that a step begins with the window, at aten::" in note


def test_what_differs_is_said_in_ops(tmp_path: Path) -> None:
    trace = TraceMaker()
    a_first_step_that_makes_state(trace)
    assert "of 35 ops the first differs by 20 ops. It is assumed" in found(trace, tmp_path).assumed
    trace = TraceMaker()
    a_number_read_out_now_and_then(trace)
    assert "of 32 ops they differ by up to 2. It is assumed" in found(trace, tmp_path).assumed


def test_a_window_that_cuts_them_begins_after_a_pause(tmp_path: Path) -> None:
    # GIVEN alike steps with a pause between them, of which the window cuts the first and the last
    trace = TraceMaker()
    trace.ops(model()[20:])
    for number in range(3):
        trace.now += 500.0
        trace.ops(model())
        trace.ops(READ_OUT if number == 1 else [])
    trace.now += 500.0
    trace.ops(model()[:12])

    # THEN what it cut is no step
    steps = found(trace, tmp_path)
    assert [span.complete for span in steps.found.spans] == [False, True, True, True, False]
    assert "after the longest wait, at aten::embedding" in steps.assumed
    assert steps.cuts == ()  # an activation may still live, as where a step begins is assumed


def layers_of_experts(trace: TraceMaker) -> None:
    trace.ops(model(1)[:1])
    for number in range(8):
        route = [Made("aten::topk", [X]), *READ_OUT]
        trace.ops([*layer(0), *route, *layer(1), *layer(2), *layer(3), *layer(4), *(READ_OUT if number == 3 else [])])
    trace.ops(model(1)[-1:])


def layers_without_shapes(trace: TraceMaker) -> None:
    for number in range(6):
        trace.ops([Made(op.name) for op in model()[1:]])
        trace.ops(READ_OUT if number == 2 else [])


def layers_that_are_trained(trace: TraceMaker) -> None:
    for number in range(6):
        trace.ops(model()[1:])
        trace.ops(READ_OUT if number == 2 else [])
    for _ in range(6):
        backward(trace)
    trace.ops(UPDATE)


def steps_of_a_sampler(trace: TraceMaker) -> None:
    for number in range(5):
        trace.ops(model()[1:-1])  # each reads what the one before made
        trace.ops([Made("aten::add", [X, X])] * (2 if number == 3 else 1))


def two_halves(trace: TraceMaker) -> None:
    trace.ops(model(8))
    trace.ops([*model(3), *UPDATE * 4])


@pytest.mark.parametrize(
    "make", [layers_of_experts, layers_without_shapes, layers_that_are_trained, steps_of_a_sampler, two_halves]
)
def test_what_is_alike_within_a_step_is_no_step(make: Callable[[TraceMaker], None], tmp_path: Path) -> None:
    trace = TraceMaker()
    make(trace)
    assert found(trace, tmp_path).found.complete <= 1


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_another_number_of_steps_is_never_told(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ops that come or go anywhere may hide the steps, and never make others of them."""
    trace = TraceMaker()
    repeats = data.draw(st.integers(2, 5))
    for _ in range(repeats):
        ops = model()
        for place in data.draw(st.lists(st.integers(1, len(ops) - 1), max_size=2)):
            if data.draw(st.booleans()):
                ops.insert(place, Made("aten::item", [[1]]))
            else:
                del ops[min(place, len(ops) - 1)]
        trace.ops(ops)
    steps = found(trace, tmp_path_factory.mktemp("alike")).found
    assert steps.by in ("", "likeness", "repetition")
    assert steps.complete == repeats or steps.by != "likeness"  # two kinds of step in turns do repeat exactly


def found(trace: TraceMaker, folder: Path) -> Steps:
    return find_steps(load_trace(trace.write(folder)))
