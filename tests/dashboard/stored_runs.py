"""Runs, traces and scripts for tests of the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from auditor.document import DeviceInfo, Document, Finding, Run, Saving, Totals, TotalSaving
from auditor.graph.model import Kernel
from auditor.graph.ssa import parse
from auditor.graph.tables import to_tables
from auditor.store import Store
from auditor.store.registering import digest, register

GRAPH = "x: f32[16, 16]\nz: f32[16, 16]\na = aten.exp(x)\nb = aten.neg(a)\ny = aten.mul(b, z)\nreturn y"


def document(name: str = "llama", **run: Any) -> Document:
    facts: dict[str, Any] = {"source": "profile", "script": ["train.py"], "project": "models"} | run
    saving = Saving(ideal_us=20.0, likely_us=12.5, step_us=8.0)
    found = Finding(
        rule="FUS101", name="unfused-elementwise-chain", family="elementwise", fingerprint="f1", sites=1, kernels=3,
        kernels_after=1, device_us=30.0, saving=saving, modules=["model.norm"],
    )  # fmt: skip
    return Document(
        run=Run(name=name, device=DeviceInfo(name="H100", kind="cuda"), torch="2.13.0", **facts),
        totals=Totals(
            kernels=3, unfused_kernels=3, avoidable_kernels=2, device_us=30.0, memory_bound_us=30.0, step_us=100.0,
            saving=TotalSaving(likely_us=12.5, step_us=8.0),
        ),
        findings=[found],
    )  # fmt: skip


def tables() -> dict[str, Any]:
    graph = parse(GRAPH)
    for number, op in enumerate(graph.ops):
        op.kernels = (Kernel(op.name, start_us=20.0 * number, dur_us=10.0 + number, stream=7),)
    return to_tables(graph)


def save(store: Store, name: str = "llama", **run: Any) -> str:
    return store.save(document(name, **run), tables())


def save_script(store: Store, folder: Path, source: str, args: list[str] | None = None) -> str:
    """A run of a script in ``folder``, registered as the command line would have done there (it is current)."""
    script = folder / "script.py"
    script.write_text(source)
    run = save(store, "script", script=["script.py", *(args or [])])
    register(store, run, "script.py", args or [], digest(script))
    return run


def trace() -> bytes:
    """A small trace of torch.profiler: two ops, each with its kernel."""
    events: list[dict[str, Any]] = []
    for number, name in enumerate(["aten::add", "aten::mul"]):
        ts = 20.0 * number
        shapes = {"Input Dims": [[16, 16], [16, 16]], "Input type": ["float", "float"]}
        events += [
            {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 10, "args": shapes},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts + 2, "dur": 1,
             "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts + 5, "dur": 2,
             "args": {"correlation": number, "stream": 7}},
        ]  # fmt: skip
    return json.dumps({"traceEvents": events}).encode()
