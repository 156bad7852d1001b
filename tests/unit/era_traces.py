"""One step of a model as each era of Kineto, and each vendor, wrote it down.

What differs, as seen in recordings of PyTorch 1.9, 1.12, 2.0, 2.6 (CUDA) and 2.9 (ROCm): categories, thread ids,
whole and fractional microseconds, what ``External id`` holds, which arguments of an op are there, who launches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
PID, TID = 4242, 4243


@dataclass(frozen=True)
class Era:
    """``launchers`` take turns. ``external``: what ``External id`` of a kernel is: its op's, its own correlation id
    (which another op has as its own), or there is none.
    """

    name: str
    launchers: tuple[str, ...]
    launch_category: str = "cuda_runtime"
    copy: str = "cudaMemcpyAsync"
    op: str = "cpu_op"
    kernel: str = "kernel"
    memcpy: str = "gpu_memcpy"
    annotation: str = "user_annotation"
    flow: str = "ac2g"
    external: str = "op"
    ns: bool = False
    text_ids: bool = False
    strides: bool = True
    device: int = 0
    stream: int = 7
    top: dict[str, Any] = field(default_factory=dict)


ERAS = [
    Era("1.8", ("cudaLaunchKernel",), "Runtime", op="Operator", kernel="Kernel", memcpy="Memcpy", annotation="Operator",
        flow="async", text_ids=True, strides=False),
    Era("1.12", ("cudaLaunchKernel",), flow="async_cpu_to_gpu", external="correlation", strides=False),
    Era("2.0", ("cudaLaunchKernel", "cudaLaunchKernelExC"), external="correlation", strides=False),
    Era("2.6", ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx"), ns=True,
        external="none", top={"baseTimeNanoseconds": 1751410836000000000}),
    Era("rocm", ("hipLaunchKernel", "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipExtLaunchKernel"),
        copy="hipMemcpyAsync", ns=True, device=2, stream=0, top={"baseTimeNanoseconds": 1767189312000000000}),
    Era("xpu", ("urEnqueueKernelLaunch",), "xpu_runtime", copy="urEnqueueUSMMemcpy", ns=True, stream=3),
]  # fmt: skip

X, ROW = [4096, 1024], [1024]
OPS: list[tuple[str, list[list[int]], list[str], list[str], str, int]] = [
    ("aten::mm", [X, [1024, 1024]], ["float", "float"], ["", ""], "gemm", 90),
    ("aten::mm", [X, [1024, 1024]], ["float", "float"], ["", ""], "gemm", 90),
    ("aten::silu", [X], ["float"], [""], "silu", 20),
    ("aten::mul", [X, X], ["float", "float"], ["", ""], "mul", 30),
    ("aten::add", [X, X, []], ["float", "float", "Scalar"], ["", "", "1"], "add", 30),
    ("aten::sigmoid", [X], ["float"], [""], "sigmoid", 20),
    ("aten::mul", [X, X], ["float", "float"], ["", ""], "mul", 30),
    ("aten::tanh", [X], ["float"], [""], "tanh", 20),
]  # fmt: skip
KERNELS_A_STEP = len(OPS)
STEP_US = 1000


def step(era: Era, number: int = 0, *, first_id: int = 100, begin_us: int = 10_000, pid: int = PID) -> Iterator[Event]:
    """Events of one step. ``first_id`` is its first correlation id."""
    begin = begin_us + number * STEP_US
    tid: Any = str(TID) if era.text_ids else TID
    host = {"ph": "X", "pid": pid, "tid": tid}
    yield {**host, "cat": era.annotation, "name": f"ProfilerStep#{number}", "ts": begin, "dur": 700, "args": {}}
    correlation = first_id + 20 * number
    yield from _copied(era, host, begin + 5, correlation)
    for i, (name, dims, types, concrete, kernel, dur) in enumerate(OPS):
        correlation += 1
        ts = begin + 20 + 20 * i
        own_id = first_id + 20 * number + len(OPS) - i  # what another kernel has as its correlation id
        args: Event = {"External id": own_id, "Input Dims": dims, "Input type": types}
        if era.strides:
            strides = [[d[1], 1] if len(d) == 2 else [] for d in dims]
            args |= {"Input Strides": strides, "Concrete Inputs": concrete, "Record function id": 0, "Ev Idx": i}
        yield {**host, "cat": era.op, "name": name, "ts": ts, "dur": 15, "args": args}
        yield {**host, "cat": era.op, "name": "aten::empty", "ts": ts + 1, "dur": 1, "args": {"External id": 0}}
        launcher = era.launchers[i % len(era.launchers)]
        ids = {"op": {"External id": own_id}, "correlation": {"External id": correlation}, "none": {}}[era.external]
        category = "cuda_driver" if launcher.startswith("cuLaunch") else era.launch_category
        launched = {"correlation": correlation, "cbid": 211, **ids}
        yield {**host, "cat": category, "name": launcher, "ts": ts + 4, "dur": 3, "args": launched}
        yield from _flow(era, host, ts + 4, correlation)
        on = {"device": era.device, "context": 1, "stream": era.stream, "correlation": correlation, **ids}
        yield _on_device(era, era.kernel, kernel, begin + 100 + 100 * i, dur, on)
    if era.text_ids:
        yield {"ph": "i", "s": "t", "name": "[memory]", "pid": pid, "tid": TID, "ts": begin + 9, "args": {"Bytes": 4}}
    else:
        yield {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": pid, "tid": TID,
               "ts": begin + 9, "args": {"Bytes": 4}}  # fmt: skip


def _copied(era: Era, host: Event, ts: int, correlation: int) -> Iterator[Event]:
    launched = {"correlation": correlation}
    yield {**host, "cat": era.launch_category, "name": era.copy, "ts": ts, "dur": 2, "args": launched}
    on = {"device": era.device, "stream": era.stream, "correlation": correlation, "bytes": 4096}
    yield _on_device(era, era.memcpy, "Memcpy HtoD (Pageable -> Device)", ts + 20, 3, on)


def _on_device(era: Era, category: str, name: str, ts: int, dur: int, args: Event) -> Event:
    tid: Any = f"stream {era.stream}" if era.text_ids else era.stream
    return {"ph": "X", "cat": category, "name": name, "pid": era.device, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _flow(era: Era, host: Event, ts: int, correlation: int) -> Iterator[Event]:
    yield {"ph": "s", "id": correlation, "pid": host["pid"], "tid": TID, "ts": ts, "cat": era.flow, "name": era.flow}


def write(path: Path, era: Era, events: list[Event], keep: Callable[[Event], bool] = bool) -> Path:
    """A trace file; times as the era writes them, events that ``keep`` refuses left out."""
    zero_us = 0 if era.ns else 1623142623000000
    scale = float if era.ns else int
    held = [event | {"ts": scale(event["ts"] + zero_us)} for event in events if keep(event)]
    held = [event | {"dur": scale(event["dur"])} if "dur" in event else event for event in held]
    path.write_text(json.dumps({"schemaVersion": 1, **era.top, "traceEvents": held}))
    return path
