"""Measures one call of a replacement on this CPU: time against eager and the compiler, memory, overhead at tiny shapes.

Times of all implementations are taken in every round, in a new order each time: on a shared machine absolute times
drift by integer factors, ratios within a round do not. What compiles has compiled before the first round.

Peak memory is what :mod:`auditor.measuring.memory` sees: PyTorch's own allocations in one call, inputs left out.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

from replacement_calls import Call, Pass, Run, compiled
from savings_measure import clock

from auditor.measuring import Ratio, interleave, peak_bytes
from fused_replacements import Unfused, _paths

LARGE_CALL_BYTES: Final = 2**29
"""An eager call that allocates more is measured at fewer rows."""
ROUND_US: Final = 15_000
"""What one implementation takes in one round, in as many calls as that is."""
FEWEST_CALLS: Final = 3
"""In one round."""
FEWEST_ROUNDS: Final = 7


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int = 15
    seconds: float = 3.0
    """Of one call in one pass. Slow calls get fewer rounds, ``FEWEST_ROUNDS`` at the least."""
    tiny_rounds: int = 9
    tiny_calls: int = 60


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
    timings = interleave(
        runs,
        baseline="eager",
        cap_s=effort.seconds,
        tight=0.0,
        min_rounds=FEWEST_ROUNDS,
        max_rounds=max(FEWEST_ROUNDS, effort.rounds),
        sample_us=ROUND_US,
        clock=lambda run, count: clock(run, max(FEWEST_CALLS, count)),
    )
    against: dict[str, Ratio] = {name: timings.ratio("fused", against=name) for name in runs if name != "fused"}
    return {
        "unfused": unfused,
        "compile_failure": failure,
        "us": timings.median_us,
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
