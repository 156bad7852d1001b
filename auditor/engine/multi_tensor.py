"""Small kernels of one op over independent tensors: a list of tensors for which ``torch._foreach_…`` has one kernel.

Three places have them. A backward adds every gradient to what a parameter has already, in ``AccumulateGrad`` (where
DDP's hooks scale and copy gradients too); ``zero_grad`` may fill them; and any loop over tensors launches kernels that
lie next to each other. Only the last needs edges: the first two are told by the range that they run in.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from auditor.engine.device_side import is_on_cpu
from auditor.engine.launch_count import multi_tensor_launches
from auditor.engine.legality import Refusal, Region, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import ACCUMULATE, Op, OpGraph
from auditor.graph.ops import base_name

_FOREACH = """abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min copy cos cosh div erf erfc exp expm1 floor
    frac lerp lgamma linalg_vector_norm log log10 log1p log2 maximum minimum mul neg norm pow reciprocal round rsqrt
    sigmoid sign sin sinh sqrt sub tan tanh trunc zero"""
FOREACH = frozenset(f"aten.{name}" for name in _FOREACH.split())
"""Ops that have a ``torch._foreach_…`` form."""
OF_GRADIENTS = frozenset(f"aten.{name}" for name in ("add", "mul", "div", "copy", "zero", "fill"))
"""What is done with gradients one by one, where they are accumulated or zeroed."""


def propose_multi_tensor(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """Sets of kernels of one op and dtype over tensors that do not depend on each other, of what no other rule took."""
    found = Proposals()
    least = (rule.detect or {}).get("min", 8)
    free = [op for op in graph.graph.ops if op.index not in taken and op.launches == 1]
    free = [op for op in free if not is_on_cpu(graph.graph, op)]  # on a CPU `_foreach_` ops are loops themselves
    sets = [(ops, where) for where, ops in _of_ranges(graph.graph, free)]
    sets += [(ops, "") for ops in _runs(graph, free)]
    for ops, where in sets:
        for part in _legal(graph, ops, least, found.refusals):
            found.candidates.append(_candidate(graph, rule, part, where))
    return found


def _candidate(graph: Canonical, rule: Rule, region: Region, where: str) -> Candidate:
    ops = region.ops
    region.moves(graph.traffic(op) for op in ops)
    after = multi_tensor_launches([_numel(op) for op in ops], _lists(ops[0]))
    return Candidate(
        rule, region, {"where": where} if where else {}, left=after, launches_only=True, example=ops[:1],
        instead=_instead(ops[0].name, where),
    )  # fmt: skip


def foreach_name(op: str) -> str:
    """``_foreach_mul_`` of ``aten.mul_``: the function of ``torch`` that does it to a list."""
    return "_foreach_" + op.removeprefix("aten.").removeprefix("linalg_vector_")


def _instead(op: str, where: str) -> str:
    if where == "zero_grad":
        return "zero_grad(set_to_none=True), which fills nothing"
    if where == ACCUMULATE and base_name(op) == "aten.add":
        return "zero_grad(set_to_none=True) if a step has one backward: nothing is added then"
    if where == ACCUMULATE:  # torch.distributed.algorithms.ddp_comm_hooks.default_hooks: one division of each bucket
        return "DDP with gradient_as_bucket_view=True and default_hooks.allreduce_hook: one kernel for each bucket"
    return f"torch.{foreach_name(op)} on lists of tensors"


def _of_ranges(graph: OpGraph, free: list[Op]) -> Iterator[tuple[str, list[Op]]]:
    """Ops on gradients in ``AccumulateGrad`` and ``zero_grad``, by step."""
    step_of = _step_numbers(graph)
    found: dict[tuple[object, ...], list[Op]] = defaultdict(list)
    for op in free:
        where = _range(op)
        if where and base_name(op.name) in OF_GRADIENTS:
            found[where, op.name, _dtype(op), op.thread, _stream(op), step_of[op.index]].append(op)
    yield from ((str(key[0]), ops) for key, ops in found.items())


def _range(op: Op) -> str:
    if op.scope == ACCUMULATE:
        return ACCUMULATE
    return "zero_grad" if op.scope.endswith(".zero_grad") else ""


def _step_numbers(graph: OpGraph) -> list[int]:
    """For each op how many steps ended before it: after an optimizer's, or a backward, comes something else."""
    numbers: list[int] = []
    number, before = 0, "forward"
    for op in graph.ops:
        if op.kernels:
            phase = op.phase
            number += (before, phase) in (("optimizer", "forward"), ("optimizer", "backward"), ("backward", "forward"))
            before = phase
        numbers.append(number)
    return numbers


class _Run:
    """Kernels of one op, launched one after the other, none of which reads or overwrites what another one makes."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: set[int] = set()

    def takes(self, graph: Canonical, op: Op) -> bool:
        touched = (*graph.inputs[op.index], *op.outputs)
        return bool(self.ops) and _alike(self.ops[0], op) and not any(v.storage in self.storages for v in touched)

    def add(self, op: Op) -> None:
        self.ops.append(op)
        self.storages.update(value.storage for value in op.outputs)


def _runs(graph: Canonical, free: list[Op]) -> Iterator[list[Op]]:
    free_ones = {op.index for op in free}
    open_: dict[int, _Run] = defaultdict(_Run)
    for op in graph.graph.ops:
        if not op.kernels:
            continue
        run, able = open_[op.thread], op.index in free_ones and _in_a_loop(op)
        if not able or not run.takes(graph, op):
            yield run.ops
            run = open_[op.thread] = _Run()
        if able:
            run.add(op)
    yield from (run.ops for run in open_.values())


def _in_a_loop(op: Op) -> bool:
    known = bool(op.outputs) and op.outputs[0].numel > 0
    return known and base_name(op.name) in FOREACH and not _range(op) and not op.scope.endswith(".step")


def _alike(a: Op, b: Op) -> bool:
    return (a.name, a.phase, _dtype(a), _stream(a)) == (b.name, b.phase, _dtype(b), _stream(b))


def _legal(graph: Canonical, ops: list[Op], least: int, refusals: list[Refusal]) -> Iterator[Region]:
    """The regions that may be one launch: cut where something in between waits for the first of them."""
    pending = [ops]
    while pending:
        part = pending.pop()
        if len(part) < least:
            continue
        region = check(graph, part, None)
        if not isinstance(region, Refusal):
            yield region
            continue
        before = [op for op in part if op.index < region.op.index]
        after = [op for op in part if op.index >= region.op.index]
        if max(len(before), len(after)) < least:
            refusals.append(region)
        if before and after:
            pending += [after, before]


def _dtype(op: Op) -> str:
    return op.outputs[0].dtype if op.outputs else ""


def _stream(op: Op) -> tuple[int, int]:
    return op.kernels[0].device, op.kernels[0].stream


def _numel(op: Op) -> int:
    return op.outputs[0].numel if op.outputs else 0


def _lists(op: Op) -> int:
    """Lists of tensors that the op on all of them would take: its tensors, and its result where it is a new one."""
    tensors = [value for value in op.inputs() if value.shape]
    return len(tensors) + (not op.mutates)
