"""Where the time of a step goes."""

from __future__ import annotations

import math

import pytest
from report_factory import clean, llama, rms_finding, rms_graph

from auditor.document import DeviceInfo, Document, Run, Site, Totals, TotalSaving
from auditor.report.waterfall import draw, split


def _parts(document, graph=None):
    waterfall = split(document, graph)
    assert waterfall is not None
    return {p.label: (p.start_us, p.us) for p in waterfall.parts}


def test_the_parts_of_a_step_add_up_to_it():
    # GIVEN 60 ms of which kernels take 48 ms, 29.76 ms of that memory-bound, 13.48 ms in findings
    parts = _parts(llama())
    # THEN every bar starts where the one before ended
    assert parts == {
        "step": (0.0, 60_000.0),
        "compute-bound kernels": (0.0, 18_240.0),
        "memory-bound, in no finding": (18_240.0, pytest.approx(16_280.0)),
        "memory-bound, in findings": (pytest.approx(34_520.0), pytest.approx(13_480.0)),
        "idle, waiting for launches": (pytest.approx(48_000.0), 12_000.0),
        "step once fused, likely": (0.0, 52_900.0),
    }


def test_only_the_epilogue_of_a_gemm_counts_as_fusible():
    # GIVEN a finding of a GEMM of 180 µs and the add of 5 µs behind it
    graph, _ = rms_graph()
    gemm = rms_finding(ops=["aten.mm", "aten.add"], places=[Site(ops=[0, 2])], device_us=370.0)
    document = Document(totals=Totals(device_us=1000, step_us=1000, memory_bound_us=500), findings=[gemm])
    # WHEN the ops are at hand THEN its time is split as theirs is
    assert _parts(document, graph)["memory-bound, in findings"][1] == pytest.approx(370 * 5 / 185)
    # WHEN they are not THEN it isn't known, and said
    waterfall = split(document, None)
    assert waterfall is not None
    assert {p.label: p.us for p in waterfall.parts}["… of these in findings"] is None
    assert "not known" in " ".join(waterfall.remarks)
    assert "not known" in draw(waterfall)


def test_nothing_timed_gives_no_waterfall():
    assert split(Document(), None) is None
    assert split(Document(totals=Totals(step_us=math.nan, device_us=math.inf)), None) is None


def test_without_a_step_there_is_no_idle_time():
    document = Document(totals=Totals(device_us=100.0, memory_bound_us=40.0))
    assert _parts(document)["kernel time"] == (0.0, 100.0)
    assert _parts(document)["idle, waiting for launches"][1] is None


def test_overlapping_kernels_are_said_and_stay_in_the_drawing():
    gpu = Run(device=DeviceInfo(kind="cuda"))
    document = Document(run=gpu, totals=Totals(step_us=100.0, device_us=150.0, memory_bound_us=150.0))
    waterfall = split(document, None)
    assert waterfall is not None
    assert waterfall.whole_us == 150.0
    assert waterfall.remarks == ("Kernels overlap: their times add up to more than the step.",)
    # ON a CPU ops don't overlap: the profiler made them longer
    on_cpu = split(Document(totals=document.totals), None)
    assert on_cpu is not None
    assert "under the profiler" in on_cpu.remarks[0]


def test_findings_never_exceed_the_memory_bound_time():
    document = clean()
    document.findings = [rms_finding(device_us=1e9)]
    document.totals.saving = TotalSaving(step_us=1e9)
    parts = _parts(document)
    assert parts["memory-bound, in findings"][1] == 100.0
    assert parts["memory-bound, in no finding"][1] == 0.0
    assert parts["step once fused, likely"] == (0.0, 0.0)
