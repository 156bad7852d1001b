"""Cutting and mending the files of a graph pass; names of roots; the recording file; the quiet stderr."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from auditor.collect import tidy
from auditor.collect.recording import FILE, Recording, load
from auditor.collect.roots import RootNames
from auditor.collect.stderr import quiet
from auditor.errors import AuditError


def et(path: Path, *nodes: tuple[int, str, int]) -> Path:
    path.write_text(json.dumps({"schema": "1", "nodes": [{"id": i, "name": n, "ctrl_deps": p} for i, n, p in nodes]}))
    return path


def test_cut_execution_trace(tmp_path: Path) -> None:
    # GIVEN a step that was held open; nodes are written when ops end, so children come first
    path = et(
        tmp_path / "et.json",
        (4, "aten::mm", 3), (5, "fa.end", 3), (7, "fa.end", 3), (8, "aten::item", 3),
        (3, "fa.step", 2), (2, "thread", 1), (1, "process", 1),
    )  # fmt: skip

    # WHEN
    tidy.execution_trace(path, 1)

    # THEN
    kept = json.loads(path.read_text())
    assert [node["name"] for node in kept["nodes"]] == ["aten::mm", "fa.step", "thread", "process"]
    assert kept["schema"] == "1"


def test_orphans_go_to_the_step(tmp_path: Path) -> None:
    # GIVEN an op whose parent (5) was still open when recording stopped
    path = et(tmp_path / "et.json", (6, "aten::mm", 5), (3, "fa.step", 2), (2, "thread", 1), (1, "process", 1))

    # WHEN
    tidy.execution_trace(path, None)

    # THEN
    assert json.loads(path.read_text())["nodes"][0]["ctrl_deps"] == 3


def test_whole_execution_trace_is_left_alone(tmp_path: Path) -> None:
    path = et(tmp_path / "et.json", (2, "thread", 1), (1, "process", 1))
    before = path.read_bytes()

    tidy.execution_trace(path, None)

    assert path.read_bytes() == before


def test_cut_kineto(tmp_path: Path) -> None:
    # GIVEN a kernel that was launched in time but ran late, and one that was launched late
    def event(name: str, cat: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "args": args}

    path = tmp_path / "kineto.json"
    events = [
        {"ph": "M", "name": "process_name"},
        event("fa.step", "cpu_op", 0, 100),
        event("launch", "cuda_runtime", 5, 1, correlation=1),
        event("fa.end", "cpu_op", 10, 0),
        event("item", "cpu_op", 20, 1),
        event("launch", "cuda_runtime", 21, 1, correlation=2),
        {"ph": "s", "name": "ac2g", "ts": 21, "id": 2},
        event("early", "kernel", 30, 1, correlation=1),
        event("late", "kernel", 40, 1, correlation=2),
    ]
    path.write_text(json.dumps({"traceEvents": events}))

    # WHEN
    tidy.kineto(path, 1)

    # THEN
    kept = json.loads(path.read_text())["traceEvents"]
    assert [event["name"] for event in kept] == ["process_name", "fa.step", "launch", "early"]
    assert kept[1]["dur"] == 10


def test_roots_keep_their_names() -> None:
    # GIVEN
    class Model:
        pass

    names, first, second = RootNames(), Model(), Model()

    # THEN two objects of one class have two names
    assert [names.key(first, "Model"), names.key(second, "Model"), names.key(first, "Model")] == [
        "Model", "Model#2", "Model",
    ]  # fmt: skip

    # WHEN one is gone, its successor goes on under its name
    del first
    assert names.key(Model(), "Model") == "Model"


def test_recording_survives_a_round_trip(tmp_path: Path) -> None:
    recording = Recording(script=["a.py"], bare_us=[1.5], notes=["x"])

    recording.save(tmp_path)

    assert load(tmp_path) == recording
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize("content", [None, "", "{", '{"steps": "many"}'])
def test_damaged_recording(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / FILE).write_text(content)

    with pytest.raises(AuditError, match=FILE):
        load(tmp_path)


def test_only_the_profilers_lines_are_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    # WHEN
    with quiet():
        os.write(2, b"USDT:2026-01-01 00:00:00 1:1 SyncActivityProfilerHandler.cpp:52] profiler_start\n")
        os.write(2, b"[W1129 18:58:20.9 execution_trace_observer.cpp:989] Enabling Execution Trace Observer\n")
        os.write(2, b"the script's own line\n")

    # THEN
    assert capfd.readouterr().err == "the script's own line\n"
