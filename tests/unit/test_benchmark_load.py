"""benchmarks/load.py: the trace that it makes out of another, and its table."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from auditor.collect.kernel_links import link_kernels
from auditor.collect.kineto import load_trace
from auditor.collect.nesting import nests

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two ops that launch a kernel each, compressed, with the name of a process, which has no time."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]
    for i in (0, 1):
        at = {"ph": "X", "pid": 1, "tid": 1, "dur": 8}
        events += [
            {**at, "cat": "cpu_op", "name": "aten::add", "ts": 20 * i + 0.25, "args": {"External id": 7 + i}},
            {**at, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20 * i + 1, "dur": 1,
             "args": {"correlation": 7 + i}},
            {**at, "cat": "kernel", "name": "add_kernel", "pid": 0, "tid": 7, "ts": 20 * i + 12,
             "args": {"correlation": 7 + i, "stream": 7}},
        ]  # fmt: skip
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


def test_each_copy_follows_the_one_before_and_launches_its_own_kernels(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from replicated import replicate

    target = tmp_path / "large.json"
    replicate(trace, target, 3)

    large = load_trace(target)
    starts = [event.start for event in large.cpu_ops]
    assert len(starts) == 6
    assert starts == sorted(set(starts))
    assert {event["name"] for event in json.loads(target.read_text())["traceEvents"][:1]} == {"process_name"}
    links = link_kernels(large, nests(large.cpu_ops), 0.0)
    assert (links.coverage.kernels, links.coverage.linked) == (6, 6)
    assert sorted(map(len, links.by_op.values())) == [1] * 6


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "load.py"), *options],
        capture_output=True, text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip


def test_the_table_has_each_reader_beside_json_load(trace: Path, tmp_path: Path) -> None:
    shown = run(tmp_path, "--trace", str(trace), "--copies", "2", "--rounds", "1", "--only", "load + link")

    assert shown.returncode == 0, shown.stderr
    rows = [line.split() for line in shown.stdout.splitlines() if " × " in line]
    assert [row[0] for row in rows] == ["json.load", "load"]
    assert rows[0][-2:] == ["1.00", "×"]
    assert [path.name.split("-")[:2] for path in (tmp_path / "fusion-audit-load").iterdir()] == [["small", "2"]]


def test_a_missing_trace_is_told_in_one_sentence(tmp_path: Path) -> None:
    shown = run(tmp_path, "--trace", "no.json")

    assert shown.returncode == 2
    assert "no.json: no such file; give a trace of torch.profiler" in shown.stderr
