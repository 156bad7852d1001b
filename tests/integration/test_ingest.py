"""From a recorded step to the op graph, on a small model recorded here with the real profiler."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from auditor.collect.ingest import graph_from_recording, graph_from_trace
from auditor.collect.kineto import load_trace
from auditor.errors import AuditError
from auditor.graph.model import Op, OpGraph, Source, Value

_range = torch._C._profiler._RecordFunctionFast
_TRACES = Path(__file__).parents[3] / "shared" / "traces"


class Block(torch.nn.Module):
    """Pre-norm block: views, an in-place op on a part, a residual with two readers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with _range("fa.source|7|forward|model.py"):
            h = self.norm(x)
        h = torch.nn.functional.silu(self.up(h))
        scratch = torch.zeros(4, 32)
        scratch[:2] = h[:2]
        scratch[2:].add_(1.0)
        return x + self.down(h * scratch)


def _step(model: Block, x: torch.Tensor, optimizer: torch.optim.Optimizer, *, show_outputs: bool = False) -> None:
    with _range("fa.module|Block|block"):
        y = model(x)
    if show_outputs:
        with _range("fa.outputs"):
            torch.ops.aten.alias(y)
    y.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training step: graph pass with execution trace, and two timing passes."""
    folder = tmp_path_factory.mktemp("recording")
    torch.manual_seed(0)
    model, x = Block(), torch.randn(4, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    _step(model, x, optimizer)
    observer = ExecutionTraceObserver().register_callback(str(folder / "graph.et.json"))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as graph:
        _step(model, x, optimizer, show_outputs=True)
    graph.export_chrome_trace(str(folder / "graph.kineto.json"))
    for k in range(2):
        with profile(activities=[ProfilerActivity.CPU]) as timing:
            _step(model, x, optimizer)
        timing.export_chrome_trace(str(folder / f"timing-{k}.kineto.json"))
    (folder / "recording.json").write_text(json.dumps({"has_graph": True, "bare_us": [30.0, 10.0, 20.0]}))
    return folder


@pytest.fixture(scope="module")
def graph(recording: Path) -> OpGraph:
    return graph_from_recording(recording)


def named(graph: OpGraph, name: str, phase: str = "forward") -> list[Op]:
    return [op for op in graph.ops if op.name == name and op.phase == phase]


def root(value: Value) -> Value:
    while value.base is not None:
        value = value.base
    return value


def test_the_step_is_read_op_by_op(graph: OpGraph) -> None:
    forward = [op.name.removeprefix("aten.") for op in graph.ops if op.phase == "forward" and op.kernels]
    assert forward == [
        "native_layer_norm", "addmm", "silu", "zeros", "copy_", "add_", "mul", "addmm", "add", "sum",
    ]  # fmt: skip
    assert {op.phase for op in graph.ops} == {"forward", "backward", "optimizer"}
    assert graph.provenance == "observed"


def test_producers_come_before_consumers_and_lists_agree(graph: OpGraph) -> None:
    for op in graph.ops:
        for value in op.inputs():
            assert op in value.consumers
            producer = root(value).producer
            assert producer is None or producer.index < op.index
        for i, value in enumerate(op.outputs):
            assert (value.producer, value.output_index) == (op, i)


def test_every_kernel_is_in_exactly_one_place(graph: OpGraph) -> None:
    kernels = [id(kernel) for op in graph.ops for kernel in op.kernels] + [id(kernel) for kernel in graph.unlinked]
    assert len(kernels) == len(set(kernels)) == graph.coverage.kernels == graph.coverage.linked


def test_a_write_to_a_part_reaches_readers_of_the_whole(graph: OpGraph) -> None:
    (copy,), (add,), (mul,) = named(graph, "aten.copy_"), named(graph, "aten.add_"), named(graph, "aten.mul")
    scratch = root(list(mul.inputs())[1])
    assert scratch.producer is add
    assert root(add.mutates[0]).producer is copy
    assert root(copy.mutates[0]).producer is named(graph, "aten.zeros")[0]


def test_backward_reads_what_forward_saved(graph: OpGraph) -> None:
    (silu,) = named(graph, "aten.silu")
    (silu_backward,) = named(graph, "aten.silu_backward", "backward")
    saved = list(silu_backward.inputs())[1]
    assert root(saved) is root(next(iter(silu.inputs())))
    assert silu_backward in saved.consumers


def test_module_source_and_escape_come_from_annotations(graph: OpGraph) -> None:
    (norm,) = named(graph, "aten.native_layer_norm")
    (norm_backward,) = named(graph, "aten.native_layer_norm_backward", "backward")
    for op in (norm, norm_backward):
        assert (op.module, op.module_class, op.source) == ("block", "Block", Source("model.py", 7, "forward"))
    assert [op.name for op in graph.ops if any(v.escapes for v in op.outputs)] == ["aten.add"]
    assert not named(graph, "aten.alias")


def test_views_have_no_kernel_and_share_the_storage(graph: OpGraph) -> None:
    views = [op for op in graph.ops if op.name in ("aten.t", "aten.view", "aten.slice", "aten.expand")]
    assert views
    for op in views:
        source = next(iter(op.inputs()))
        assert not op.kernels
        assert (op.outputs[0].base, op.outputs[0].storage) == (source, source.storage)


def test_times_are_medians_of_the_timing_passes(graph: OpGraph, recording: Path) -> None:
    assert graph.step_us == 20.0
    assert graph.coverage.notes == []
    slow = graph_from_trace(recording / "graph.kineto.json", recording / "graph.et.json")
    pairs = list(zip(graph.ops, slow.ops, strict=True))
    assert any(fast.dur_us != own.dur_us for fast, own in pairs if fast.kernels)
    starts = [op.kernels[0].start_us for op in graph.ops if op.kernels]
    assert starts == sorted(starts)


def test_a_timing_step_that_ran_other_ops_is_left_out_with_a_note(recording: Path, tmp_path: Path) -> None:
    # GIVEN a recording in which one timing step lacks an op and another has one more
    folder = shutil.copytree(recording, tmp_path / "r")
    _edit(folder / "timing-0.kineto.json", lambda events: [e for e in events if e.get("name") != "aten::silu"])

    # WHEN it is read
    graph = graph_from_recording(folder)

    # THEN that step is named with the op, and the other is used
    (note,) = graph.coverage.notes
    assert note.startswith("timing-0.kineto.json: left out of the timing")
    assert "aten.silu" in note


def test_without_an_agreeing_timing_step_the_graph_times_stay(recording: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(recording, tmp_path / "r")
    for k in range(2):
        _edit(folder / f"timing-{k}.kineto.json", lambda events: events[:1])

    graph = graph_from_recording(folder)

    assert all(op.dur_us > 0 for op in graph.ops if op.kernels)
    assert graph.coverage.notes[-1].startswith("No timing step ran the ops of the graph step")


def test_a_foreign_execution_trace_is_refused_with_the_share_that_agrees(recording: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    shutil.copy(recording / "graph.kineto.json", other)
    _edit(other, lambda events: [{**e, "name": "aten::relu"} if e.get("cat") == "cpu_op" else e for e in events])

    with pytest.raises(AuditError, match=r"not of the same step as .*other\.json: only \d+% of \d+ ops agree"):
        graph_from_trace(other, recording / "graph.et.json")


def test_a_recording_without_graph_step_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text("{}")
    with pytest.raises(AuditError, match="holds no graph step"):
        graph_from_recording(tmp_path)


def _edit(path: Path, change: Any) -> None:
    trace = json.loads(path.read_text())
    trace["traceEvents"] = change(trace["traceEvents"])
    path.write_text(json.dumps(trace))


def test_inferred_edges_of_the_same_step_agree_with_the_observed(graph: OpGraph, recording: Path) -> None:
    # GIVEN the same step without its execution trace
    guessed = graph_from_trace(recording / "graph.kineto.json")

    # THEN the forward ops that launch something are the same, and so are edges that order alone decides
    assert guessed.provenance == "inferred"
    real = [op for op in graph.ops if op.phase == "forward" and op.kernels]
    guess = [op for op in guessed.ops if op.phase == "forward" and op.kernels]
    assert [op.name for op in guess] == [op.name for op in real]
    for name in ("aten.silu", "aten.sum"):
        assert _producers(guess, name) == _producers(real, name) != []
    assert "aten.addmm" in _producers(guess, "aten.add")
    assert _producers(guess, "aten.mul")[-1] == _producers(real, "aten.mul")[-1] == "aten.add_"


def _producers(ops: list[Op], name: str) -> list[str]:
    op = next(op for op in ops if op.name == name)
    return [producer.name for value in op.inputs() if (producer := root(value).producer)]


def trace_file(name: str) -> Path:
    path = _TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not on this machine")
    return path


@pytest.fixture(scope="module")
def qwen() -> OpGraph:
    return graph_from_trace(trace_file("h100_qwen1.5-0.5b_eager.json.gz"))


def readers(value: Value) -> list[Op]:
    """Ops that read the value, through views."""
    found: list[Op] = []
    for op in value.consumers:
        views = [out for out in op.outputs if root(out) is root(value)]
        found += [reader for view in views for reader in readers(view)] if views else [op]
    return found


def test_real_trace_coverage_counts_what_was_launched_before_the_window(qwen: OpGraph) -> None:
    c = qwen.coverage
    assert (c.kernels, c.linked, c.before_window, c.graph_replayed, c.outside_ops) == (1465, 1029, 436, 0, 0)
    assert qwen.kernels == 1465
    assert (qwen.device_kind, qwen.device_name) == ("cuda", "NVIDIA H100 80GB HBM3")


def test_real_trace_residual_sums_form_one_chain_of_48(qwen: OpGraph) -> None:
    sums = [op for op in qwen.ops if op.name == "aten.add" and op.module_class == "Qwen2DecoderLayer"]
    assert len(sums) == 48
    for before, after in pairwise(sums):
        assert any(root(value).producer is before for value in after.inputs())
        assert {op.module_class for op in readers(before.outputs[0])} == {"Qwen2RMSNorm", "Qwen2DecoderLayer"}


def test_real_trace_rotary_embeddings_of_q_and_k_stay_apart(qwen: OpGraph) -> None:
    sums = [op for op in qwen.ops if op.name == "aten.add" and op.module_class == "Qwen2Attention"]
    products = [root(next(iter(op.inputs()))).producer for op in sums]
    sources = [root(next(iter(product.inputs()))) for product in products if product]
    assert len(sums) == len({id(source) for source in sources}) == 48
    assert {source.producer.name for source in sources if source.producer} == {"aten.addmm"}


def test_real_trace_projections_share_their_input(qwen: OpGraph) -> None:
    inputs: dict[int, int] = {}
    for op in qwen.ops:
        if op.name in ("aten.mm", "aten.addmm"):
            value = root(list(op.inputs())[op.name == "aten.addmm"])
            inputs[value.id] = inputs.get(value.id, 0) + 1
    counts = list(inputs.values())
    assert (counts.count(3), counts.count(2), counts.count(1)) == (24, 24, 48)


def test_real_pair_whose_ids_do_not_match_joins_by_op_order() -> None:
    graph = graph_from_trace(
        trace_file("rtx2080ti_linear_training.json.gz"), trace_file("rtx2080ti_linear_training.et.json.gz")
    )
    assert graph.coverage.linked == 220
    assert graph.kernels == graph.coverage.kernels == 8716


def test_the_window_of_a_device_that_runs_behind_is_the_devices(tmp_path: Path) -> None:
    """Idle time is what is left of the window in which the kernels ran, not of the host's shorter step."""
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"stream": 7, "correlation": 1}}
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#6", "pid": 1, "tid": 1, "ts": 100.0, "dur": 40.0},
        {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 101.0, "dur": 5.0},
        {**kernel, "ts": 90.0, "dur": 10.0},
        {**kernel, "ts": 140.0, "dur": 20.0},
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert graph_from_trace(path).step_us == 70.0


def test_times_that_can_not_be_are_no_times(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1}
    times = [(1.0, 4.0), (7.0, -5.0), (9.0, 1e300), (1e30, 4.0), (-1e30, 4.0)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{**event, "ts": ts, "dur": dur} for ts, dur in times]}))
    assert [(op.ts, op.dur) for op in load_trace(path).cpu_ops] == [(1.0, 4.0), (7.0, None), (9.0, None)]
