"""Small Kineto traces with steps, as each vendor's profiler would write them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN, BACKWARD, STREAM = 11, 12, 7


@dataclass(frozen=True)
class Made:
    """One op: its name, the shapes of what it reads, and the kernels that it launches with their µs."""

    name: str
    dims: Sequence[Sequence[int]] = ()
    kernels: Sequence[tuple[str, float]] = ()
    dtype: str = "float"


@dataclass
class TraceMaker:
    """Writes events one after the other on the host's clock; kernels run behind it on one stream."""

    vendor: str = "cuda"
    now: float = 1000.0
    device: float = 1000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    correlation: int = 0

    def op(self, made: Made, tid: int = MAIN) -> None:
        args = {"Input Dims": [list(d) for d in made.dims], "Input type": [made.dtype] * len(made.dims)}
        self._event(made.name, "cpu_op", self.now, 8.0, tid, args)
        for name, us in made.kernels:
            self.launch([(name, us)], tid, at=self.now + 1)
        self.now += 10.0

    def ops(self, made: Iterable[Made], tid: int = MAIN) -> None:
        for each in made:
            self.op(each, tid)

    def launch(self, kernels: Sequence[tuple[str, float]], tid: int = MAIN, at: float | None = None) -> None:
        """One launch; of several kernels it is that of a graph."""
        self.correlation += 1
        start = self.now if at is None else at
        name = f"{self.vendor}{'GraphLaunch' if len(kernels) > 1 else 'LaunchKernel'}"
        self._event(name, f"{self.vendor}_runtime", start, 2.0, tid, {"correlation": self.correlation})
        self.early(kernels, self.correlation, start + 3)

    def early(self, kernels: Sequence[tuple[str, float]], correlation: int, ready: float) -> None:
        """Kernels whose launch the window may have missed."""
        for kernel, us in kernels:
            begin = max(self.device, ready)
            self._event(
                kernel, "kernel", begin, us, STREAM, {"correlation": correlation, "stream": STREAM, "device": 0}
            )
            self.device = begin + us

    def mark(self, name: str, begin: float, category: str = "user_annotation", tid: int = MAIN) -> None:
        """A range from ``begin`` until now."""
        self._event(name, category, begin, self.now - begin, tid, {})
        self.now += 1.0

    def _event(self, name: str, cat: str, ts: float, dur: float, tid: int, args: dict[str, Any]) -> None:
        self.events.append(
            {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}
        )

    def write(self, path: Path, name: str = "trace.json") -> Path:
        device = {"cuda": "NVIDIA H100 80GB HBM3", "hip": "AMD Instinct MI300X"}[self.vendor]
        held = {"deviceProperties": [{"id": 0, "name": device}], "traceEvents": self.events}
        (path / name).write_text(json.dumps(held))
        return path / name


def model(width: int = 64, vendor: str = "cuda") -> list[Made]:
    """Forward of a small network: embedding, two layers of different width, and a head."""
    gemm = {"cuda": "ampere_sgemm_128x64", "hip": "Cijk_Ailk_Bljk_SB_MT128x64"}[vendor]
    unary = {
        "cuda": "void at::native::vectorized_elementwise_kernel<4, {}>",
        "hip": "void at::native::elementwise_hip<{}>",
    }[vendor]
    norm = {
        "cuda": Made("aten::cudnn_batch_norm", [[8, width], [width]], [("cudnn::bn_fw_tr_1C11", 6.0)]),
        "hip": Made("aten::miopen_batch_norm", [[8, width], [width]], [
            ("MIOpenBatchNormStats", 4.0), ("MIOpenBatchNormApply", 5.0)]),
    }[vendor]  # fmt: skip
    return [
        Made("aten::embedding", [[100, width], [8]], [("indexSelect", 3.0)]),
        Made("aten::mm", [[8, width], [width, width]], [(gemm, 20.0)]),
        norm,
        Made("aten::mul", [[8, width], [8, width]], [(unary.format("mul"), 4.0)]),
        Made("aten::sigmoid", [[8, width]], [(unary.format("sigmoid"), 4.0)]),
        Made("aten::neg", [[8, width]], [(unary.format("neg"), 4.0)]),
        Made("aten::mm", [[8, width], [width, 2 * width]], [(gemm, 30.0)]),
        Made("aten::tanh", [[8, 2 * width]], [(unary.format("tanh"), 4.0)]),
        Made("aten::mm", [[8, 2 * width], [2 * width, 100]], [(gemm, 25.0)]),
    ]


def training(trace: TraceMaker, vendor: str = "cuda") -> None:
    """Forward, backward on its own thread, and the parameters' update."""
    trace.ops(model(vendor=vendor))
    begin = trace.now
    trace.ops([Made("aten::mm", [[64, 8], [8, 128]], [("gemm_bw", 22.0)])], BACKWARD)
    trace.mark("autograd::engine::evaluate_function: MmBackward0", begin, "cpu_op", BACKWARD)
    begin = trace.now
    trace.ops([Made("aten::add_", [[64, 64], [64, 64]], [("update", 5.0)]) for _ in range(3)])
    trace.mark("Optimizer.step#SGD.step", begin)


def cut_at_both_ends(trace: TraceMaker) -> TraceMaker:
    """The end of a step, three whole ones, and the begin of another, after what ``trace`` holds already."""
    trace.ops(model()[6:])
    begin = trace.now
    trace.ops([Made("aten::add_", [[64, 64], [64, 64]], [("update", 5.0)]) for _ in range(3)])
    trace.mark("Optimizer.step#SGD.step", begin)
    for _ in range(3):
        training(trace)
    trace.ops(model()[:5])
    return trace
