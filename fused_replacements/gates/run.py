"""Many kernels at many widths, dtypes and targets: compiled in processes of their own, judged here.

The processes are spawned without ``TRITON_INTERPRET``: where it is set, Triton's decorator makes kernels that can't be
compiled, and a test session has it set. Triton caches what it compiled (``TRITON_CACHE_DIR``), so that a second run
reads most of it from disk.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Final

import fused_replacements.kernels
from fused_replacements.gates.check import Verdict, failures, judge
from fused_replacements.gates.facts import Facts, gather
from fused_replacements.gates.occupancy import Occupancy, estimate
from fused_replacements.gates.targets import TARGETS, named

WIDTHS: Final = (1024, 2048, 4096, 8192, 16384, 1000, 4095, 5120)
"""Powers of two; 1000 and 4095, of which Triton knows no alignment; 5120, aligned but padded to 8192."""
DTYPES: Final = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Task:
    """All cases of one module at one width, dtype and target."""

    module: str
    width: int
    dtype: str
    target: str


@dataclass(frozen=True)
class Result:
    """One kernel at one width, dtype and target, judged."""

    module: str
    width: int
    dtype: str
    target: str
    facts: Facts
    verdicts: list[Verdict]

    @property
    def kernel(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def failed(self) -> list[Verdict]:
        return failures(self.verdicts)

    @property
    def occupancy(self) -> Occupancy:
        usage = self.facts.usage
        return estimate(named(self.target), usage.registers, usage.shared_bytes, self.facts.expected.warps)


def kernel_modules() -> list[str]:
    """Every module of kernels, by its full name. None of them is imported here."""
    home = fused_replacements.kernels
    return [f"{home.__name__}.{found.name}" for found in pkgutil.iter_modules(home.__path__) if found.name[0] != "_"]


def tasks(
    modules: Iterable[str], widths: Iterable[int] = WIDTHS, dtypes: Iterable[str] = DTYPES,
    targets: Iterable[str] = tuple(target.name for target in TARGETS),
) -> list[Task]:  # fmt: skip
    return [Task(*choice) for choice in product(modules, widths, dtypes, targets)]


def compile_all(task: Task) -> list[Facts]:
    """The facts of every case of ``task``. For a process without ``TRITON_INTERPRET``."""
    module = importlib.import_module(task.module)
    return [gather(case, named(task.target)) for case in module.cases(task.width, task.dtype)]


def run(todo: Iterable[Task], jobs: int | None = None) -> Iterator[Result]:
    """Judge all of ``todo`` in ``jobs`` processes, in order. ``RuntimeError`` where one of a task's cases is missing."""
    todo = list(todo)
    count = max(1, min(jobs or os.cpu_count() or 1, len(todo)))
    with _compiling(), ProcessPoolExecutor(count, get_context("spawn")) as pool:
        for task, found in zip(todo, pool.map(compile_all, todo), strict=True):
            if not found:
                raise RuntimeError(f"{task.module} has no case for {task.dtype} at width {task.width}")
            for facts in found:
                verdicts = judge(facts, task.width, named(task.target))
                yield Result(task.module, task.width, task.dtype, task.target, facts, verdicts)


@contextmanager
def _compiling() -> Iterator[None]:
    """Processes started in this block import Triton as its compiler, not as its interpreter."""
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
