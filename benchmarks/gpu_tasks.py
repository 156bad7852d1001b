"""What a child process of ``gpu.py`` does: check a replacement's numbers, fill the compile caches, take its times."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any, Final

import torch
from gpu_clock import Clock, DeviceClock, HostClock, copy_of, interleaved
from liger import liger
from optimizer_steps import measurable
from replacement_accuracy import accuracy
from replacement_calls import Call, Pass, Run, Size, compiled, fitting_rows, passes, sample_of

from fused_replacements import Replacement, Unfused, _paths, cpu_path, find

DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Plan:
    """How large and how long, for a GPU or for Triton's interpreter."""

    device: torch.device
    check_dtypes: tuple[str, ...]
    check_sizes: tuple[tuple[int, int], ...]
    """(rows, width) of the numeric checks: one aligned, one odd."""
    time_dtype: str
    time_size: tuple[int, int]
    large_call_bytes: int
    """An eager call that allocates more is timed at fewer rows."""
    warm_up: int
    """Calls before any that is timed."""
    rounds: int
    round_us: float
    compile: bool
    """Whether to time torch.compile too."""

    def size(self, shape: tuple[int, int], dtype: str) -> Size:
        return Size(*shape, DTYPES[dtype], self.device)


ON_GPU: Final = Plan(
    torch.device("cuda"), ("bf16", "fp16", "fp32"), ((512, 4096), (257, 1001)), "bf16", (8192, 4096),
    large_call_bytes=2**33, warm_up=3, rounds=5, round_us=5_000, compile=True,
)  # fmt: skip
INTERPRETED: Final = Plan(
    torch.device("cpu"), ("fp16", "fp32"), ((4, 40),), "fp32", (2, 32),
    large_call_bytes=2**33, warm_up=0, rounds=1, round_us=1, compile=False,
)  # fmt: skip
"""Triton's interpreter computes no bf16. Its times mean nothing: they show that the script works."""


def plan() -> Plan:
    """For the device at hand."""
    device = next((name for name in ("cuda", "xpu") if getattr(torch, name).is_available()), None)
    return INTERPRETED if device is None else replace(ON_GPU, device=torch.device(device))


def healthy(chosen: Plan) -> bool:
    """Whether the device still answers: some errors stay with the process."""
    if chosen.device.type == "cpu":
        return True
    try:
        getattr(torch, chosen.device.type).synchronize()
        torch.zeros(1, device=chosen.device).item()
    except Exception:
        return False
    return True


def answer(task: dict[str, Any], chosen: Plan) -> dict[str, Any]:
    """The rows that ``task`` asks for. An exception within one variant is a row of its own."""
    replacement = measurable(find(task["name"]))
    work = {"check": check, "warm": warm, "time": time_variant}[task["do"]]
    with cpu_path("triton") if chosen.device.type == "cpu" else nullcontext():
        rows = []
        for row in work(replacement, task, chosen):
            rows.append(row)
            if row.get("error") and not healthy(chosen):
                break
    return {"rows": rows}


def check(replacement: Replacement, task: dict[str, Any], chosen: Plan) -> Iterator[dict[str, Any]]:
    """One row for each dtype and size."""
    label = task["variant"]
    for dtype, shape in product(chosen.check_dtypes, chosen.check_sizes):
        row: dict[str, Any] = {"name": replacement.name, "variant": label, "dtype": dtype, "shape": list(shape)}
        try:
            with _listening() as said:
                found = accuracy(replacement, label, chosen.size(shape, dtype))
            yield row | asdict(found) | {"unfused": said.reason()}
        except Exception as error:
            yield row | {"error": _words(error)}


def _call(replacement: Replacement, label: str, chosen: Plan) -> Call:
    return Call.of(replacement, sample_of(replacement, label, _timed_size(replacement.name, chosen)))


@cache
def _timed_size(name: str, chosen: Plan) -> Size:
    size = chosen.size(chosen.time_size, chosen.time_dtype)
    return size._replace(
        rows=fitting_rows(measurable(find(name)), size, chosen.large_call_bytes, partial(_peak_bytes, chosen))
    )


