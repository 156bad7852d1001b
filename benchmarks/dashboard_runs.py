"""A store as large as the dashboard's budget speaks of: one run of a million kernels, and a thousand runs."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa

from auditor.document import (
    CoverageInfo,
    DeviceInfo,
    Document,
    Finding,
    Run,
    Saving,
    Site,
    SourceInfo,
    Totals,
    TotalSaving,
)
from auditor.graph.tables import KERNELS, OPS, VALUES
from auditor.store import Store

_SHAPE = (8, 512, 4096)
_MB = 8 * 512 * 4096 * 2


@dataclass(frozen=True)
class _Op:
    """One op of a layer: its place, how long it takes (µs), and what it reads, by its distance in ops."""

    name: str
    kernel: str
    module: str
    module_class: str
    line: int
    dur_us: float
    reads: tuple[int, ...]
    rule: str = ""


_NORM = "void at::native::vectorized_elementwise_kernel<4, {}>"
LAYER = (
    _Op("aten.pow", _NORM.format("pow"), "input_norm", "RMSNorm", 36, 22.0, (1,), "FUS201"),
    _Op("aten.mean", "at::native::reduce_kernel<512, 1, MeanOps>", "input_norm", "RMSNorm", 36, 14.0, (1,), "FUS201"),
    _Op("aten.add", _NORM.format("add"), "input_norm", "RMSNorm", 37, 2.1, (1,), "FUS201"),
    _Op("aten.rsqrt", _NORM.format("rsqrt"), "input_norm", "RMSNorm", 37, 2.0, (1,), "FUS201"),
    _Op("aten.mul", _NORM.format("mul"), "input_norm", "RMSNorm", 37, 26.0, (5, 1), "FUS201"),
    _Op("aten.mm", "sm90_xmma_gemm_bf16bf16_tilesize128x128x64", "attention.qkv", "Linear", 51, 210.0, (1, 1)),
    _Op("aten._scaled_dot_product_flash_attention", "flash_fwd", "attention", "Attention", 55, 120.0, (1, 1, 1)),
    _Op("aten.add", _NORM.format("add"), "", "Block", 70, 26.0, (8, 1)),
    _Op("aten.mm", "sm90_xmma_gemm_bf16bf16_tilesize256x128x64", "mlp.gate", "Linear", 76, 330.0, (1, 1)),
    _Op("aten.silu", _NORM.format("silu"), "mlp", "MLP", 77, 24.0, (1,), "FUS206"),
    _Op("aten.mul", _NORM.format("mul"), "mlp", "MLP", 77, 27.0, (2, 1), "FUS206"),
    _Op("aten._to_copy", "void at::native::unrolled_elementwise_kernel<direct_copy>", "mlp", "MLP", 78, 20.0, (1,)),
    _Op("aten.index_select", "void at::native::indexSelectLargeIndex", "cache", "Cache", 81, 17.0, (1,)),
)  # fmt: skip
"""Thirteen ops of a transformer's layer, a kernel each."""


def large_run(kernels: int, streams: int = 4, seed: int = 0) -> tuple[Document, dict[str, pa.Table]]:
    """A run of that many kernels on ``streams`` streams, 54 % of them in two findings."""
    draw = np.random.default_rng(seed)
    place = np.arange(kernels) % len(LAYER)
    layer = np.arange(kernels) // len(LAYER)
    dur = np.array([op.dur_us for op in LAYER])[place] * draw.gamma(40.0, 1 / 40.0, kernels)
    stream = layer % streams
    start = np.empty(kernels)
    for each in range(streams):
        mine = stream == each
        start[mine] = np.cumsum(dur[mine] + draw.exponential(3.0, mine.sum())) - dur[mine]
    kernel_table = pa.table(
        {
            "op": np.arange(kernels), "name": np.array([op.kernel for op in LAYER], object)[place],
            "start_us": start + 1e6, "dur_us": dur, "stream": stream + 7, "device": np.zeros(kernels, np.int64),
        },
        schema=KERNELS,
    )  # fmt: skip
    tables = {"ops": _ops(place, layer), "values": _values(kernels), "kernels": kernel_table}
    return _document(place, layer, dur, float((start + dur).max() * 1.02)), tables


def _ops(place: np.ndarray, layer: np.ndarray) -> pa.Table:
    n = len(place)

    def each(attribute: str) -> np.ndarray:
        return np.asarray(np.array([getattr(op, attribute) for op in LAYER], object)[place])

    modules = [f"model.layers.{at % 96}.{op.module}".rstrip(".") for at in range(96) for op in LAYER]
    args = [
        "[" + ",".join(f'{{"v":{max(i - back, -1) + 1}}}' for back in LAYER[at].reads) + "]"
        for i, at in enumerate(place.tolist())
    ]
    outputs = pa.ListArray.from_arrays(pa.array(np.arange(n + 1), pa.int32()), pa.array(np.arange(n) + 1))
    empty = pa.ListArray.from_arrays(pa.array(np.zeros(n + 1), pa.int32()), pa.array([], pa.int64()))
    return pa.table(
        {
            "name": each("name"), "overload": np.full(n, "Tensor", object), "args": args, "outputs": outputs,
            "mutates": empty, "module": np.array(modules, object)[(layer % 96) * len(LAYER) + place],
            "module_class": each("module_class"), "source_file": np.full(n, "model.py", object),
            "source_line": each("line").astype(np.int64), "source_function": np.full(n, "forward", object),
            "phase": np.full(n, "forward", object), "thread": np.zeros(n, np.int64), "sequence": np.full(n, -1),
            "inferred": np.zeros(n, bool),
        },
        schema=OPS,
    )  # fmt: skip


