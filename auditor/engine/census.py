"""The kernels of a graph by what they are: families, those bound by memory, live fusions, and those nobody knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from auditor.document import FamilyTotal, LiveFusion, Unplaced
from auditor.engine.fused import FusedNames, Fusion, known_as
from auditor.engine.rules import Rule
from auditor.graph.model import OpGraph, is_transfer
from auditor.graph.ops import is_memory_bound, kind_of
from auditor.kernels import COMPUTE_BOUND, FAMILIES

MAX_NAMES = 3
"""Names of kernels that a live fusion shows."""

MAX_UNPLACED = 50
"""Names that no family is known for: more are counted in the family ``other`` only."""

MAX_NAME = 300
"""Characters of a name that the document keeps."""

_NO_TRAFFIC = COMPUTE_BOUND | {"collective", "memcpy", "memset"}


@dataclass(slots=True)
class Census:
    """Counts and microseconds, transfers left out."""

    families: list[FamilyTotal] = field(default_factory=list)
    live: list[LiveFusion] = field(default_factory=list)
    unplaced: list[Unplaced] = field(default_factory=list)
    memory_bound: int = 0
    memory_bound_us: float = 0.0
    collectives: int = 0
    collective_us: float = 0.0

    @property
    def fused(self) -> int:
        return sum(each.kernels for each in self.live)


def census(graph: OpGraph, rules: Sequence[Rule]) -> Census:
    """Count every kernel of ``graph`` once, linked to an op or not."""
    names = FusedNames(rules)
    families: dict[str, FamilyTotal] = {}
    live: dict[Fusion, LiveFusion] = {}
    unplaced: dict[str, Unplaced] = {}
    found = Census()
    for (op, name), (kernels, us) in _launches(graph).items():
        transfer = is_transfer(name)
        if is_bound(op, name):
            found.memory_bound += 0 if transfer else kernels
            found.memory_bound_us += us
        if transfer:
            continue
        family = _family(op, name)
        _add(families.setdefault(family, FamilyTotal(family=family)), kernels, us)
        if family == "collective":
            found.collectives += kernels
            found.collective_us += us
        fusion = names.fusion(op, name)
        if fusion is not None:
            total = live.setdefault(fusion, LiveFusion(library=fusion.library, what=fusion.what))
            _add(total, kernels, us)
            _show(total, name[:MAX_NAME])
        if family == "other":
            short = name[:MAX_NAME]
            _add(unplaced.setdefault(short, Unplaced(name=short)), kernels, us)
    found.families = [families[family] for family in FAMILIES if family in families]
    found.live = sorted(live.values(), key=_largest_first)
    found.unplaced = sorted(unplaced.values(), key=_largest_first)[:MAX_UNPLACED]
    return found


def _launches(graph: OpGraph) -> dict[tuple[str, str], tuple[int, float]]:
    """Kernels and their microseconds by op (empty: not known) and name: a trace has few of these pairs."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    linked = ((op.name, kernel) for op in graph.ops for kernel in op.kernels)
    for op, kernel in chain(linked, (("", kernel) for kernel in graph.unlinked)):
        kernels, us = found.get((op, kernel.name), (0, 0.0))
        found[op, kernel.name] = kernels + 1, us + kernel.dur_us
    return found


@cache
def is_bound(op: str, kernel: str) -> bool:
    """Whether a kernel is bound by memory: its op decides, as its kernels are parts of it, else the kernel's name.

    What is known by neither is not called memory-bound, but for an op of ATen's: its GEMMs are all known.
    """
    if kind_of(op) != "other":
        return is_memory_bound(op)
    family = known_as(op, kernel).family
    return op.startswith("aten.") if family == "other" else family not in _NO_TRAFFIC


def _family(op: str, kernel: str) -> str:
    return "collective" if kind_of(op) == "collective" else known_as(op, kernel).family


def _add(total: FamilyTotal | LiveFusion | Unplaced, kernels: int, us: float) -> None:
    total.kernels += kernels
    total.device_us += us


def _show(total: LiveFusion, name: str) -> None:
    if len(total.names) < MAX_NAMES and name not in total.names:
        total.names.append(name)


def _largest_first(total: LiveFusion | Unplaced) -> tuple[float, int]:
    return -total.device_us, -total.kernels
