"""Predicted against measured savings on this CPU.

    python benchmarks/savings.py                      measure every case, print the table
    python benchmarks/savings.py --json FILE          and keep the raw figures
    python benchmarks/savings.py --from FILE          judge the model again on kept figures
    python benchmarks/savings.py --default-malloc     without the allocator settings (page faults and all)
    python benchmarks/savings.py --threads 1          with one thread

*Predicted* is what an audit would say from the profiled eager ops alone. *Measured* is the compiled site
against eager, interleaved and shuffled in every round (with one thread in its CPU time, which others on the machine do
not disturb). The error of the time is
|predicted - measured fused time| / measured eager time; the error of the saving is relative to the measured saving.
A fused kernel can be slower than eager (the compiler's tanh on a CPU); the audit then claims no saving.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import msgspec  # noqa: E402
from platformdirs import user_cache_path  # noqa: E402

from auditor.devices import Device  # noqa: E402
from auditor.engine.savings import KernelCost, SiteCost, estimate, site_memory, time_after  # noqa: E402
from auditor.engine.step_time import StepModel, step_saving  # noqa: E402

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""Freed memory is kept: a fresh output costs no page faults."""


@dataclass(frozen=True)
class Row:
    """One judged case; times in microseconds."""

    case: str
    eager: float
    fused: float
    low: float
    high: float
    predicted: float
    claimed: float

    @property
    def speedup(self) -> float:
        return self.eager / self.fused

    @property
    def error(self) -> float:
        return (self.predicted - self.fused) / self.eager

    @property
    def saving_error(self) -> float | None:
        """Of the claimed saving, relative to the measured one; ``None`` where nothing was saved."""
        saved = self.eager - self.fused
        return (self.claimed - saved) / saved if saved > 0.02 * self.eager else None


def site_of(raw: dict[str, Any]) -> SiteCost:
    kernels = tuple(KernelCost(**k) for k in raw["kernels"])
    return SiteCost(raw["family"], kernels, raw["bytes_read_fused"], raw["bytes_written_fused"])


def judge(raw: dict[str, Any], device: Device) -> Row:
    """What the model says of one measured case."""
    site, eager = site_of(raw), median(raw["eager_us"])
    step = profiled_step(raw, site)
    after = time_after(site, site_memory(site, device))
    host_after = step.step_us - site.now_us - step.launch_us * (len(site.kernels) - 1)
    saved = step_saving(estimate(site, device).likely_us, len(site.kernels) - 1, step)
    low, high = interval(raw["eager_us"], raw["fused_us"])
    return Row(
        case=raw["case"],
        eager=eager,
        fused=median(raw["fused_us"]),
        low=low,
        high=high,
        predicted=eager * (after.us + host_after) / step.step_us,
        claimed=eager * saved / step.step_us,
    )


def profiled_step(raw: dict[str, Any], site: SiteCost) -> StepModel:
    walls = sorted(raw["profiled_us"])
    wall = max(walls[len(walls) // 4], site.now_us)
    count = len(site.kernels)
    return StepModel(wall, site.now_us, count, (wall - site.now_us) / count, serial=True)


def interval(eager: Sequence[float], fused: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of medians; rounds are drawn as pairs."""
    pick, pairs = random.Random(0), list(zip(eager, fused, strict=True))
    ratios = []
    for _ in range(draws):
        drawn = pick.choices(pairs, k=len(pairs))
        ratios.append(median(e for e, _ in drawn) / median(f for _, f in drawn))
    ratios.sort()
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def table(title: str, rows: list[Row]) -> str:
    head = (
        f"{'':34}{'eager us':>10}{'fused us':>10}{'speed-up':>10}{'95 %':>14}{'predicted':>10}{'error':>8}{'saving':>8}"
    )
    lines = [f"\n{title}", head]
    for r in rows:
        saving = "-" if r.saving_error is None else f"{r.saving_error:+.0%}"
        lines.append(
            f"{r.case:34}{r.eager:10.0f}{r.fused:10.0f}{r.speedup:9.2f}x{f'{r.low:.2f}-{r.high:.2f}':>14}"
            f"{r.eager / r.predicted:9.2f}x{r.error:+8.1%}{saving:>8}"
        )
    return "\n".join([*lines, summary(rows)])


def summary(rows: list[Row]) -> str:
    errors = [abs(r.error) for r in rows]
    savings = [abs(r.saving_error) for r in rows if r.saving_error is not None]
    worst = max(rows, key=lambda r: abs(r.error))
    return (
        f"{len(rows)} cases: error of the fused time, median {median(errors):.1%}, worst {max(errors):.1%} "
        f"({worst.case}); of the saving, median {median(savings):.1%}, worst {max(savings):.1%}"
    )


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    import savings_cases
    import torch
    from savings_measure import measure

    from auditor.devices.calibrate import this_machine

    torch.set_grad_enabled(False)
    torch.set_num_threads(arguments.threads or torch.get_num_threads())
    device = this_machine(refresh=True, on_progress=print)
    result: dict[str, Any] = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    result["allocator"] = {k: os.environ.get(k, "") for k in ALLOCATOR}
    for name, cases in (("tuned", savings_cases.TUNED), ("held_out", savings_cases.HELD_OUT)):
        result[name] = []
        for case in cases:
            print(f"  {case.label}", file=sys.stderr, flush=True)
            result[name].append(measure(case, arguments.rounds))
    return result | {"device": msgspec.to_builtins(device)}


def with_allocator(arguments: argparse.Namespace) -> None:
    """Start again under the allocator settings: glibc reads them once."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(user_cache_path("fusion-audit") / "inductor"))
    if not arguments.default_malloc and any(os.environ.get(k) != v for k, v in ALLOCATOR.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **ALLOCATOR})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="keep the raw figures")
    parser.add_argument("--from", dest="source", metavar="FILE", help="judge kept figures instead of measuring")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="torch threads; all by default")
    parser.add_argument("--default-malloc", action="store_true", help="leave the allocator as it is")
    arguments = parser.parse_args()
    if arguments.source:
        raw = json.loads(Path(arguments.source).read_text(encoding="utf-8"))
    else:
        with_allocator(arguments)
        raw = measured(arguments)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(raw, indent=1), encoding="utf-8")
    device = msgspec.convert(raw["device"], Device)
    print(f"{device.name}, {raw['threads']} thread(s), torch {raw['torch']}, allocator {raw['allocator']}")
    print(table("Cases the model was written with", [judge(r, device) for r in raw["tuned"]]))
    print(table("Held-out cases", [judge(r, device) for r in raw["held_out"]]))


if __name__ == "__main__":
    main()