def _values(kernels: int) -> pa.Table:
    n = kernels + 1
    offsets = pa.array(np.arange(n + 1) * 3, pa.int32())
    strides = (_SHAPE[1] * _SHAPE[2], _SHAPE[2], 1)
    return pa.table(
        {
            "id": np.arange(n), "dtype": np.full(n, "bf16", object),
            "shape": pa.ListArray.from_arrays(offsets, pa.array(np.tile(_SHAPE, n))),
            "strides": pa.ListArray.from_arrays(offsets, pa.array(np.tile(strides, n))),
            "offset": np.zeros(n, np.int64), "storage": np.arange(n), "device": np.full(n, "cuda:0", object),
            "name": np.full(n, "", object), "base": pa.nulls(n, pa.int64()), "escapes": np.zeros(n, bool),
        },
        schema=VALUES,
    )  # fmt: skip


def _document(place: np.ndarray, layer: np.ndarray, dur: np.ndarray, step_us: float) -> Document:
    findings = [_finding("FUS201", "unfused-rms-norm", place, layer, dur)]
    findings.append(_finding("FUS206", "unfused-gated-activation", place, layer, dur))
    bound = np.array([op.name not in ("aten.mm",) and "attention" not in op.name for op in LAYER])[place]
    likely = sum(f.saving.likely_us for f in findings)
    unfused, left = sum(f.kernels for f in findings), sum(f.kernels_after for f in findings)
    totals = Totals(
        kernels=len(place), memory_bound_kernels=int(bound.sum()), unfused_kernels=unfused,
        avoidable_kernels=unfused - left, device_us=float(dur.sum()), step_us=step_us,
        memory_bound_us=float(dur[bound].sum()), idle_us=step_us * 0.02, bytes=_MB * 3 * len(place),
        saving=TotalSaving(ideal_us=likely * 1.2, likely_us=likely, step_us=likely / 4, bytes=_MB, amdahl_cap=1.2),
    )  # fmt: skip
    device = DeviceInfo(name="NVIDIA H100 80GB HBM3", kind="cuda", peak_gbps=3350.0)
    run = Run(name="large", source="trace", torch="2.9.0", device=device, script=["large.py"])
    coverage = CoverageInfo(kernels=len(place), linked=len(place), steps=1)
    return Document(run=run, totals=totals, findings=findings, coverage=coverage)


def _finding(rule: str, name: str, place: np.ndarray, layer: np.ndarray, dur: np.ndarray) -> Finding:
    members = [i for i, op in enumerate(LAYER) if op.rule == rule]
    module = LAYER[members[0]]
    sites = []
    for first in np.flatnonzero(place == members[0]).tolist():
        ops = [op for op in range(first, first + len(members)) if op < len(place)]
        us = float(dur[ops[0] : ops[-1] + 1].sum())
        sites.append(
            Site(
                ops=ops, module=f"model.layers.{layer[first] % 96}.{module.module}", kernels=len(ops), device_us=us,
                source=SourceInfo(file="model.py", line=module.line, function="forward"), bytes_now=4 * _MB,
                bytes_fused=_MB, saving=Saving(ideal_us=us * 0.7, likely_us=us * 0.6, step_us=us * 0.5),
                formula=f"{len(ops)} kernels move 134.2 MB, 1 would move 33.6 MB: {us:.1f} µs now",
            )
        )  # fmt: skip
    us = sum(site.device_us for site in sites)
    return Finding(
        rule=rule, name=name, family="reduction", fingerprint=f"{rule.lower()}{'0' * 10}", sites=len(sites),
        kernels=sum(site.kernels for site in sites), kernels_after=len(sites), device_us=us,
        bytes_now=4 * _MB * len(sites), bytes_fused=_MB * len(sites), module_class=module.module_class,
        saving=Saving(ideal_us=us * 0.7, likely_us=us * 0.6, step_us=us * 0.5), replacement="rms_norm",
        ops=[LAYER[i].name for i in members], dtype="bf16", modules=[f"model.layers.{i}" for i in range(96)],
        source=SourceInfo(file="model.py", line=module.line, function="forward"), places=sites,
    )  # fmt: skip


def small_runs(store: Store, count: int, models: int = 20) -> None:
    """``count`` small runs of ``models`` models over the last days, each with its tables."""
    document, tables = large_run(len(LAYER) * 4)
    now = datetime.now(timezone.utc)
    for i in range(count):
        each = copy.deepcopy(document)
        each.run.name = f"model-{i % models:02d}"
        each.run.created = (now - timedelta(hours=count - i)).isoformat(timespec="seconds")
        each.totals.step_us *= 1 + 0.1 * math.sin(i / 40)
        store.save(each, tables)
