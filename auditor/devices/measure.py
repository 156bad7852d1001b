"""The measurements behind :mod:`auditor.devices.calibrate`. Imports torch; nothing is measured on import."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor

from auditor.devices.device import Bandwidth, Device

SIZES = (2**18, 2**20, 2**22, 2**24, 2**26, 2**27)
"""Bytes that one measured kernel moves in all: from inside the nearest caches to well beyond most of them."""
WIDTH = 1024
CHEAP_IN_HARDSWISH = 4
"""It adds, takes a minimum and a maximum, and multiplies twice, where the plain pass has one op."""

NEAR = 2**15
"""Elements of the arrays for arithmetic costs: in and out stay in a core's own cache."""
FAR = 2**21
"""Elements of arrays that do not."""
ROUGH_SHARE = 0.2
"""A calibration with more unsettled figures than this says so, and is not kept."""

Fn = Callable[..., object]
Progress = Callable[[str], None]


class Stopwatch:
    """Times small functions on a machine that others use too.

    A figure is the median of the calls within 25 % of the fastest. It is settled when five calls agree; it gets up to
    four times its budget for that, less when the time for everything (``limit_s``) is over.
    """

    agreeing = 5

    def __init__(self, limit_s: float = 8.0) -> None:
        self.deadline = time.perf_counter() + limit_s
        self.settled: list[bool] = []

    def seconds(self, fn: Callable[[], object], budget_s: float = 0.06) -> float:
        fn()
        begin, times = time.perf_counter(), list[float]()
        while True:
            start = time.perf_counter()
            fn()
            now = time.perf_counter()
            times.append(now - start)
            near = [t for t in times if t <= 1.25 * min(times)]
            settled = len(near) >= self.agreeing
            if (settled and now - begin >= budget_s) or now - begin >= 4 * budget_s or now > self.deadline:
                self.settled.append(settled)
                return median(near)

    @property
    def is_rough(self) -> bool:
        return self.settled.count(False) > ROUGH_SHARE * len(self.settled)


