"""Which kernels show that a fusion is live: those of our own replacements, and those whose names the rules know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from auditor.engine.rules import Rule
from auditor.graph.model import OpGraph

REPLACEMENTS = "fused_replacements."
"""Ops that begin so are the library's: fused, whatever their kernels are called."""


class FusedNames:
    """The names of fused kernels that ``rules`` know; ops of our own replacements are fused by themselves."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        patterns = [pattern for rule in rules for pattern in rule.already_fused]
        self._live = re.compile("|".join(f"(?:{p})" for p in patterns), re.IGNORECASE) if patterns else None
        self.covers = cache(self._covers)

    def _covers(self, kernel: str) -> bool:
        return self._live is not None and self._live.search(kernel) is not None


def fused_kernels(graph: OpGraph, rules: Iterable[Rule]) -> int:
    """Kernels of ``graph`` whose name says that a fusion is live there, and those of our own replacements."""
    names = FusedNames(rules)
    ours = sum(op.launches for op in graph.ops if op.name.startswith(REPLACEMENTS))
    return ours + sum(map(names.covers, _names_of_others(graph)))


def _names_of_others(graph: OpGraph) -> Iterator[str]:
    for op in graph.ops:
        if not op.name.startswith(REPLACEMENTS):
            yield from (kernel.name for kernel in op.kernels)
    yield from (kernel.name for kernel in graph.unlinked)
