"""Steps of a trace: by what marks them, by what repeats, and what is none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from step_traces import Made, TraceMaker, cut_at_both_ends, model, training

from auditor.collect.kineto import load_trace
from auditor.collect.repetition import smallest_period
from auditor.collect.step_structure import Steps, find_steps

TRACES = Path(__file__).parents[3] / "shared" / "traces"


def found(trace: TraceMaker, tmp_path: Path) -> Steps:
    return find_steps(load_trace(trace.write(tmp_path)))


def told(steps: Steps) -> tuple[str, list[bool]]:
    return steps.found.by, [span.complete for span in steps.found.spans]


def in_ranges(trace: TraceMaker, *names: str) -> None:
    for name in names:
        begin = trace.now
        trace.ops(model())
        trace.mark(name, begin)


def profiler(trace: TraceMaker) -> None:
    in_ranges(trace, "ProfilerStep#7", "ProfilerStep#8", "ProfilerStep#9")


def profiler_of_the_1_8_era(trace: TraceMaker) -> None:
    for number in range(3):
        begin = trace.now
        trace.ops(model())
        trace.mark(f"ProfilerStep#{number}", begin, "Operator")


def named_ranges(trace: TraceMaker) -> None:
    in_ranges(trace, "train_step", "train_step", "train_step")


def numbered_ranges(trace: TraceMaker) -> None:
    in_ranges(trace, "Iteration 1", "Iteration 2", "Iteration 3")


def ranges_of_the_forward_alone(trace: TraceMaker) -> None:
    for _ in range(3):
        begin = trace.now
        trace.ops(model())
        trace.mark("[pl][profile]LightningModule.training_step", begin)
        trace.ops(model()[3:7])


def steps_of_a_serving_engine(trace: TraceMaker) -> None:
    in_ranges(trace, "step[DECODE bs=8 toks=8]", "step[DECODE bs=7 toks=7]", "step[DECODE bs=6 toks=6]")


def ranges_of_parts(trace: TraceMaker) -> None:
    for _ in range(3):
        begin = trace.now
        trace.ops(model()[:4])
        trace.mark("## forward ##", begin)
        trace.ops(model()[4:])
        begin = trace.now
        trace.ops(model()[:2])
        trace.mark("## loss ##", begin)


def optimizers(trace: TraceMaker) -> None:
    for _ in range(3):
        training(trace)


def two_optimizers_a_step(trace: TraceMaker) -> None:
    for _ in range(3):
        for ops in (model(), model()[:3] * 2):
            trace.ops(ops)
            begin = trace.now
            trace.op(Made("aten::add_", [[64, 64], [64, 64]], [("update", 5.0)]))
            trace.mark("Optimizer.step#Adam.step", begin)


def data_loader(trace: TraceMaker) -> None:
    for last in (False, False, False, True):  # the last call finds nothing more to load
        begin = trace.now
        trace.now += 30.0
        trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin)
        trace.ops([] if last else model())


def batches_within_one_profiled_step(trace: TraceMaker) -> None:
    begin = trace.now
    data_loader(trace)
    trace.mark("ProfilerStep#6", begin)


def modules(trace: TraceMaker) -> None:
    for _ in range(3):
        trace.op(Made("aten::zeros", [[8]], [("fill", 1.0)]))  # what the script does before it calls the model
        begin = trace.now
        for i in range(3):
            inner = trace.now
            trace.ops(model())
            trace.mark(f"nn.Module: Layer_{i}", inner, "python_function")
        trace.mark("nn.Module: Net_0", begin, "python_function")


def optimizers_and_what_follows(trace: TraceMaker) -> None:
    for _ in range(3):
        training(trace)
        trace.ops(model()[:2])


def nothing_but_repetition(trace: TraceMaker) -> None:
    for _ in range(3):
        trace.ops(model())


@pytest.mark.parametrize(
    ("make", "by"),
    [
        (profiler, "profiler"), (profiler_of_the_1_8_era, "profiler"), (named_ranges, "annotation"),
        (numbered_ranges, "annotation"), (steps_of_a_serving_engine, "annotation"),
        (ranges_of_the_forward_alone, "annotation"), (ranges_of_parts, "annotation"),
        (optimizers, "optimizer"), (two_optimizers_a_step, "optimizer"),
        (optimizers_and_what_follows, "optimizer"), (data_loader, "data loader"),
        (batches_within_one_profiled_step, "data loader"), (modules, "modules"),
        (nothing_but_repetition, "repetition"),
    ],
)  # fmt: skip
def test_three_steps_are_three_steps(make: Callable[[TraceMaker], None], by: str, tmp_path: Path) -> None:
    # GIVEN three steps, told in one of the ways that traces have
    trace = TraceMaker()
    make(trace)

    # THEN they are three whole ones, each with the same ops, and they do not overlap
    steps = found(trace, tmp_path)
    assert told(steps) == (by, [True] * 3)
    spans = steps.found.spans
    ops = [event["ts"] for event in trace.events if event["name"].startswith("aten::")]
    counts = [sum(span.start_us <= ts < span.end_us for ts in ops) for span in spans]
    assert len(set(counts)) == 1
    assert sum(counts) == len(ops)
    assert all(a.end_us <= b.start_us for a, b in pairwise(spans))


def layers_with_a_range_each(trace: TraceMaker) -> None:
    trace.ops(model()[:3])
    in_layers(trace, lambda begin: trace.mark("layer", begin))
    trace.ops(model()[-1:])


def layers_alone_with_a_range_each(trace: TraceMaker) -> None:
    in_layers(trace, lambda begin: trace.mark("layer", begin))


def layers(trace: TraceMaker) -> None:
    in_layers(trace, None)


def in_layers(trace: TraceMaker, mark: Callable[[float], None] | None) -> None:
    for _ in range(4):
        begin = trace.now
        trace.ops(
            [Made("aten::mm", [[8, 64], [64, 64]], [("gemm", 9.0)]), Made("aten::relu", [[8, 64]], [("relu", 3.0)])]
        )
        if mark is not None:
            mark(begin)


def accumulated_gradients(trace: TraceMaker) -> None:
    begin = trace.now
    for _ in range(4):
        start = trace.now
        trace.mark("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start)
        trace.ops(model())
    start = trace.now
    trace.op(Made("aten::add_", [[64, 64], [64, 64]], [("update", 5.0)]))
    trace.mark("Optimizer.step#SGD.step", start)
    trace.mark("ProfilerStep#1", begin)


def two_views_through_one_encoder(trace: TraceMaker) -> None:
    begin = trace.now
    for _ in range(2):
        start = trace.now
        trace.ops(model())
        trace.mark("nn.Module: Encoder_0", start, "python_function")
    trace.mark("ProfilerStep#4", begin)


def collectives(trace: TraceMaker) -> None:
    for ops in (model(), model()[:2]):
        trace.ops(ops)
        begin = trace.now
        trace.mark("nccl:all_reduce", begin)


def one_replay_of_layers(trace: TraceMaker) -> None:
    trace.launch([("gemm", 9.0), ("relu", 3.0)] * 24)


def no_shapes(trace: TraceMaker) -> None:
    for _ in range(4):
        trace.ops([Made("aten::mm", (), [("gemm", 9.0)]), Made("aten::relu", (), [("relu", 3.0)])])


@pytest.mark.parametrize(
    "make",
    [
        layers_with_a_range_each,
        layers_alone_with_a_range_each,
        layers,
        accumulated_gradients,
        two_views_through_one_encoder,
        collectives,
        one_replay_of_layers,
        no_shapes,
    ],
)
def test_what_repeats_within_a_step_is_no_step(make: Callable[[TraceMaker], None], tmp_path: Path) -> None:
    trace = TraceMaker()
    make(trace)
    assert found(trace, tmp_path).found.complete <= 1


def test_replays_of_one_graph_are_steps(tmp_path: Path) -> None:
    # GIVEN the same graph three times, its layers within
    trace = TraceMaker()
    for _ in range(3):
        trace.launch([("gemm", 9.0), ("relu", 3.0)] * 4)
        trace.now += 200.0

    # THEN the replays are counted, and the layers are not
    assert told(found(trace, tmp_path)) == ("repetition", [True] * 3)


def test_replays_are_steps_where_a_few_ops_run_beside_them(tmp_path: Path) -> None:
    # GIVEN a server that prepares its input once, and then replays a graph in several pieces a step
    trace = TraceMaker()
    trace.op(Made("aten::zeros", [[8]], [("fill", 1.0)]))
    for _ in range(3):
        for piece in ("embed", "layer", "layer", "head"):
            trace.launch([(piece, 9.0), ("relu", 3.0), (piece, 9.0)])
            trace.now += 50.0
    assert told(found(trace, tmp_path)) == ("repetition", [True] * 3)


def test_steps_that_the_window_cut_are_told_apart(tmp_path: Path) -> None:
    # GIVEN a window that opens before the backward pass of a step and closes in the forward of another
    trace = cut_at_both_ends(TraceMaker())

    # THEN three whole steps lie between two parts
    assert told(found(trace, tmp_path)) == ("optimizer", [False, True, True, True, False])


def test_the_profilers_last_step_may_be_cut(tmp_path: Path) -> None:
    # GIVEN a profiler that was stopped in its third step, and one that was stopped at once after its second
    for rest in (model()[:3], []):
        trace = TraceMaker()
        for number, ops in enumerate((model(), model(), rest)):
            begin = trace.now
            trace.ops(ops)
            trace.mark(f"ProfilerStep#{number}", begin)
        assert told(found(trace, tmp_path)) == ("profiler", [True, True, False])


def test_steps_of_a_server_differ(tmp_path: Path) -> None:
    # GIVEN ranges that a serving engine calls steps: replays of a graph among steps that run op by op
    trace = TraceMaker()
    for number, ops in enumerate(([], model(), model(), [])):
        begin = trace.now
        trace.ops(ops)
        trace.launch([("gemm", 9.0), ("relu", 3.0)])
        trace.mark(f"execute_context_0(0)_generation_{number}({number})", begin)
    assert told(found(trace, tmp_path)) == ("annotation", [True] * 4)


def test_two_parts_that_make_a_step_are_no_step(tmp_path: Path) -> None:
    # GIVEN a window that opens and closes at the same place of a step, after its forward has begun
    whole, trace = TraceMaker(), TraceMaker()
    training(whole)
    begin = next(e["ts"] for e in whole.events if e["name"] == "aten::sigmoid")
    trace.events = [event for event in whole.events if event["ts"] >= begin]
    trace.now, trace.device, trace.correlation = whole.now, whole.device, whole.correlation
    for _ in range(2):
        training(trace)
    trace.ops(model()[:4])

    # THEN the steps begin where they do, after an update, and not at that place
    steps = found(trace, tmp_path)
    assert told(steps) == ("optimizer", [False, True, True, False])
    first = [e["ts"] for e in trace.events if e["name"] == "aten::embedding"]
    assert all(span.start_us <= ts < span.end_us for span, ts in zip(steps.found.spans[1:], first, strict=True))


def test_repetition_stands_a_cut_at_both_ends(tmp_path: Path) -> None:
    # GIVEN steps with a pause between them that nothing marks, and a window that cuts the first and the last
    trace = TraceMaker()
    trace.ops(model()[5:])
    for _ in range(3):
        trace.now += 500.0
        trace.ops(model())
    trace.now += 500.0
    trace.ops(model()[:4])

    # THEN a step begins after the pause
    steps = found(trace, tmp_path)
    assert told(steps) == ("repetition", [False, True, True, True, False])
    first = [e["ts"] for e in trace.events if e["name"] == "aten::embedding"]
    assert [span.start_us for span in steps.found.spans[1:]] == first


def test_the_first_step_may_do_more(tmp_path: Path) -> None:
    # GIVEN a training whose first step also moves the model to the device and has no gradients to clear
    trace = TraceMaker()
    trace.ops([Made("aten::copy_", [[64, 64], [64, 64]], [("copy", 5.0)]) for _ in range(6)])
    optimizers(trace)
    assert told(found(trace, tmp_path)) == ("optimizer", [True] * 3)


@given(unit=st.lists(st.sampled_from("abc"), min_size=1, max_size=6), repeats=st.integers(2, 5), cut=st.integers(0, 5))
def test_the_period_is_the_smallest_by_definition(unit: list[str], repeats: int, cut: int) -> None:
    word = unit * repeats + unit[: cut % len(unit)]
    periods = [p for p in range(1, len(word) // 2 + 1) if all(word[i] == word[i + p] for i in range(len(word) - p))]
    assert smallest_period(word) == periods[0]


def test_what_does_not_repeat_has_no_period() -> None:
    assert smallest_period([]) == smallest_period(["a"]) == smallest_period(list("abcab")) == 0


@pytest.mark.parametrize(
    ("name", "by", "steps"),
    [
        ("h100_owlv2_eager", "data loader", 5), ("rtx2080ti_linear_training", "optimizer", 40),
        ("torch1.8_resnet50_old_era", "profiler", 6), ("h100_small_transformer_training", "profiler", 3),
        ("mi300x_resnet_ddp_training", "profiler", 3), ("v100_resnet_ddp_ns_timestamps", "profiler", 5),
        ("h100_qwen1.5-0.5b_eager", "profiler", 1), ("h100_bert-small_launch_bound", "profiler", 1),
        ("vllm_decode_graph_replay", "", 0),
    ],
)  # fmt: skip
def test_steps_of_real_traces(name: str, by: str, steps: int) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    found_steps = find_steps(load_trace(path))
    assert told(found_steps) == (by, [True] * steps)


@pytest.mark.parametrize(
    ("name", "by", "steps"),
    [
        ("rtx2080ti_linear_training", "likeness", 40),  # an op before the first of its forwards
        ("v100_resnet_ddp_ns_timestamps", "repetition", 5), ("torch1.8_resnet50_old_era", "repetition", 6),
    ],
)  # fmt: skip
def test_real_steps_are_found_without_what_marks_them(name: str, by: str, steps: int) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    trace = load_trace(path)
    trace.annotations, trace.python = [], []
    trace.cpu_ops = [event for event in trace.cpu_ops if not event.name.startswith(("enumerate", "Optimizer"))]
    assert told(find_steps(trace)) == (by, [True] * steps)
