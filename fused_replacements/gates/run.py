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
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from typing import Final

import fused_replacements.kernels
from fused_replacements.gates.check import Verdict, failures, judge
from fused_replacements.gates.facts import Expected, Facts, gather, in_a_line
from fused_replacements.gates.occupancy import Occupancy, estimate
from fused_replacements.gates.targets import TARGETS, named

ALL_TARGETS: Final = tuple(target.name for target in TARGETS)
WIDTHS: Final = (1024, 2048, 4096, 8192, 16384, 1000, 4095, 5120)
"""Powers of two; 1000 and 4095, of which Triton knows no alignment; 5120, aligned but padded to 8192."""
DTYPES: Final = ("bf16", "fp16", "fp32")
REPRESENTATIVE: Final = (
    *((width, "bf16") for width in (1024, 4096, 8192, 16384, 1000, 4095, 5120)),
    *((width, "fp32") for width in (4096, 16384, 4095)),
    (4096, "fp16"),
)
"""Most widths in bf16, some in fp32. In fp16, one: its code is that of bf16 but for the conversions."""


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
    modules: Iterable[str],
    widths: Iterable[int] = WIDTHS,
    dtypes: Iterable[str] = DTYPES,
    targets: Iterable[str] = ALL_TARGETS,
) -> list[Task]:
    """All combinations."""
    return [Task(*choice) for choice in product(modules, widths, dtypes, targets)]


def representative(modules: Iterable[str], targets: Iterable[str] = ALL_TARGETS) -> list[Task]:
    """The pairs of ``REPRESENTATIVE``: half of all combinations, and what they have in common is compiled once."""
    return [Task(module, *pair, target) for module, pair, target in product(modules, REPRESENTATIVE, targets)]


def compile_all(task: Task) -> list[Facts]:
    """The facts of every case of ``task``. For a process without ``TRITON_INTERPRET``."""
    try:
        cases = list(importlib.import_module(task.module).cases(task.width, task.dtype))
    except Exception as error:  # a module may fail in any way; it is reported, and the others are judged
        return [_of_module(in_a_line(error))]
    if not cases:
        return [_of_module(f"no case at width {task.width} in {task.dtype}")]
    return [gather(case, named(task.target)) for case in cases]


def run(todo: Iterable[Task], jobs: int | None = None) -> Iterator[Result]:
    """Judge all of ``todo`` in ``jobs`` processes (one for each processor), in order. A module without cases fails."""
    for task, found in _compiled(list(todo), jobs or os.cpu_count() or 1):
        for facts in found:
            verdicts = judge(facts, task.width, named(task.target))
            yield Result(task.module, task.width, task.dtype, task.target, facts, verdicts)


def _compiled(todo: list[Task], jobs: int) -> Iterator[tuple[Task, list[Facts]]]:
    """A module's tasks for one target go to one process, which compiles what they have in common once."""
    together: dict[tuple[str, str], list[Task]] = {}
    for task in todo:
        together.setdefault((task.module, task.target), []).append(task)
    with ProcessPoolExecutor(max(1, min(jobs, len(together))), get_context("spawn")) as pool:
        with _compiling():
            futures = {key: pool.submit(_compile_each, tasks) for key, tasks in together.items()}
        for task in todo:
            key = task.module, task.target
            try:
                yield task, futures[key].result()[together[key].index(task)]
            except BrokenProcessPool:
                yield task, _alone(task)


def _compile_each(todo: list[Task]) -> list[list[Facts]]:
    return [compile_all(task) for task in todo]


def _alone(task: Task) -> list[Facts]:
    """``task`` in a process of its own: it, or another task, ended the one that they shared."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        with _compiling():
            future = pool.submit(compile_all, task)
        try:
            return future.result()
        except BrokenProcessPool:
            return [_of_module("the compiler ended its process")]


def _of_module(error: str) -> Facts:
    return Facts(Expected("(the module)", 1, None, None, False), error)


@contextmanager
def _compiling() -> Iterator[None]:
    """Processes started in this block import Triton as its compiler, not as its interpreter."""
    before = os.environ.pop("TRITON_INTERPRET", None)
    try:
        yield
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
