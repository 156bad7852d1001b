"""Which kernels show that a fusion is live: ours, those of libraries and compilers, and those that rules name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from auditor.engine.propose import Candidate
from auditor.engine.rules import Rule
from auditor.graph.model import Op
from auditor.kernels import Known, classify, family_of_op
from auditor.kernels.name import MAX_READ

REPLACEMENTS = "fused_replacements."
"""Ops that begin so are the library's: fused, whatever their kernels are called."""


class Fusion(NamedTuple):
    """Where a fused kernel is from (empty: its name does not tell), and what it does in one."""

    library: str
    what: str


class FusedNames:
    """The names of fused kernels that ``rules`` know."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        known = [(rule, "|".join(f"(?:{p})" for p in rule.already_fused)) for rule in rules if rule.already_fused]
        self._live = [(rule, re.compile(pattern, re.IGNORECASE)) for rule, pattern in known]
        self.rule_of = cache(self._rule_of)

    def covers(self, kernel: str) -> bool:
        """Whether one of the rules knows ``kernel`` as the fusion that it looks for."""
        return self.rule_of(kernel[:MAX_READ]) is not None

    def _rule_of(self, kernel: str) -> Rule | None:
        return next((rule for rule, pattern in self._live if pattern.search(kernel)), None)

    def fusion(self, op: str, kernel: str) -> Fusion | None:
        """What is fused in ``kernel``, launched by ``op`` (empty: not known); None for a kernel that is not."""
        found = made_fused(op, kernel)
        if found is None and (rule := self.rule_of(kernel[:MAX_READ])):
            what = rule.name.removeprefix("unfused-").removesuffix("-by-parts").replace("-", " ")
            return Fusion("", f"{what} ({rule.id})")
        return found


def made_fused(op: str, kernel: str) -> Fusion | None:
    """What is fused in a kernel of ours, of a library's or of a compiler's, by its name alone."""
    if op.startswith(REPLACEMENTS):
        return Fusion(REPLACEMENTS.removesuffix("."), op.removeprefix(REPLACEMENTS))
    known = known_as(op, kernel)
    return Fusion(known.library, known.fuses) if known.fuses else None


def known_as(op: str, kernel: str) -> Known:
    """What is known of ``kernel``: by its name, and where that says nothing, by the op that launched it."""
    if kernel == op:  # a CPU's kernel is the op: nothing else is in the name
        return _of_op(op)
    known = classify(kernel)
    return known if known.family != "other" else _of_op(op)


@cache
def _of_op(op: str) -> Known:
    return Known(family_of_op(op))


def leaves_fused_alone(candidate: Candidate) -> bool:
    """Whether no kernel of a site is fused as it is: those are never part of a finding, but where launches are slow."""
    return candidate.waiting is not None or not any(fusion_of(op) for op in candidate.region.ops)


def fusion_of(op: Op) -> Fusion | None:
    """What is fused in a kernel that ``op`` launched, by its name; None where none is."""
    found = (made_fused(op.name, kernel.name) for kernel in op.kernels if not kernel.is_transfer)
    return next((fusion for fusion in found if fusion is not None), None)
