"""Every replacement on this machine's GPU in under five minutes: are its numbers right, and how fast is it?

    python benchmarks/gpu.py                     writes replacements-gpu.json and replacements-gpu.md
    python benchmarks/gpu.py --out DIR --only rms_norm --only rope

First the numbers of every variant in bf16, fp16 and fp32, outputs and gradients, in several processes at once, which
also fills the compile caches. Then times, in one process: the replacement against eager, torch.compile, PyTorch's own
fused op, Liger where it is installed, and a copy of as many bytes as a perfect kernel would move; events of the device,
L2 cold, warm-up left out. First variants come first. What does not fit in the budget is not run, and said.

An op that fails, hangs or breaks the GPU's context costs only itself: every task runs in a child process.
The exit code is 1 if any number was wrong or anything of ours failed.

On a machine without a GPU the Triton kernels run in Triton's interpreter, at toy sizes, in fp16 and fp32.
Needs torch and triton; nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402

INTERPRETED = not (torch.cuda.is_available() or torch.xpu.is_available())
# Triton reads it when a kernel is defined, so before anything imports one
os.environ["TRITON_INTERPRET"] = "1" if INTERPRETED else "0"

import child_processes  # noqa: E402
from child_processes import Answer, Task  # noqa: E402
from gpu_report import markdown  # noqa: E402
from gpu_tasks import answer, healthy, plan  # noqa: E402
from optimizer_steps import measurable  # noqa: E402
from replacement_calls import labels  # noqa: E402

from fused_replacements import find  # noqa: E402
from fused_replacements._registry import HOME  # noqa: E402

CHECKS_SHARE = 0.6
"""Of the budget, at most, for the numbers."""
TASK_LIMIT_S = 90.0


Variants = dict[str, list[str]]
"""Replacement to labels."""


def variants_of(names: Iterable[str], most: int) -> tuple[Variants, list[dict[str, Any]]]:
    """What there is to run, and a row for each replacement that can't even be imported."""
    found: Variants = {}
    broken = []
    for name in names:
        try:
            found[name] = labels(measurable(find(name)))[:most]
        except Exception as error:
            broken.append({"name": name, "error": f"{type(error).__name__}: {error}"})
    return found, broken


def in_turn(variants: Variants) -> Iterator[tuple[int, str, str]]:
    """Place, name and label: the first variant of every replacement, then every second one, and so on."""
    for place in range(max(map(len, variants.values()), default=0)):
        yield from ((place, name, some[place]) for name, some in variants.items() if place < len(some))


def checks(variants: Variants) -> list[Task]:
    """The numbers; after those of the first variants, where there is a GPU, what fills the caches for the times.

    An optimizer's step is PyTorch's own: it is timed only.
    """
    numeric = {name: some for name, some in variants.items() if find(name).family != "optimizer"}
    tasks: list[Task] = [{"do": "check", "name": name, "variant": label} for _, name, label in in_turn(numeric)]
    if INTERPRETED:
        return tasks
    warm = [{"do": "warm", "name": name, "variant": some[0]} for name, some in variants.items()]
    return [*tasks[: len(numeric)], *warm, *tasks[len(numeric) :]]


def times(variants: Variants) -> list[Task]:
    """With torch.compile for the first variant of each, as compiling takes longest."""
    return [
        {"do": "time", "name": name, "variant": label, "compile": place == 0}
        for place, name, label in in_turn(variants)
    ]


def say(task: Task, given: Answer) -> None:
    state = given.get("error") or "done"
    print(f"  {in_words(task)}: {state}", file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """The document: machine, checks, times, what was not run."""
    start = time.monotonic()
    variants, broken = variants_of(options.only or HOME, options.variants)
    command = [sys.executable, str(Path(__file__).resolve()), "--work"]
    cores = os.cpu_count() or 1
    side_by_side = options.children or max(1, min(12, cores - (not INTERPRETED)))
    checked, unchecked = child_processes.run(
        checks(variants),
        command,
        children=side_by_side,
        deadline=start + CHECKS_SHARE * options.budget,
        task_limit_s=TASK_LIMIT_S,
        say=say,
    )
    timed, untimed = child_processes.run(
        times(variants),
        command,
        children=1,
        deadline=start + options.budget,
        task_limit_s=TASK_LIMIT_S,
        say=say,
    )
    check_rows = broken + rows([pair for pair in checked if pair[0]["do"] == "check"])
    time_rows = rows(timed)
    return {
        "version": 1,
        "machine": machine(),
        "interpreted": INTERPRETED,
        "checks": check_rows,
        "times": time_rows,
        "not_run": [in_words(task) for task in (*unchecked, *untimed) if task["do"] != "warm"],
        "faults": sum(bool(row.get("error") or row.get("problems")) for row in (*check_rows, *time_rows)),
        "seconds": time.monotonic() - start,
    }


def in_words(task: Task) -> str:
    return f"{task['do']} {task['name']} {task.get('variant', '')}".strip()


def rows(answered: list[tuple[Task, Answer]]) -> list[dict[str, Any]]:
    """The rows of all answers; a task that never answered is a row with its error."""
    found: list[dict[str, Any]] = []
    for task, given in answered:
        lost = {key: task[key] for key in ("name", "variant") if key in task} | {"error": given.get("error")}
        found += given.get("rows") or [lost]
    return found


def machine() -> dict[str, str]:
    import triton

    device = plan().device
    name = "no GPU" if INTERPRETED else getattr(torch, device.type).get_device_name()
    return {"device": name, "torch": torch.__version__, "triton": triton.__version__, "hip": torch.version.hip or ""}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="this replacement only; may be repeated")
    parser.add_argument("--variants", type=int, default=99, metavar="N", help="at most so many of each")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="DIR", help="where the two files go (default: here)"
    )
    parser.add_argument("--budget", type=float, default=280.0, metavar="S", help="seconds for all")
    parser.add_argument("--children", type=int, default=0, help="processes for the checks (default: by CPUs)")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        chosen = plan()
        child_processes.answer_tasks(lambda task: answer(task, chosen), lambda: healthy(chosen))
        return 0
    document = run(options)
    text = markdown(document)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "replacements-gpu.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    (options.out / "replacements-gpu.md").write_text(text, encoding="utf-8")
    print(text)
    return 1 if document["faults"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
