"""Measures one call of a replacement on this CPU: time against eager and the compiler, memory, overhead at tiny shapes.

Times of all implementations are taken in every round, in a new order each time: on a shared machine absolute times
drift by integer factors, ratios within a round do not. What compiles has compiled before the first round.

Peak memory is the profiler's record of PyTorch's own allocator: every allocation and every release of one call, summed
up in order; the largest sum is the peak above what was there before. It is exact and the same in every run, where the
resident size of the process tells of the C allocator's habits. It does not see what a library allocates by itself
(oneDNN's scratch space), and it counts outputs and what is kept for backward, but no inputs.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from replacement_calls import Call, Pass, Run, compiled
from savings import interval
from savings_measure import clock
from torch.profiler import ProfilerActivity, profile

from auditor.collect.stderr import quiet
from fused_replacements import Unfused, _paths

LARGE_CALL_BYTES: Final = 2**29
"""An eager call that allocates more is measured at fewer rows."""
ROUND_US: Final = 15_000
"""What one implementation may take in one round, for as many calls as fit, and three at the least."""


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 15
    seconds: float = 3.0
    """Of one call in one pass. Slow calls get fewer rounds, seven at the least."""
    tiny_rounds: int = 9
    tiny_calls: int = 60


@dataclass(frozen=True)
class Ratio:
    """How often faster than ``against``: the ratio of medians with its 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, baseline: list[float], fused: list[float]) -> Ratio:
        return cls(median(baseline) / median(fused), *interval(baseline, fused, draws=1000))


def measure(call: Call, tiny: Call, which: Pass, effort: Effort) -> dict[str, Any]:
    """The figures of one call in one pass, and of the same variant at tiny shapes."""
    for each in (call, tiny):
        each.prepare(which)
    runs = {"eager": call.run(which, call.replacement.reference), "fused": call.run(which, call.replacement.function)}
    runs |= {name: call.run(which, function) for name, function in call.others()}
    unfused = call.unsupported() or _said_unfused(runs["fused"])
    compiler, failure = _compiled(call, which)
    if compiler is not None:
        runs["compile"] = compiler
    times = interleaved(runs, effort)
    against = {name: Ratio.of(taken, times["fused"]) for name, taken in times.items() if name != "fused"}
    return {
        "unfused": unfused,
        "compile_failure": failure,
        "us": {name: median(taken) for name, taken in times.items()},
        "against": against,
        "peak_bytes": {name: peak_bytes(run) for name, run in runs.items()},
        "overhead_us": overhead_us(tiny, which, effort),
    }


def _compiled(call: Call, which: Pass) -> tuple[Run | None, str | None]:
    """The compiled reference as a run that has compiled, or why the compiler can't."""
    run = call.run(which, compiled(call.replacement.reference))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about its own insides
            run()
    except Exception as error:
        return None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return run, None


def _said_unfused(run: Run) -> str | None:
    """The warning with which an op falls back to its reference, or None: then it ran fused."""
    _paths._said.clear()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", Unfused)
        run()
    return next((str(warning.message) for warning in said if warning.category is Unfused), None)


def interleaved(runs: Mapping[str, Run], effort: Effort, seed: int = 0) -> dict[str, list[float]]:
    """One time in microseconds for each run and round."""
    for run in runs.values():
        run()
    first = {name: clock(run, 2) for name, run in runs.items()}
    reps = {name: max(3, min(200, int(ROUND_US / max(us, 1)))) for name, us in first.items()}
    round_s = sum(reps[name] * us for name, us in first.items()) / 1e6
    rounds = max(7, min(effort.rounds, int(effort.seconds / round_s)))
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = random.Random(seed)
    for _ in range(rounds):
        for name in order.sample(list(runs), len(runs)):
            times[name].append(clock(runs[name], reps[name]))
    return times


def overhead_us(tiny: Call, which: Pass, effort: Effort) -> float:
    """Microseconds that a call costs over eager at tiny shapes; negative where eager's many small ops cost more."""
    runs = {
        "eager": tiny.run(which, tiny.replacement.reference),
        "fused": tiny.run(which, tiny.replacement.function),
    }
    for run in (*runs.values(), *runs.values()):
        run()
    order, over = random.Random(0), []
    for _ in range(effort.tiny_rounds):
        took = {name: clock(runs[name], effort.tiny_calls) for name in order.sample(list(runs), len(runs))}
        over.append(took["fused"] - took["eager"])
    return median(over)


def peak_bytes(run: Run) -> int:
    """Most bytes that one call has allocated at once, above what was allocated before it."""
    run()
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = run()
    del kept
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    now = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
