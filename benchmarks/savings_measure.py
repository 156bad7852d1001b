"""Measures one site: its eager ops one by one (profiled, as an audit would), and eager against compiled.

The compiled function is called without Dynamo's guards, as a patched module would call it. Eager, compiled
and profiled runs are interleaved and shuffled in every round: on a shared machine absolute times drift by
integer factors, ratios within a round do not.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch_config
from savings_cases import Case
from torch import Tensor
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from auditor.graph.model import Value, contiguous_strides

SHORT = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.bool: "bool", torch.int64: "i64"}


class Dispatched(TorchDispatchMode):
    """Lists the ops below autograd that are kernels: views and allocations are not."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[dict[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not func.is_view and "empty" not in func.__name__:
            self.ops.append(kernel_facts(func, tree_leaves((args, kwargs)), tree_leaves(out)))
        return out


def kernel_facts(func: Any, ins: Sequence[Any], outs: Sequence[Any]) -> dict[str, Any]:
    read = {id(t): t for t in ins if isinstance(t, Tensor) and t.dim()}.values()
    written = [t for t in outs if isinstance(t, Tensor)]
    return {
        "op": func._schema.name.replace("::", ".") + variant(func, ins),
        "dtype": SHORT[written[0].dtype],
        "numel": max(t.numel() for t in (*read, *written)),
        "bytes_read": sum(map(nbytes, read)),
        "bytes_written": sum(map(nbytes, written)),
    }


def variant(func: Any, ins: Sequence[Any]) -> str:
    """The part of an op's name that tells what it costs: gelu's two forms differ by a factor of three."""
    return ":tanh" if func._schema.name == "aten::gelu" and "tanh" in [i for i in ins if isinstance(i, str)] else ""


def nbytes(t: Tensor) -> int:
    """As the op graph counts it: an expanded dimension once."""
    shape = tuple(t.shape)
    return Value(0, SHORT[t.dtype], shape, tuple(t.stride()) or contiguous_strides(shape)).nbytes


def compiled(case: Case, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Inductor's code for the whole site; the guards of Dynamo and AOTAutograd's wrappers are left out."""
    calls: list[Callable[[], Any]] = []

    def keep(gm: Any, example: Any, **options: Any) -> Any:
        code = compile_fx_inner(gm, example, **options)

        def first_call(args: list[Any]) -> Any:
            kept = tuple(args)  # in the order in which the compiled code wants them; it empties the list
            calls.append(lambda: code(list(kept)))
            return code(args)

        first_call._boxed_call = True  # type: ignore[attr-defined]
        return first_call

    torch._dynamo.reset()
    backend = partial(compile_fx, inner_compile=keep)
    with functorch_config.patch(enable_autograd_cache=False):  # it would bring back code that passed us by
        torch.compile(case.fn, backend=backend, dynamic=False, fullgraph=True)(*inputs)
    return calls[0]


def profiled(fn: Callable[[], Any], names: Sequence[str], reps: int) -> tuple[list[list[float]], list[float]]:
    """Per expected op its durations, and the wall time of each call. Microseconds."""
    walls = []
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(reps):
            start = time.perf_counter()
            fn()
            walls.append((time.perf_counter() - start) * 1e6)
    spans = sorted((e.start_ns(), -e.duration_ns(), e.name()) for e in prof.profiler.kineto_results.events())
    durs: list[list[float]] = [[] for _ in names]
    end, at = 0, 0
    for start_ns, minus, name in spans:
        if start_ns >= end and name.replace("::", ".") == names[at % len(names)]:
            durs[at % len(names)].append(-minus / 1e3)
            end, at = start_ns - minus, at + 1
    assert at == reps * len(names), f"{at} of {reps * len(names)} ops found in the profile"
    return durs, walls


def clock(fn: Callable[[], Any], reps: int) -> float:
    """Lower quartile in microseconds of the calls in which nobody took a CPU away from us (all, if there were none).

    With one thread, its own CPU time: on a machine that others use, wall time tells of them.
    """
    now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    times, clean = [], []
    for _ in range(reps):
        before, start = preemptions(), now()
        fn()
        times.append((now() - start) * 1e6)
        if preemptions() == before:
            clean.append(times[-1])
    return quartile(clean or times)


def quartile(times: list[float]) -> float:
    """A round is short: what disturbs some of its calls is not the code's. Medians are taken over rounds."""
    return sorted(times)[len(times) // 4]


def preemptions() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure(case: Case, rounds: int, seed: int = 0) -> dict[str, Any]:
    """Raw figures of ``case``: kernels with their undisturbed durations, and one eager and one fused time per round."""
    torch.manual_seed(seed)
    inputs = case.inputs()

    def eager() -> Any:
        return case.fn(*inputs)

    fused = compiled(case, inputs)
    with Dispatched() as seen:
        out = eager()
    torch.testing.assert_close(tree_leaves(fused()), tree_leaves(out), rtol=2e-2, atol=2e-2)
    reps = max(3, min(40, int(4000 / max(clock(eager, 3), 1))))
    durs: list[list[float]] = [[] for _ in seen.ops]
    times: dict[str, list[float]] = {"eager": [], "fused": [], "profiled": []}
    order = random.Random(seed)
    for _ in range(rounds):
        steps = ["eager", "fused", "profiled"]
        order.shuffle(steps)
        for step in steps:
            if step == "profiled":
                per_op, walls = profiled(eager, [op["op"].partition(":")[0] for op in seen.ops], reps)
                times[step].append(quartile(walls))
                for all_durs, some in zip(durs, per_op, strict=True):
                    all_durs.extend(some)
            else:
                times[step].append(clock(eager if step == "eager" else fused, reps))
    return {
        "case": case.label,
        "family": case.family,
        "kernels": [op | {"dur_us": quartile(d)} for op, d in zip(seen.ops, durs, strict=True)],
        "bytes_read_fused": sum(map(nbytes, inputs)),
        "bytes_written_fused": sum(nbytes(t) for t in tree_leaves(out)),
        **{f"{name}_us": values for name, values in times.items()},
    }