def measure_machine(name: str, cache_bytes: int | None, progress: Progress) -> Device:
    """Measure this CPU with the threads that torch uses now. Takes a few seconds, at most about ten."""
    watch, threads = Stopwatch(), torch.get_num_threads()
    with torch.no_grad():
        progress("Calibrating this machine: cost of one op")
        launch_us, kernel_us = fixed_costs(watch)
        progress("Calibrating this machine: arithmetic")
        with one_thread():  # cores do not share their arithmetic units: all of them take 1/threads of one's time
            costs = {op: ns / threads for op, ns in arithmetic(watch).items()}
            apart = costs["aten.exp"] + costs["aten.log1p"] + costs["aten.tanh"]
            overlap = hidden_share(watch)
        progress("Calibrating this machine: memory bandwidth")
        curve = tuple(bandwidth(watch, size, kernel_us) for size in SIZES)
    origin = f"measured on this machine with torch {torch.__version__}, {threads} thread(s)"
    figures = ("peak_gbps", "cache_gbps", "launch_us", "min_kernel_us", "curve", "op_ns", "chained", "overlap")
    return Device(
        name=name,
        kind="cpu",
        peak_gbps=curve[-1].gbps,
        cache_bytes=cache_bytes,
        cache_gbps=max(point.gbps for point in curve),
        launch_us=launch_us,
        min_kernel_us=kernel_us,
        curve=curve,
        op_ns=costs,
        chained=max(1.0, costs["aten.mish"] / apart) if apart > 0 else 1.0,
        overlap=overlap,
        sources=dict.fromkeys(figures, origin) | ({"rough": "times did not settle"} if watch.is_rough else {}),
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch ops on one thread: on a busy machine a second one waits for its turn, and that is not arithmetic."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def fixed_costs(watch: Stopwatch) -> tuple[float, float]:
    """Microseconds of an op on 16 numbers: as Python calls it, and without allocating its result."""
    x, y, out = torch.ones(16), torch.ones(16), torch.empty(16)
    return watch.seconds(lambda: x + y) * 1e6, watch.seconds(lambda: torch.add(x, y, out=out)) * 1e6


def bandwidth(watch: Stopwatch, size: int, kernel_us: float) -> Bandwidth:
    """Adding two arrays moves ``size`` bytes in all; then the same into a result that is allocated each time."""
    rows = max(1, size // 3 // (4 * WIDTH))
    x, y, out = (torch.ones(rows, WIDTH) for _ in range(3))
    existing = undisturbed(watch, lambda: torch.add(x, y, out=out)) - kernel_us / 1e6
    fresh = undisturbed(watch, lambda: torch.add(x, y)) - kernel_us / 1e6
    existing = max(existing, 1e-7)
    fresh_ns = max(0.0, fresh - existing) / out.nbytes * 1024 * 1e9
    return Bandwidth(bytes=3 * out.nbytes, gbps=3 * out.nbytes / existing / 1e9, fresh_ns_per_kb=fresh_ns)


def undisturbed(watch: Stopwatch, fn: Callable[[], object]) -> float:
    """Time with all threads, or with one where that is less: then the others had to wait for a core."""
    every = watch.seconds(fn)
    if torch.get_num_threads() == 1:
        return every
    with one_thread():
        return min(every, watch.seconds(fn))


def arithmetic(watch: Stopwatch) -> dict[str, float]:
    """Nanoseconds per element of what a fused kernel computes, operands in cache, cheap arithmetic taken off.

    A compiled kernel calls the portable vector library, while the eager op may call a vendor's (tanh: eight times
    faster). The eager **bf16** op takes the vector library too, so its time beyond a bf16 multiplication
    is what the function costs in a fused kernel.
    """
    aten, wide, narrow = torch.ops.aten, operands(torch.float32), operands(torch.bfloat16)

    def per_element_ns(fn: Fn, x: Tensor, out: Tensor) -> float:
        return watch.seconds(lambda: fn(x, out=out)) / x.numel() * 1e9

    copy = per_element_ns(torch.neg, *wide)
    product = per_element_ns(lambda x, out: torch.mul(x, 1.5, out=out), *narrow)

    def in_f32(fn: Fn) -> float:
        return max(0.0, per_element_ns(fn, *wide) - copy)

    def in_bf16(fn: Fn) -> float:
        return max(0.0, per_element_ns(fn, *narrow) - product)

    unary = {name: in_bf16(getattr(torch, name)) for name in ("exp", "tanh", "erf", "log", "log1p", "sin", "cos")}
    return {f"aten.{name}": cost for name, cost in unary.items()} | {
        "aten.sigmoid": in_f32(torch.sigmoid),
        "aten.silu": in_f32(aten.silu.out),
        "aten.gelu": unary["erf"],
        "aten.gelu:tanh": unary["tanh"],
        "aten.mish": in_f32(aten.mish.out),  # one loop over exp, log1p and tanh: longer than the three apart
        "aten.softplus": in_f32(aten.softplus.out),
        "aten.rsqrt": in_f32(torch.rsqrt),
        "aten.sqrt": in_f32(torch.sqrt),
        "aten.reciprocal": in_f32(torch.reciprocal),
        "aten.div": in_f32(lambda x, out: torch.div(x, x, out=out)),
        "aten.pow:general": in_bf16(lambda x, out: torch.pow(x, 2.5, out=out)),
        "aten.sum": row_sum_ns(watch, wide[0]),
        "cheap": in_f32(aten.hardswish.out) / CHEAP_IN_HARDSWISH,
        "cast": max(0.0, per_element_ns(lambda x, out: out.copy_(x), wide[0], narrow[1]) - copy),
    }


def operands(dtype: torch.dtype, elements: int = NEAR) -> tuple[Tensor, Tensor]:
    """Values between 0.1 and 1.1, where no function takes a special path, and room for a result."""
    own = torch.Generator().manual_seed(0)  # a training that is recorded draws from the global one
    x = (torch.rand(elements // WIDTH, WIDTH, generator=own) + 0.1).to(dtype)
    return x, torch.empty_like(x)


def row_sum_ns(watch: Stopwatch, x: Tensor) -> float:
    """One reading pass over a row that is still in cache: what a reduction adds to the kernel it is fused into."""
    tiny = torch.ones(1, 16)
    return max(0.0, watch.seconds(lambda: x.sum(-1)) - watch.seconds(lambda: tiny.sum(-1))) / x.numel() * 1e9


def hidden_share(watch: Stopwatch, rounds: int = 10) -> float:
    """How much arithmetic hides behind memory traffic: functions beyond the caches against a plain pass over the same.

    The four times behind one share are taken one right after the other, so that a drifting clock cancels.
    """
    near, far = operands(torch.float32), operands(torch.float32, FAR)
    functions: tuple[Fn, ...] = (torch.ops.aten.silu.out, torch.sigmoid, torch.rsqrt)
    shares = [_hidden(watch, fn, near, far) for _ in range(rounds) for fn in functions]
    known = [share for share in shares if share is not None]
    return min(1.0, max(0.0, median(known))) if known else 1.0


def _hidden(watch: Stopwatch, fn: Fn, near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor]) -> float | None:
    def both_functions(x: Tensor, out: Tensor, budget_s: float) -> tuple[float, float]:
        return watch.seconds(lambda: torch.neg(x, out=out), budget_s), watch.seconds(lambda: fn(x, out=out), budget_s)

    plain, with_fn = both_functions(*near, 0.003)
    memory, both = both_functions(*far, 0.01)
    compute = (with_fn - plain) * far[0].numel() / near[0].numel()
    lesser = min(memory, compute)
    return 1.0 - (both - max(memory, compute)) / lesser if lesser > 0.05 * memory else None
