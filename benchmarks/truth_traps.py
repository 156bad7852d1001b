"""The traps of the truth, as questions about the kernels of our sites: what a tool by adjacency would have joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from truth_sites import Held, Ours

from auditor.engine.fused import FusedNames
from auditor.engine.rules import load_rules
from auditor.graph.model import Op
from auditor.graph.ops import base_name, kind_of

_PARALLEL = frozenset({"horizontal", "multi-tensor", "launch"})
"""Families whose findings join what does not feed each other, which is what they are about."""


@dataclass(frozen=True)
class Trap:
    """``places`` where one could fall into it, and how many sites of ours did."""

    name: str
    places: int
    flagged: int


def traps_of(held: Held) -> list[Trap]:
    """Each trap with the sites of ours that fell into it."""
    return [
        Trap(
            "independent chains of one pattern joined in one site",
            sum(len(sites) > 1 for sites in _chains(held).values()),
            len(list(_joined(held))),
        ),
        *(Trap(name, places(held), sum(falls(held, ours) for ours in held.sites)) for name, places, falls in _TRAPS),
    ]


def _chains(held: Held) -> dict[str, list[frozenset[int]]]:
    kinds = {entry["pattern"]: entry["kind"] for entry in held.truth["true_sites"]}
    return {name: sites for name, sites in held.true_sites().items() if kinds[name] == "vertical"}


def _joined(held: Held) -> Iterator[Ours]:
    """Sites that hold the whole of two sites of one vertical pattern between which no value goes."""
    for sites in _chains(held).values():
        whole = Counter(i for site in sites for i in held.holding(site))
        for i, count in whole.items():
            ours = held.sites[i]
            if count > 1 and ours.finding.family not in _PARALLEL and not _connected(held, ours):
                yield ours


def _connected(held: Held, ours: Ours) -> bool:
    """Whether values of the graph join all ops of a site; a value that only comes in joins none."""
    ops = held.ops_of(ours)
    inside = {op.index for op in ops}
    seen: set[int] = set()
    pending = [ops[0]]
    while pending:
        op = pending.pop()
        if op.index in seen:
            continue
        seen.add(op.index)
        pending += [held.audit.graph.ops[i] for i in held.neighbours[op.index] if i in inside]
    return seen >= inside


def _is_counter(op: Op) -> bool:
    """``num_batches_tracked += 1``."""
    first = op.inputs()[:1]
    return base_name(op.name) == "aten.add" and bool(first) and not first[0].shape and first[0].dtype == "i64"


def _counters(held: Held) -> int:
    return sum(_is_counter(op) and bool(op.kernels) for op in held.audit.graph.ops)


def _holds_counters(held: Held, ours: Ours) -> bool:
    ops = held.ops_of(ours)
    return len(ops) > 1 and sum(map(_is_counter, ops)) > 1


def _many_kernels(held: Held) -> int:
    return sum(op.launches > 1 and kind_of(op.name) in ("gemm", "norm", "attention") for op in held.audit.graph.ops)


def _is_one_op(held: Held, ours: Ours) -> bool:
    return len(ours.site.ops) == 1 and kind_of(held.ops_of(ours)[0].name) in ("gemm", "norm", "attention")


def _memsets(held: Held) -> int:
    return sum(event.name.startswith("Memset") for event in held.numbered.events)


def _holds_memsets(held: Held, ours: Ours) -> bool:
    return any(held.numbered.events[n].name.startswith(("Memset", "Memcpy")) for n in ours.kernels)


@cache
def _names() -> FusedNames:
    return FusedNames(load_rules())


def _is_live(kernel: str) -> bool:
    return kernel.startswith("triton_") or _names().covers(kernel)


def _live(held: Held) -> int:
    return sum(_is_live(event.name) for event in held.numbered.events)


def _holds_live(held: Held, ours: Ours) -> bool:
    """A kernel that is fused already in a site of memory-bound kernels, where the truth has no site with it."""
    if ours.finding.family in ("epilogue", "horizontal", "algorithmic"):
        return False
    return any(_is_live(held.numbered.events[n].name) for n in ours.kernels - held.listed)


def _streams(held: Held) -> int:
    return len({kernel.stream for op in held.audit.graph.ops for kernel in op.kernels}) - 1


def _crosses_streams(held: Held, ours: Ours) -> bool:
    return len({kernel.stream for op in held.ops_of(ours) for kernel in op.kernels if not kernel.is_transfer}) > 1


def _checks(held: Held) -> int:
    return sum(base_name(op.name) == "aten.all" for op in held.audit.graph.ops)


def _is_check(held: Held, ours: Ours) -> bool:
    return [base_name(op.name) for op in held.ops_of(ours)[-1:]] == ["aten.all"]


_Places = Callable[[Held], int]
_Falls = Callable[[Held, Ours], bool]
_TRAPS: tuple[tuple[str, _Places, _Falls], ...] = (
    ("counters of batch norms added up in one site", _counters, _holds_counters),
    ("several kernels of one native op taken for a chain", _many_kernels, _is_one_op),
    ("memsets and copies of the copy engine", _memsets, _holds_memsets),
    ("kernels that are fused already", _live, _holds_live),
    ("kernels of several streams", _streams, _crosses_streams),
    ("a check whose answer the host waits for", _checks, _is_check),
)
