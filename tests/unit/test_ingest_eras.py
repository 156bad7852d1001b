"""The same step as every era and vendor recorded it: the same audit; what a file does not tell is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from era_traces import ERAS, KERNELS_A_STEP, OPS, PID, TID, Era, Event, step, write

from auditor.api import load
from auditor.collect.ingest import graph_from_trace
from auditor.config import Config
from auditor.errors import AuditError
from auditor.graph.model import Coverage, OpGraph

BY_NAME = {era.name: era for era in ERAS}
MODERN = BY_NAME["2.6"]
each_era = pytest.mark.parametrize("era", ERAS, ids=lambda era: era.name)


def steps(era: Era, count: int = 2, **more: Any) -> list[Event]:
    return [event for number in range(count) for event in step(era, number, **more)]


def kernels_by_op(graph: OpGraph) -> list[tuple[str, str, list[str]]]:
    return [(op.name, op.phase, [kernel.name for kernel in op.kernels]) for op in graph.ops if op.kernels]


def counted(c: Coverage) -> tuple[int, int, int, int, int, int]:
    assert c.kernels == c.linked + c.before_window + c.graph_replayed + c.outside_ops + c.unattributed
    return (c.kernels, c.linked, c.before_window, c.graph_replayed, c.outside_ops, c.unattributed)


def is_kernel(event: Event) -> bool:
    return str(event.get("cat")).lower() == "kernel"


def is_launch(event: Event) -> bool:
    return "unch" in event["name"] and "correlation" in event.get("args", {}) and not is_kernel(event)


@each_era
def test_every_era_has_the_same_audit(tmp_path: Path, era: Era) -> None:
    # GIVEN the step as the newest era and as another one wrote it WHEN both are audited for the same device
    audits = [
        load(write(tmp_path / f"{e.name}.json", e, steps(e)), device="h100_sxm", config=Config()) for e in (MODERN, era)
    ]
    newest, other = (audit.document for audit in audits)

    # THEN coverage, totals and findings are the same, and every kernel belongs to the op that launched it
    assert counted(audits[1].graph.coverage) == (2 * KERNELS_A_STEP, 2 * KERNELS_A_STEP, 0, 0, 0, 0)
    assert other.coverage == newest.coverage
    assert other.coverage.steps == 2
    assert other.totals == newest.totals
    assert [(f.rule, f.sites, f.kernels, f.ops, f.device_us, f.bytes_now, f.saving) for f in other.findings] == [
        (f.rule, f.sites, f.kernels, f.ops, f.device_us, f.bytes_now, f.saving) for f in newest.findings
    ]
    assert sum(finding.sites for finding in newest.findings) >= 4
    expected = [(name.replace("::", "."), "forward", [kernel]) for name, *_, kernel, _ in OPS]
    assert kernels_by_op(audits[1].graph) == 2 * expected


@pytest.mark.parametrize(
    ("era", "kind"), [("1.8", "cuda"), ("2.6", "cuda"), ("rocm", "hip"), ("xpu", "xpu")]
)  # fmt: skip
def test_the_vendor_is_told_by_who_launches(tmp_path: Path, era: str, kind: str) -> None:
    graph = graph_from_trace(write(tmp_path / "t.json", BY_NAME[era], steps(BY_NAME[era])))
    assert graph.device_kind == kind
    assert {kernel.stream for op in graph.ops for kernel in op.kernels} == {BY_NAME[era].stream}


@each_era
def test_flows_and_memory_marks_are_not_needed(tmp_path: Path, era: Era) -> None:
    bare = write(tmp_path / "t.json", era, steps(era), keep=lambda event: event["ph"] == "X")
    assert counted(graph_from_trace(bare).coverage) == (16, 16, 0, 0, 0, 0)


@each_era
def test_kernels_launched_before_the_window_are_counted(tmp_path: Path, era: Era) -> None:
    # GIVEN a window that opens in the middle of a step: ops and launches of its first half are not in the file
    opened = 10_000 + 20 + 20 * 4 - 1

    def in_window(event: Event) -> bool:
        return event["ts"] >= opened or is_kernel(event)

    graph = graph_from_trace(write(tmp_path / "t.json", era, steps(era), keep=in_window))

    # THEN their kernels are counted, and the rest is linked as ever
    assert counted(graph.coverage) == (16, 12, 4, 0, 0, 0)
    assert kernels_by_op(graph)[0] == ("aten.add", "forward", ["add"])


@each_era
def test_a_window_that_closes_in_mid_step_loses_no_kernel_that_it_holds(tmp_path: Path, era: Era) -> None:
    closed = 11_000 + 100 + 100 * 3
    graph = graph_from_trace(write(tmp_path / "t.json", era, steps(era), keep=lambda event: event["ts"] < closed))

    assert counted(graph.coverage) == (11, 11, 0, 0, 0, 0)
    assert [op.name for op in graph.ops if op.name != "aten.empty" and not op.kernels] == [
        "aten.mul", "aten.add", "aten.sigmoid", "aten.mul", "aten.tanh",
    ]  # fmt: skip


@pytest.mark.parametrize("launcher", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch", ""])
def test_a_graph_replay_links_nothing_and_is_counted(tmp_path: Path, launcher: str) -> None:
    # GIVEN a step, and a replay of it: one launch, in an op's time or not in the file, whose id all kernels share
    replay = [e | {"args": {**e["args"], "correlation": 900}} for e in step(MODERN, 1) if is_kernel(e)]
    host = {"ph": "X", "pid": PID, "tid": TID}
    if launcher:
        replay += [
            {**host, "cat": "user_annotation", "name": "replay", "ts": 10_900, "dur": 40, "args": {}},
            {**host, "cat": "cuda_runtime", "name": launcher, "ts": 10_910, "dur": 9, "args": {"correlation": 900}},
        ]
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, steps(MODERN, 1) + replay))

    assert counted(graph.coverage) == (16, 8, 0, 8, 0, 0)


def test_ids_that_a_restarted_profiler_gave_again_link_by_time(tmp_path: Path) -> None:
    # GIVEN three recordings of one process in one file, each with the same ids; the last one has another order of ops
    again = [e for i in range(2) for e in step(MODERN, 0, begin_us=10_000 + 50_000 * i)]
    last = list(step(MODERN, 0, begin_us=200_000))
    names = [e for e in last if e["cat"] == "cpu_op" and e["name"] != "aten::empty"]
    for event, name in zip(names, reversed([e["name"] for e in names]), strict=True):
        event["name"] = name

    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, again + last))

    # THEN each kernel belongs to the op around the latest launch before it
    assert counted(graph.coverage) == (24, 24, 0, 0, 0, 0)
    forward = [name.replace("::", ".") for name, *_ in OPS]
    assert [op.name for op in graph.ops if op.kernels] == [*forward, *forward, *reversed(forward)]
    assert all(len(op.kernels) == 1 for op in graph.ops if op.kernels)


def test_a_kernel_before_all_launches_with_its_id_is_of_none(tmp_path: Path) -> None:
    # GIVEN a restart whose first recording lost its launches: they are in the file once, and after these kernels
    first = [e for e in step(MODERN, 0, begin_us=10_000) if is_kernel(e)]
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, first + list(step(MODERN, 0, begin_us=90_000))))

    assert counted(graph.coverage) == (16, 8, 8, 0, 0, 0)


def test_clocks_that_disagree_still_link_by_id(tmp_path: Path) -> None:
    # GIVEN a device whose clock is 30 ms behind the host's
    events = [e | {"ts": e["ts"] - 30_000} if is_kernel(e) else e for e in steps(MODERN, begin_us=100_000)]
    assert counted(graph_from_trace(write(tmp_path / "t.json", MODERN, events)).coverage) == (16, 16, 0, 0, 0, 0)


@pytest.mark.parametrize("missing", [None, 0, -1])
def test_kernels_without_an_id_are_of_unknown_launch(tmp_path: Path, missing: int | None) -> None:
    # GIVEN collectives as roctracer wrote them: their kernels have the id 0; or no id at all
    rocm = BY_NAME["rocm"]
    events = steps(rocm, 1)
    for event in [e for e in events if is_kernel(e)][2:5]:
        del event["args"]["correlation"]
        if missing is not None:
            event["args"]["correlation"] = missing

    assert counted(graph_from_trace(write(tmp_path / "t.json", rocm, events)).coverage) == (8, 5, 0, 0, 0, 3)


def ranks(shared: int, *, unique: bool, same_device: bool = False) -> list[Event]:
    """Two ranks in one file, whose ids overlap. ``unique``: each also has ids that the other one lacks."""
    first = steps(MODERN, 1 + unique, pid=1, first_id=100)
    second = steps(MODERN, 1 + unique, pid=2, first_id=100 + shared, begin_us=10_003)
    for event in second:
        if event["pid"] == 0:
            event["pid"] = 0 if same_device else 1
            event["args"] = {**event["args"], "device": 0 if same_device else 1}
    return first + second


def test_processes_with_ids_of_their_own_each_keep_their_kernels(tmp_path: Path) -> None:
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, ranks(1000, unique=False)))
    assert counted(graph.coverage) == (16, 16, 0, 0, 0, 0)


def test_merged_ranks_link_by_the_device_that_only_one_of_them_uses(tmp_path: Path) -> None:
    # GIVEN two ranks of one job in one file, whose second half has ids that only it gave
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, ranks(20, unique=True)))

    # THEN the ids that both gave are told apart by the device
    assert counted(graph.coverage) == (32, 32, 0, 0, 0, 0)
    for op in graph.ops:
        assert {kernel.device for kernel in op.kernels} <= {op.thread % 2} or op.name == "aten.empty"


@pytest.mark.parametrize(("unique", "same_device", "unclear"), [(False, False, 16), (True, True, 16)])
def test_merged_ranks_that_nothing_tells_apart_are_counted_not_guessed(
    tmp_path: Path, unique: bool, same_device: bool, unclear: int
) -> None:
    shared = 20 if unique else 0
    events = ranks(shared, unique=unique, same_device=same_device)
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, events))

    assert graph.coverage.unattributed == unclear
    assert counted(graph.coverage)[:2] == (32 if unique else 16, 16 if unique else 0)


def test_two_devices_of_one_process_are_linked_alike(tmp_path: Path) -> None:
    events = steps(MODERN)
    for event in [e for e in events if is_kernel(e)][8:]:
        event |= {"pid": 1, "args": {**event["args"], "device": 1}}
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, events))

    assert counted(graph.coverage) == (16, 16, 0, 0, 0, 0)
    assert [kernel.device for op in graph.ops for kernel in op.kernels] == [0] * 8 + [1] * 8


def test_a_trace_joined_with_itself_counts_once(tmp_path: Path) -> None:
    events = steps(MODERN)
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, events + events[len(events) // 2 :]))

    assert counted(graph.coverage) == (16, 16, 0, 0, 0, 0)
    assert len(graph.ops) == 2 * KERNELS_A_STEP
    repeated = sum(event["ph"] == "X" for event in events[len(events) // 2 :])
    assert graph.coverage.notes[0] == f"{repeated:,} events are in the file twice, and count once."


def test_launches_outside_of_ops_are_counted(tmp_path: Path) -> None:
    bare = write(tmp_path / "t.json", MODERN, steps(MODERN, 1), keep=lambda e: e.get("name") != "aten::silu")
    assert counted(graph_from_trace(bare).coverage) == (8, 7, 0, 0, 1, 0)


def test_kernels_alone_are_an_audit_without_ops(tmp_path: Path) -> None:
    graph = graph_from_trace(write(tmp_path / "t.json", MODERN, steps(MODERN), keep=is_kernel))
    assert counted(graph.coverage) == (16, 0, 0, 0, 0, 16)  # that all were launched before is as likely as a filter


def test_ops_without_kernels_on_a_machine_with_a_gpu_are_said_to_be_timed_on_the_host(tmp_path: Path) -> None:
    # GIVEN what ProfilerActivity.CPU alone records where a GPU is
    era = replace(MODERN, top={"deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]})
    graph = graph_from_trace(write(tmp_path / "t.json", era, steps(era), keep=lambda e: e.get("cat") == "cpu_op"))

    # THEN it is an audit of a CPU, with what was left out
    assert graph.device_kind == "cpu"
    assert graph.coverage.notes == [
        "The trace lists NVIDIA H100 80GB HBM3 and holds no kernel of it: times are those of ops on the host; for the "
        "device's, record with ProfilerActivity.CUDA (XPU on Intel)."
    ]


def test_the_ranges_of_1_8_are_no_ops_and_its_nodes_are_backward(tmp_path: Path) -> None:
    # GIVEN a training step of 1.8: everything is an Operator, autograd's nodes stand alone on another thread
    old = BY_NAME["1.8"]
    host = {"ph": "X", "cat": "Operator", "pid": PID, "tid": str(TID)}
    shape = {"Input Dims": [[8, 8]], "Input type": ["float"]}
    events = [
        {**host, "name": "ProfilerStep#3", "ts": 0, "dur": 500, "args": {}},
        {**host, "name": "aten::relu", "ts": 10, "dur": 20, "args": {**shape, "Sequence number": 7}},
        {**host, "tid": "99", "name": "ReluBackward1", "ts": 50, "dur": 30, "args": {"Sequence number": 7}},
        {**host, "tid": "99", "name": "aten::mul", "ts": 55, "dur": 20, "args": shape},
        {**host, "tid": "99", "name": "torch::autograd::AccumulateGrad", "ts": 90, "dur": 30, "args": {}},
        {**host, "tid": "99", "name": "aten::add_", "ts": 95, "dur": 20, "args": shape},
        {**host, "name": "Optimizer.step#SGD.step", "ts": 200, "dur": 90, "args": {}},
        {**host, "name": "aten::add_", "ts": 210, "dur": 20, "args": shape},
    ]
    graph = graph_from_trace(write(tmp_path / "t.json", old, events))

    assert [(op.name, op.phase, op.sequence) for op in graph.ops] == [
        ("aten.relu", "forward", 7), ("aten.mul", "backward", 7), ("aten.add_", "backward", -1),
        ("aten.add_", "optimizer", -1),
    ]  # fmt: skip
    assert (graph.coverage.steps, graph.step_us) == (1, 500.0)


_TRACES = Path(__file__).parents[3] / "shared" / "traces"


@pytest.mark.skipif(not _TRACES.exists(), reason="the shared traces are not on this machine")
def test_each_shared_file_is_read_or_named() -> None:
    """The small ones: benchmarks/truth.py reads them all."""
    small = [p for p in sorted(_TRACES.rglob("*.json*")) if p.stat().st_size < 200_000]
    told: dict[str, str] = {}
    for path in small:
        try:
            counted(graph_from_trace(path).coverage)
        except AuditError as error:
            told[path.name.split(".")[-3 if path.suffix == ".gz" else -2]] = str(error)
    assert len(small) > 15
    assert {name for name in told if name != "et"} == {"models_truth", "truth", "truth_site_kernels"}
    assert "is an execution trace, not a profiler's" in told["et"]