@cache
def _clock(device: torch.device) -> Clock:
    return HostClock() if device.type == "cpu" else DeviceClock(device)


def warm(replacement: Replacement, task: dict[str, Any], chosen: Plan) -> Iterator[dict[str, Any]]:
    """Compile what will be timed: the kernels land in the caches on disk. Failures show when it is timed."""
    call = _call(replacement, task["variant"], chosen)
    for which in passes(replacement):
        call.prepare(which)
        call.run(which, replacement.function)()
        if chosen.compile:
            call.run(which, compiled(replacement.reference))()
    yield {}


def time_variant(replacement: Replacement, task: dict[str, Any], chosen: Plan) -> Iterator[dict[str, Any]]:
    """One row for each pass."""
    row: dict[str, Any] = {"name": replacement.name, "family": replacement.family, "variant": task["variant"]}
    try:
        call = _call(replacement, task["variant"], chosen)
    except Exception as error:
        yield row | {"error": _words(error)}
        return
    for which in passes(replacement):
        row |= {"pass": which, "dtype": chosen.time_dtype}
        try:
            yield row | _timed(call, which, task["compile"], chosen)
        except Exception as error:
            yield row | {"error": _words(error)}


def _timed(call: Call, which: Pass, with_compile: bool, chosen: Plan) -> dict[str, Any]:
    call.prepare(which)
    runs = {"eager": call.run(which, call.replacement.reference), "fused": call.run(which, call.replacement.function)}
    runs |= {name: call.run(which, function) for name, function in call.others()}
    failures: dict[str, str] = {}
    if with_compile and chosen.compile:
        runs["compile"] = call.run(which, compiled(call.replacement.reference))
    if (theirs := liger(call)) is not None:
        runs["liger"] = call.run(which, theirs)
    with _listening() as said:
        runs["fused"]()
    for name in [name for name in runs if name not in ("eager", "fused")]:
        try:
            runs[name]()
        except Exception as error:  # another implementation that can't is no fault of ours
            failures[name] = _words(error)
            del runs[name]
    moved = call.bytes_moved(which)
    runs["copy"] = copy_of(moved, chosen.device)
    clock = _clock(chosen.device)
    for run in runs.values():
        for _ in range(chosen.warm_up):
            run()
    taken = interleaved(runs, clock, chosen.rounds, chosen.round_us)
    fused = taken["fused"].us
    return {
        "shapes": [list(tensor.shape) for tensor in call.inputs],
        "bytes_moved": moved,
        "us": {name: asdict(each) for name, each in taken.items()},
        "against": {name: each.us / fused for name, each in taken.items() if name not in ("fused", "copy")},
        "gb_per_s": moved / fused / 1e3,
        "host_us": {name: clock.host_us(runs[name]) for name in ("eager", "fused")},
        "of_copy": taken["copy"].us / fused,
        "peak_bytes": {name: _peak_bytes(chosen, runs[name]) for name in runs if name != "copy"},
        "failures": failures,
        "unfused": said.reason(),
    }


def _peak_bytes(chosen: Plan, run: Run) -> int:
    """Most that one call has allocated at once; 0 on a device that doesn't count."""
    if chosen.device.type == "cpu":
        return 0
    runtime = getattr(torch, chosen.device.type)
    runtime.synchronize()
    runtime.reset_peak_memory_stats()
    before = runtime.memory_allocated()
    run()
    return int(runtime.max_memory_allocated() - before)


class _listening:  # noqa: N801 - a context manager
    """What ops say in its block about running unfused."""

    def __enter__(self) -> _listening:
        _paths._said.clear()
        self._catch = warnings.catch_warnings(record=True)
        self._said = self._catch.__enter__()
        warnings.simplefilter("always", Unfused)
        return self

    def __exit__(self, *raised: object) -> None:
        self._catch.__exit__()

    def reason(self) -> str | None:
        return next((str(said.message) for said in self._said if said.category is Unfused), None)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"
