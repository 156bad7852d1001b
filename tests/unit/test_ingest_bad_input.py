"""Broken files: one clear sentence and exit code 2, or an audit that says what was left out; never anything stored."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import resource
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.cli import main
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.ingest import graph_from_trace
from auditor.collect.kineto import LONGEST_NAME, load_trace
from auditor.collect.tracefile import Reading, read_trace_bytes
from auditor.errors import AuditError
from auditor.graph.tables import to_tables
from auditor.store import Store

TWO = {"Input Dims": [[8, 8], [8, 8], []], "Input type": ["float", "float", "Scalar"], "Concrete Inputs": ["", "", "1"]}
ONE = {"Input Dims": [[8, 8]], "Input type": ["float"], "Concrete Inputs": [""]}
LOADERS = pytest.mark.parametrize("load", [load_trace, load_execution_trace])
Loader = Callable[[Path], object]


def events() -> list[dict[str, Any]]:
    """Four ops, each with its launch and its kernel."""
    made: list[dict[str, Any]] = []
    for i, (name, args) in enumerate([("add", TWO), ("relu", ONE), ("neg", ONE), ("exp", ONE)]):
        host = {"ph": "X", "pid": 1, "tid": 1}
        made += [
            {**host, "cat": "cpu_op", "name": f"aten::{name}", "ts": 10 * i, "dur": 8, "args": dict(args)},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 10 * i + 2, "dur": 1,
             "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": 7, "ts": 100 + 10 * i, "dur": 2,
             "args": {"correlation": i + 1, "stream": 7, "device": 0}},
        ]  # fmt: skip
    return made


def trace(*made: dict[str, Any] | None, **more: Any) -> bytes:
    return json.dumps({"traceEvents": list(made) or events(), **more}).encode()


def changed(category: str, key: str, value: bytes) -> bytes:
    """The trace with ``key`` (of ``args`` where it is none of an event's own) of one category set to a JSON text."""
    made = events()
    for event in made:
        if event["cat"] == category:
            held = event if key in ("name", "ph", "cat", "ts", "dur", "pid", "tid", "args") else event["args"]
            held[key] = "@"
    return json.dumps({"traceEvents": made}).encode().replace(b'"@"', value)


def written(folder: Path, content: bytes, name: str = "bad.json") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def archive(kind: str) -> bytes:
    held = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(held, "w") as packed:
            packed.writestr("trace.json", trace())
    else:
        with tarfile.open(fileobj=held, mode="w") as tar:
            entry = tarfile.TarInfo("trace.json")
            entry.size = len(trace())
            tar.addfile(entry, io.BytesIO(trace()))
    return held.getvalue()


OF_ANOTHER_KIND = [
    (archive("zip"), "is a zip archive"),
    (archive("tar"), "is a tar archive"),
    (gzip.compress(archive("tar")), "is a tar archive"),
    (gzip.compress(gzip.compress(trace())), "is gzip in gzip"),
    (b"\x28\xb5\x2f\xfd" + bytes(60), "is packed with zstd"),
    (trace().decode().encode("utf-16"), "is UTF-16 text"),
    (b"\x80\x04\x95" + bytes(60), "is a pickle"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "is a Git LFS pointer"),
    (b"\n<!DOCTYPE html><html>Not Found</html>", "is an HTML or XML page"),
    (bytes(range(128, 256)) * 9, "not valid JSON"),
    (b"7", "known form"),
    (b"true", "known form"),
    (b'[1, "x"]', "known form"),
    (b'{"traceEvents": 5, "nodes": 5}', "known form"),
    (b'{"segments": [], "device_traces": []}', "is a memory snapshot"),
    (b'{"cells": []}', "is a notebook"),
    (b'{"schema": "fusion-audit/1", "findings": []}', "is an audit document"),
    (trace() + trace(), "trailing characters"),
    (b"[" * 200_000, "nested deeper|known form"),
    (b'{"traceEvents": [], "nodes": [], "x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested deeper"),
]


@LOADERS
@pytest.mark.parametrize(("content", "reason"), OF_ANOTHER_KIND, ids=range(len(OF_ANOTHER_KIND)))
def test_a_file_of_another_kind_is_named(tmp_path: Path, load: Loader, content: bytes, reason: str) -> None:
    with pytest.raises(AuditError, match=reason) as caught:
        load(written(tmp_path, content))
    assert "bad.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_two_kinds_of_trace_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="is an execution trace, not a profiler's; give it with --execution-trace"):
        load_trace(written(tmp_path, b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}'))
    with pytest.raises(AuditError, match="is a profiler's trace, not an execution trace; give it as the trace"):
        load_execution_trace(written(tmp_path, trace()))


@LOADERS
def test_what_could_block_or_never_end_is_not_opened(tmp_path: Path, load: Loader) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(AuditError, match="it is a pipe or a device"):
            load(path)
    with pytest.raises(AuditError, match="cannot be read"):
        load(tmp_path / "a\0b")


@LOADERS
def test_a_file_without_permission_says_so(tmp_path: Path, load: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, trace())

    def denied(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # root may read everything
    with pytest.raises(AuditError, match=r"bad\.json: cannot be read \(Permission denied\)"):
        load(path)


def test_a_gzip_bomb_is_refused_long_before_it_fills_memory(tmp_path: Path) -> None:
    # GIVEN 2 GB of one character in 2 MB
    path = written(tmp_path, gzip.compress(b" " * (32 << 20)) * 64)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    # WHEN it is read THEN it is refused by its ratio, with the way to read it all the same
    with pytest.raises(AuditError, match=r"unpacks to more than 200 times its size \(\d+ MB so far\).*--max-size"):
        read_trace_bytes(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 600 << 10


def test_a_gzip_file_of_countless_members_costs_no_countless_copies(tmp_path: Path) -> None:
    path = written(tmp_path, gzip.compress(b"") * 140_000)
    began = time.monotonic()
    with pytest.raises(AuditError, match="of more than 131,072 members"):
        read_trace_bytes(path)
    assert time.monotonic() - began < 20


def test_the_largest_size_can_be_set(tmp_path: Path) -> None:
    packed, plain = written(tmp_path, gzip.compress(b"[1," * (1 << 20)), "a.gz"), written(tmp_path, b"[" * 3_000_000)
    for path, reason in ((packed, "unpacks to more than 2 MB"), (plain, "is larger than 2 MB")):
        with pytest.raises(AuditError, match=f"{reason}.*--max-size"):
            read_trace_bytes(path, Reading(max_bytes=2_000_000))
        assert len(read_trace_bytes(path, Reading(max_bytes=4_000_000))) >= 3_000_000


ODD = [b"-5", b"1e400", b"NaN", b"-Infinity", b"null", b"true", b"[1]", b'{"a": 1}', b'"abc"', b"1.5",
       str(2**63).encode(), str(-(2**70)).encode(), b"1e300", b'""']  # fmt: skip
FIELDS = ["name", "ph", "cat", "ts", "dur", "pid", "tid", "args", "correlation", "stream", "device", "Input Dims",
          "Input type", "Input Strides", "Concrete Inputs", "Sequence number", "kernel_backend"]  # fmt: skip


@pytest.mark.parametrize("category", ["cpu_op", "cuda_runtime", "kernel"])
@pytest.mark.parametrize("key", FIELDS)
def test_an_odd_field_costs_its_event_at_most(tmp_path: Path, category: str, key: str) -> None:
    # GIVEN a trace in which one field of one category is not what it should be WHEN it is read
    for value in ODD:
        graph = graph_from_trace(written(tmp_path, changed(category, key, value)))
        c = graph.coverage

        # THEN every kernel is somewhere, with its reason, and the graph can be stored
        assert c.kernels == c.linked + c.before_window + c.graph_replayed + c.outside_ops + c.unattributed
        assert c.kernels == 4 or (category == "kernel" and key in FIELDS[:7])
        to_tables(graph)


MALFORMED = [
    ("Input Dims", [["a", 8], [8, 8], []]), ("Input Dims", [[-1, 8], [8, 8], []]), ("Input Dims", [[2**70], [8], []]),
    ("Input Dims", [[8.5, 8], [8, 8], []]), ("Input Dims", [None, None, None]), ("Input Dims", [[[1]], [[2]], []]),
    ("Input Dims", [[2**40, 2**40], [8, 8], []]), ("Input Dims", [[8] * 2000, [8, 8], []]),
    ("Input Strides", [["a", "b"], [8, 1], []]), ("Input Strides", [[2**70, 1], [8, 1], []]),
    ("Input type", ["TensorList", "TensorList", "TensorList"]), ("Input type", [["float"], {"a": 1}, "Scalar"]),
    ("Concrete Inputs", ["", "", "[[[1]]]"]), ("Concrete Inputs", ["", "", "[" * 5000]),
    ("Concrete Inputs", ["", "", '[1, {"a": 2}]']), ("Concrete Inputs", ["", "", "9" * 5000]),
    ("Concrete Inputs", ["", "", "1e999"]), ("Concrete Inputs", ["", "", "\0\x1b"]),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), MALFORMED)
def test_malformed_inputs_leave_an_op_without_edges(tmp_path: Path, key: str, value: Any) -> None:
    made = events()
    made[0]["args"][key] = value

    graph = graph_from_trace(written(tmp_path, trace(*made)))

    assert (graph.coverage.linked, len(graph.ops)) == (4, 4)
    to_tables(graph)


def test_splitting_a_huge_tensor_makes_no_huge_list(tmp_path: Path) -> None:
    made = events()
    made[0] |= {"name": "aten::unbind", "args": {
        "Input Dims": [[2**40], []], "Input type": ["float", "Scalar"], "Concrete Inputs": ["", "0"]}}  # fmt: skip
    began = time.monotonic()

    graph = graph_from_trace(written(tmp_path, trace(*made)))

    assert len(graph.ops[0].outputs) == 0
    assert time.monotonic() - began < 5


def test_an_event_that_is_none_is_left_out_and_counted(tmp_path: Path) -> None:
    graph = graph_from_trace(written(tmp_path, trace(*events(), None, {"name": 5})))

    assert graph.coverage.linked == 4
    assert graph.coverage.notes[0] == "2 of 14 events are of no known form and were left out."


def test_events_without_begin_or_duration_are_counted(tmp_path: Path) -> None:
    made = events()
    del made[0]["ts"], made[3]["dur"], made[5]["dur"]

    graph = graph_from_trace(written(tmp_path, trace(*made)))

    assert graph.coverage.notes[:2] == [
        "1 events have no time at which they began and were left out.",
        "2 ops and kernels have no duration: they count, and their time is not known.",
    ]
    assert (graph.coverage.kernels, graph.coverage.linked, graph.coverage.outside_ops) == (4, 2, 2)


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"half \\ud800 of a character", "half \ufffd of a character"),
        (b"whole \\ud83d\\ude00 and \\udc00", "whole \U0001f600 and \ufffd"),
        (b'C:\\new\\x.py \\"quoted\\"', 'C:\\new\\x.py "quoted"'),
        (b"C:\\\\new\\q", "C:\\new\\q"),
        (b"a\0b\x1b[31m", "a b [31m"),
    ],
)
def test_text_that_json_forbids_is_read(tmp_path: Path, content: bytes, name: str) -> None:
    path = written(tmp_path, changed("cpu_op", "name", b'"' + content + b'"'))

    assert {event.name for event in load_trace(path).cpu_ops} == {name}


def test_byte_order_marks_and_commas_too_many_are_read(tmp_path: Path) -> None:
    for content in (b"\xef\xbb\xbf" + trace(), trace()[:-2] + b",\n]}"):
        assert graph_from_trace(written(tmp_path, content)).coverage.linked == 4


def test_a_windows_path_is_a_source_even_where_json_takes_it_for_escapes(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "python_function", "name": "@", "pid": 1, "tid": 1, "ts": 0, "dur": 90}
    content = trace(*events(), call).replace(b'"@"', rb'"C:\new\train.py(12): forward"')

    graph = graph_from_trace(written(tmp_path, content))

    assert {str(op.source) for op in graph.ops} == {"C:\\new\\train.py:12"}


def test_names_of_a_megabyte_are_cut_and_cost_little(tmp_path: Path) -> None:
    made = events()
    for event in made:
        event["name"] += "x" * (1 << 20)
    began = time.monotonic()

    graph = graph_from_trace(written(tmp_path, trace(*made)))

    assert graph.coverage.linked == 4
    assert {len(kernel.name) for op in graph.ops for kernel in op.kernels} == {LONGEST_NAME + 1}
    assert time.monotonic() - began < 5


def node(id_: int, parent: int, **more: Any) -> dict[str, Any]:
    return {"id": id_, "name": "aten::add", "ctrl_deps": parent, "inputs": {}, "outputs": {}, **more}


def test_nodes_with_the_same_id_are_counted_and_rings_refused(tmp_path: Path) -> None:
    nodes = [node(1, 1), node(2, 1), node(2, 1)]
    execution = load_execution_trace(written(tmp_path, json.dumps({"nodes": nodes}).encode()))
    assert (len(execution.nodes), len(execution.children[1])) == (2, 1)
    assert execution.notes == ["1 nodes of the execution trace have the id of another one and were left out."]

    nodes += [node(3, 4), node(4, 3)]
    with pytest.raises(AuditError, match=r"bad\.json: node 3 \(aten::add\) is its own ancestor"):
        load_execution_trace(written(tmp_path, json.dumps({"nodes": nodes}).encode()))


ROOT = {**node(1, 1), "name": "[pytorch|profiler|execution_trace|process]"}


@pytest.mark.parametrize(
    "inputs",
    [
        {"values": [[1, 2, 0, "x", 4, "cpu"]], "shapes": [[4, "y"]], "types": ["Tensor(float)"]},
        {"values": [[1, 2, 0, 4, 4, "cpu"]], "shapes": [5], "types": ["Tensor(float)"]},
        {"values": [[-1, 2**80, 0, 4, 4, "cpu"]], "shapes": [[4]], "types": ["Tensor(float)"]},
        {"values": ["x"], "shapes": [[]], "types": ["Double"]},
    ],
)
def test_an_execution_trace_with_malformed_tensors_names_the_node(tmp_path: Path, inputs: dict[str, Any]) -> None:
    schema = {"name": "op_schema", "type": "string", "value": "aten::relu(Tensor self) -> Tensor"}
    bad = {**node(2, 1), "name": "aten::relu", "inputs": inputs, "attrs": [schema]}
    execution = written(tmp_path, json.dumps({"nodes": [ROOT, bad]}).encode(), "et.json")
    op = {**events()[0], "name": "aten::relu", "args": {}}

    with pytest.raises(AuditError, match=r"et\.json: node 2 \(aten::relu\) has inputs or outputs of no known form"):
        graph_from_trace(written(tmp_path, trace(op)), execution)


@pytest.mark.parametrize("schema", ["aten::relu(" + "(" * 300_000, "aten::relu(Tensor" + "[]" * 300_000 + " x)", "x("])
def test_a_schema_that_would_end_pytorchs_parser_is_none(tmp_path: Path, schema: str) -> None:
    bad = {**node(2, 1), "name": "aten::relu", "attrs": [{"name": "op_schema", "value": schema}]}
    execution = written(tmp_path, json.dumps({"nodes": [ROOT, bad]}).encode(), "et.json")
    op = {**events()[0], "name": "aten::relu", "args": {}}

    assert [o.name for o in graph_from_trace(written(tmp_path, trace(op)), execution).ops] == ["aten.relu"]


@pytest.fixture
def stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A store with one run in it."""
    db = tmp_path / "db"
    assert main(["import", str(written(tmp_path, trace(), "good.json")), "--db", str(db)]) == 0
    capsys.readouterr()
    return db


@pytest.mark.parametrize(
    "content", [b"", b"{", b"5", gzip.compress(trace(), mtime=0)[:-9], archive("zip"), trace()[:-50]],
    ids=["empty", "brace", "number", "cut gzip", "zip", "cut"],
)  # fmt: skip
def test_the_command_says_it_in_one_line_and_stores_nothing(
    stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    # GIVEN a store with a run WHEN a broken file is imported, as a trace and as an execution trace
    bad, good = str(written(tmp_path, content)), str(tmp_path / "good.json")
    for arguments in ([bad], [good, "--execution-trace", bad]):
        code = main(["import", *arguments, "--db", str(stored)])

        # THEN it is refused in one line, and what was stored is all that is stored
        out, err = capsys.readouterr()
        assert (code, out) == (2, "")
        assert err.splitlines()[-1].startswith(f"error: {bad}")
        assert len(err.splitlines()) == 2
        with Store.open(str(stored)) as store:
            assert store.count_runs() == 1


def test_names_can_neither_steer_the_terminal_nor_become_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = [event | {"name": event["name"] + "<script>alert(1)</script>\x1b[31m\u202e"} for event in events()]
    made += [{"ph": "X", "cat": "python_function", "pid": 1, "tid": 1, "ts": 0, "dur": 90,
              "name": "nn.Module: <script>alert(2)</script>\x1b]0;x\x07_0"}]  # fmt: skip
    path = written(tmp_path, trace(*made))

    assert main(["import", str(path), "--db", str(tmp_path / "db")]) == 0
    shown = capsys.readouterr()
    for fmt in ("html", "markdown", "json", "text"):
        assert main(["show", "latest", "--format", fmt, "--db", str(tmp_path / "db")]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out + shown.out + shown.err
        assert "\u202e" not in out or fmt == "json"
        # a span of code in Markdown is text, whatever it holds
        assert fmt == "json" or "<script>alert" not in re.sub(r"`[^`\n]*`", "", out)
