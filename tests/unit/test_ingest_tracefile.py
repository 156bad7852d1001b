"""Reading trace files: what real profilers write, and one clear sentence for what cannot be read."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.ingest import graph_from_trace
from auditor.collect.kineto import decode_launch, load_trace
from auditor.errors import AuditError

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 2, "ts": 10, "dur": 5}


def trace_bytes(*events: dict[str, object]) -> bytes:
    return json.dumps({"traceEvents": list(events or (EVENT,))}).encode()


def test_events_are_sorted_by_kind(tmp_path: Path) -> None:
    # GIVEN a trace with one event of each kind, old and new category names
    cats = [
        "cpu_op",
        "Operator",
        "kernel",
        "gpu_memcpy",
        "gpu_memset",
        "cuda_runtime",
        "hip_runtime",
        "python_function",
    ]
    path = tmp_path / "t.json"
    path.write_bytes(trace_bytes(*({**EVENT, "cat": cat} for cat in [*cats, "user_annotation", "ac2g"])))

    # WHEN it is loaded
    trace = load_trace(path)

    # THEN each is in its list, and flow events are in none
    assert [len(x) for x in (trace.cpu_ops, trace.kernels, trace.memory, trace.launches, trace.python)] == [
        2,
        1,
        2,
        2,
        1,
    ]
    assert len(trace.annotations) == 1


@pytest.mark.parametrize("compress", [False, True])
def test_gzip_is_told_by_content_not_by_name(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(trace_bytes()) if compress else trace_bytes())

    assert [event.name for event in load_trace(path).cpu_ops] == ["aten::add"]


def test_a_bare_event_list_is_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([EVENT]))

    assert len(load_trace(path).cpu_ops) == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b'"name": "bad \xff utf8"', "bad \ufffd utf8"),
        (b'"name": "tab\there"', "tab here"),
        (b'"name": "C:\\Users\\x.py(3): f"', "C:\\Users\\x.py(3): f"),
        (b'"name": "n", "args": {"Comms Id": 10159970886766084423}', "n"),
        (b'"name": "n", "args": {"occupancy": NaN, "x": [-Infinity, Infinity]}', "n"),
        (b'"name": "NaN stays NaN in names", "args": {"x": NaN}', "NaN stays NaN in names"),
    ],
)
def test_what_profilers_write_and_json_forbids_is_read(tmp_path: Path, text: bytes, name: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, ' + text + b"}]}")

    assert [event.name for event in load_trace(path).cpu_ops] == [name]


def test_missing_duration_and_text_ids_are_read(tmp_path: Path) -> None:
    # GIVEN an event without dur and with ids as text
    path = tmp_path / "t.json"
    path.write_bytes(trace_bytes({"ph": "X", "cat": "Kernel", "name": "k", "pid": "0", "tid": "stream 7", "ts": 3}))

    # WHEN it is loaded
    (event,) = load_trace(path).kernels

    # THEN it lasts no time, and its args have their defaults
    assert (event.start, event.end, event.thread) == (3.0, 3.0, ("0", "stream 7"))
    assert decode_launch(event).correlation == -1


@pytest.mark.parametrize("load", [load_trace, load_execution_trace])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b" \n ", "empty"),
        (b'{"traceEvents": [{"ph": "X",\n "na', "line 2.*cut off"),
        (b'{"traceEvents": [\n\n{"ph": "X" "cat"', "line 3.*not valid JSON"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-12], "gzip is cut off"),
        (gzip.compress(bytes(range(256)) * 9, mtime=0)[:40] + b"garbage" * 30, "damaged gzip|cut off"),
        (b'{"a": 1}', "not a.* trace"),
        (b'"text"', "not an? .*trace of a known form"),
    ],
)
def test_bad_content_is_one_clear_sentence(tmp_path: Path, load: object, content: bytes, reason: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)

    with pytest.raises(AuditError, match=rf"(?s)bad\.json.*({reason})") as caught:
        load(path)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("load", [load_trace, load_execution_trace])
def test_missing_file_and_folder_name_the_path(tmp_path: Path, load: object) -> None:
    with pytest.raises(AuditError, match=r"absent\.json: cannot be read \(No such file"):
        load(tmp_path / "absent.json")  # type: ignore[operator]
    with pytest.raises(AuditError, match="cannot be read"):
        load(tmp_path)  # type: ignore[operator]


@pytest.mark.parametrize("content", [b"[]", b'{"traceEvents": []}', trace_bytes({"ph": "M", "name": "process_name"})])
def test_a_trace_without_ops_and_kernels_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)

    with pytest.raises(AuditError, match=r"trace.json: holds no ops and no kernels; was it recorded with torch.prof"):
        graph_from_trace(path)


@pytest.mark.parametrize(("name", "noted"), [("aten::empty", True), ("aten::add", False)])
def test_a_trace_whose_ops_launch_nothing_says_so(tmp_path: Path, name: str, noted: bool) -> None:
    # GIVEN a trace of a CPU with two equal ops WHEN it is read THEN only ops that compute count as kernels
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "dur": 1.0, "args": {}}
    path = tmp_path / "trace.json"
    path.write_bytes(trace_bytes({**event, "ts": 1.0}, {**event, "ts": 3.0}))

    notes = [note for note in graph_from_trace(path).coverage.notes if "nothing to audit" in note]

    assert [f"(only 2× {name})" in note for note in notes] == [True] * noted
