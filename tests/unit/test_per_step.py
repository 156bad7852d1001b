"""Figures of each step of a trace, and what a comparison takes of them."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from step_traces import Made, TraceMaker, cut_at_both_ends, model, training

from auditor.api import audit_trace
from auditor.audit import Audit
from auditor.collect.inferred import inferred_graph
from auditor.collect.kineto import load_trace
from auditor.config import Config
from auditor.document import Document, StepFigures
from auditor.engine.per_step import steps_of_unlinked
from auditor.engine.step_time import idle_within
from auditor.gate.measures import figures_of
from auditor.gate.snapshot import snapshot_of
from auditor.gate.whole_steps import left_out, of_whole_steps
from auditor.graph.tables import from_tables, to_tables
from auditor.report import render
from auditor.report.steps import of_finding, sentence

COUNTS = ("kernels", "memory_bound_kernels", "unfused_kernels", "avoidable_kernels", "bytes")
TIMES = ("device_us", "memory_bound_us")


def audited(trace: TraceMaker, tmp_path: Path) -> Audit:
    return audit_trace(trace.write(tmp_path), config=Config())


def cut_with_an_earlier_step() -> TraceMaker:
    """Two kernels of an earlier step, then a window that cuts a step at either end."""
    trace = TraceMaker()
    trace.early([("early_gemm", 50.0), ("early_mul", 7.0)], correlation=9999, ready=1000.0)
    return cut_at_both_ends(trace)


def all_of(document: Document) -> list[StepFigures]:
    assert document.steps is not None
    return [*document.steps.each, document.steps.outside]


def test_steps_and_what_is_in_none_add_up_to_the_totals(tmp_path: Path) -> None:
    document = audited(cut_with_an_earlier_step(), tmp_path).document
    for key in COUNTS:
        assert sum(getattr(step, key) for step in all_of(document)) == getattr(document.totals, key), key
    for key in TIMES:
        assert sum(getattr(step, key) for step in all_of(document)) == pytest.approx(getattr(document.totals, key)), key
    likely = sum(step.likely_us for step in all_of(document))
    assert likely == pytest.approx(document.totals.saving.likely_us)


def test_each_step_has_what_was_launched_in_it(tmp_path: Path) -> None:
    # GIVEN three whole steps of 13 kernels, a part of one before and after, and kernels launched before the window
    document = audited(cut_with_an_earlier_step(), tmp_path).document
    steps = document.steps
    assert steps is not None

    # THEN each has its own, and the median is that of the whole ones
    assert [(step.kernels, step.complete) for step in steps.each] == [
        (6, False), (13, True), (13, True), (13, True), (5, False)
    ]  # fmt: skip
    assert steps.outside.kernels == 2
    assert (steps.median.kernels, steps.median.device_us) == (13, steps.each[1].device_us)
    assert document.coverage.steps == 3


def test_a_step_takes_until_the_next_one_begins_and_waits_in_it(tmp_path: Path) -> None:
    # GIVEN two steps a millisecond apart, each of two kernels of 20 µs
    trace = TraceMaker()
    for _ in range(2):
        begin = trace.now
        trace.ops([Made("aten::mm", [[8, 64], [64, 64]], [("gemm", 20.0)])] * 2)
        trace.now = begin + 900.0
        trace.mark("ProfilerStep#1", begin)
        trace.now = begin + 1000.0
    steps = audited(trace, tmp_path).document.steps
    assert steps is not None

    # THEN the first lasts until the kernels of the second begin, and the second as long as its range
    assert [step.step_us for step in steps.each] == [1000.0, 900.0]
    assert [step.idle_us for step in steps.each] == [960.0, 860.0]
    assert [step.device_us for step in steps.each] == [40.0, 40.0]


def test_what_rounding_leaves_of_a_step_is_not_idle() -> None:
    assert idle_within(0.1 + 0.2, 0.3) == 0.0  # 5.6e-17, which no store takes for an amount
    assert (idle_within(12.0, 2.0), idle_within(1.0, 2.0)) == (10.0, 0.0)


def test_the_first_op_of_a_step_reads_nothing_of_the_step_before(tmp_path: Path) -> None:
    # GIVEN steps that begin with an op whose input looks like what the last op of a step made
    trace = TraceMaker()
    for number in range(3):
        begin = trace.now
        trace.ops([Made("aten::mul", [[8, 64], [8, 64]], [("mul", 4.0)]), Made("aten::neg", [[8, 64]], [("neg", 4.0)])])
        trace.mark(f"ProfilerStep#{number}", begin)
    graph = inferred_graph(load_trace(trace.write(tmp_path)))

    # THEN every step is linked within itself alone
    for i, op in enumerate(graph.ops):
        makers = {value.producer.index for value in op.inputs() if value.producer}
        assert makers == ({i - 1} if op.name == "aten.neg" else set())


def test_a_finding_says_in_which_steps_it_is(tmp_path: Path) -> None:
    # GIVEN three steps with one chain each, and a warm-up in the first that no other has
    trace = TraceMaker()
    for number in range(3):
        begin = trace.now
        trace.ops(model())
        if number == 0:
            names = ("aten::exp", "aten::cos", "aten::abs")
            trace.ops([Made(name, [[16, 16]], [(name, 4.0)]) for name in names])
        trace.mark(f"ProfilerStep#{number}", begin)
    document = audited(trace, tmp_path).document

    # THEN a steady finding is told from that of the first step
    told = {tuple(finding.ops): of_finding(document, finding) for finding in document.findings}
    assert told["aten.exp", "aten.cos", "aten.abs"] == "1 site, only in the first of 3 steps"
    assert told["aten.cudnn_batch_norm", "aten.mul", "aten.sigmoid"] == "1 site in each of 3 steps"
    steady = next(f for f in document.findings if "aten.sigmoid" in f.ops)
    assert Counter(place.step for place in steady.places) == {0: 1, 1: 1, 2: 1}


def test_reports_tell_the_steps(tmp_path: Path) -> None:
    document = audited(cut_with_an_earlier_step(), tmp_path).document
    assert sentence(document).startswith(
        "3 steps and 2 cut by the window, told by Optimizer.step#SGD.step · 13 kernels with "
    )
    assert sentence(document).endswith("2 kernels in no step")
    text, markdown, html = (render(document, None, fmt) for fmt in ("text", "markdown", "html"))
    assert "3 steps and 2 cut by the window" in " ".join(text.split())
    assert "| `step 2` | 13 |" in markdown
    assert "cut by the window" in markdown
    assert html.count("cut by the window") >= 2
    assert "<h2>5 steps</h2>" in html
    again = msgspec.json.decode(render(document, None, "json"), type=Document)
    assert again.steps == document.steps


def test_kernels_of_a_graph_are_in_the_step_that_replayed_it(tmp_path: Path) -> None:
    # GIVEN replays of one graph, of which only their launches are known
    trace = TraceMaker()
    for _ in range(3):
        trace.launch([("gemm", 9.0), ("relu", 3.0)] * 4)
        trace.now += 200.0
    audit = audited(trace, tmp_path)
    steps = audit.document.steps
    assert steps is not None
    assert steps.by == "repetition"
    assert [step.kernels for step in steps.each] == [8, 8, 8]
    assert steps.outside.kernels == 0

    # AND a stored graph knows it as well
    read = from_tables(to_tables(audit.graph))
    assert steps_of_unlinked(read) == [0] * 8 + [1] * 8 + [2] * 8


def test_names_of_steps_are_not_trusted(tmp_path: Path) -> None:
    # GIVEN steps whose name would steer a terminal, open a tag, end a code span and a table's cell, and is long
    name = "step `|` <script>alert</script>\x1b" + "x" * 100_000
    trace = TraceMaker()
    for _ in range(2):
        begin = trace.now
        trace.ops(model())
        trace.mark(name, begin)
    document = audited(trace, tmp_path).document
    assert document.steps is not None
    assert [len(step.name) for step in document.steps.each] == [200, 200]

    # THEN reports show it as text
    text, markdown, html = (render(document, None, fmt) for fmt in ("text", "markdown", "html"))
    assert all("\x1b" not in report and len(report) < 60_000 for report in (text, markdown))
    assert "<script>alert" not in html
    rows = [line for line in markdown.splitlines() if line.startswith("| ``step `¦` <script")]
    assert [row.count("|") for row in rows] == [10, 10]
    assert len(document.steps.marker) == 200


def test_a_trace_of_one_step_says_no_more_of_it(tmp_path: Path) -> None:
    trace = TraceMaker()
    begin = trace.now
    trace.ops(model())
    trace.mark("ProfilerStep#3", begin)
    document = audited(trace, tmp_path).document
    assert document.steps is not None
    assert [step.name for step in document.steps.each] == ["ProfilerStep#3"]
    assert sentence(document) == ""
    assert not any(of_finding(document, finding) for finding in document.findings)


def test_figures_of_a_step_are_those_of_whole_steps(tmp_path: Path) -> None:
    # GIVEN a window that holds parts of steps, and one that holds the whole ones only
    cut = audited(cut_with_an_earlier_step(), tmp_path).document
    trace = TraceMaker()
    for _ in range(3):
        training(trace)
    (tmp_path / "whole").mkdir()
    whole = audited(trace, tmp_path / "whole").document

    # THEN both have the same step, and what is left out is counted
    for key in ("kernels", "unfused_kernels", "avoidable_kernels", "bytes"):
        assert getattr(figures_of(cut), key) == getattr(figures_of(whole), key), key
    found = [[(f.fingerprint, f.sites, f.kernels) for f in snapshot_of(d).findings] for d in (cut, whole)]
    assert found[0] == found[1] != []
    assert left_out(cut).kernels == 6 + 5 + 2
    assert left_out(whole).kernels == 0
    assert of_whole_steps(whole) is whole
    trimmed = of_whole_steps(cut)
    assert of_whole_steps(trimmed) is trimmed
    assert trimmed.totals.kernels == 39


NAMES = st.sampled_from(
    ["aten::mul", "aten::neg", "ProfilerStep#1", "Optimizer.step#SGD.step", "train_step", "## part ##",
     "nccl:all_reduce", "enumerate(DataLoader)#_It.__next__", "execute_context_0",
     "autograd::engine::evaluate_function: MulBackward0"]
)  # fmt: skip
EVENTS = st.lists(
    st.tuples(NAMES, st.integers(0, 60), st.integers(0, 40), st.sampled_from([1, 2]), st.integers(0, 2)), max_size=40
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(events=EVENTS)
def test_steps_of_any_events_lie_apart_and_add_up(events: list[tuple[str, int, int, int, int]]) -> None:
    # GIVEN ops, ranges and kernels in any order, overlapping and without a length
    trace = TraceMaker()
    for name, start, duration, tid, kernels in events:
        trace.now = float(start + duration)
        if "::" in name and kernels:
            trace.now = float(start)
            trace.op(Made(name, [[8, 8]], [("kernel", 3.0)] * kernels), tid)
        else:
            trace.mark(name, float(start), "cpu_op" if "::" in name else "user_annotation", tid)
    trace.op(Made("aten::neg", [[8, 8]], [("kernel", 3.0)]))

    # THEN steps follow each other, and the figures of all of them are those of the file
    with TemporaryDirectory() as folder:
        audit = audited(trace, Path(folder))
    spans = audit.graph.steps.spans
    assert all(one.start_us <= one.end_us for one in spans)
    assert all(one.end_us <= other.start_us for one, other in pairwise(spans))
    if audit.document.steps is not None:
        for key in COUNTS:
            assert sum(getattr(step, key) for step in all_of(audit.document)) == getattr(audit.document.totals, key), (
                key
            )
        whole = of_whole_steps(audit.document)
        assert sum(step.kernels for step in all_of(whole)) == whole.totals.kernels


def test_stored_graphs_keep_their_steps(tmp_path: Path) -> None:
    graph = audited(cut_with_an_earlier_step(), tmp_path).graph
    read = from_tables(to_tables(graph))
    assert read.steps == graph.steps
    assert read.steps.complete == 3
    assert [k.launched_us for k in read.unlinked] == [k.launched_us for k in graph.unlinked] == [None, None]
