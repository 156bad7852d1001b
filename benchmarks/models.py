"""What an audit predicts would remain of a model's kernels, beside what the compiler leaves.

    python benchmarks/models.py SCRIPT [--models llama,bert] [--dtype fp32] [--attn sdpa] [--json FILE]

SCRIPT is a Python file with ``configs()`` (name → anything) and ``build(name, dtype, attn, train) -> (model, kind)``
and ``inputs(kind, dtype, train) -> dict``. Each model is recorded and audited in this process, then compiled with
Inductor, whose scheduler's groups (generated kernels and library calls, views and no-ops left out) are counted. The
compiler is a reference and not a bound: it may split what eager had in one kernel, and it may recompute.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import auditor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def audited(model: torch.nn.Module, batch: dict[str, Any]) -> Any:
    with torch.no_grad(), auditor.record(steps=1, warmup=1) as rec:
        for _ in range(4):
            model(**batch)
    return rec.audit().document.totals


@contextmanager
def counted_groups() -> Iterator[dict[str, int]]:
    """Counts the groups of every graph that Inductor schedules inside: generated kernels and library calls."""
    from torch._inductor import ir, scheduler

    counts = {"generated": 0, "extern": 0}
    original = scheduler.Scheduler.codegen

    def codegen(self: Any) -> Any:
        for node in self.nodes:
            picked = isinstance(getattr(node, "node", None), ir.MultiOutput)  # one of several results: no launch
            if picked or isinstance(node, scheduler.NopKernelSchedulerNode):
                continue
            counts["extern" if isinstance(node, scheduler.ExternKernelSchedulerNode) else "generated"] += 1
        return original(self)

    scheduler.Scheduler.codegen = codegen
    try:
        yield counts
    finally:
        scheduler.Scheduler.codegen = original


def compiled_groups(model: torch.nn.Module, batch: dict[str, Any]) -> int:
    torch._dynamo.reset()
    with counted_groups() as counts, torch._inductor.config.patch(fx_graph_cache=False), torch.no_grad():
        torch.compile(model)(**batch)
    return counts["generated"] + counts["extern"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("script", type=Path)
    parser.add_argument("--models", default="", help="names, separated by commas; all of them without")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--attn", default="sdpa")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    script = load_script(options.script)
    names = options.models.split(",") if options.models else list(script.configs())
    dtype = DTYPES[options.dtype]
    rows = []
    print(f"{'model':<10}{'eager':>8}{'unfused':>9}{'avoidable':>11}{'would remain':>14}{'compiler':>10}")
    for name in names:
        model, kind = script.build(name, dtype, options.attn, False)
        batch = script.inputs(kind, dtype, False)
        totals = audited(model, batch)
        groups = compiled_groups(model, batch)
        after = totals.kernels - totals.avoidable_kernels
        rows.append({"model": name, "eager": totals.kernels, "would_remain": after, "compiler": groups})
        print(
            f"{name:<10}{totals.kernels:>8}{totals.unfused_kernels:>9}{totals.avoidable_kernels:>11}{after:>14}"
            f"{groups:>10}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
