"""The catch-all: any run of memory-bound kernels along the dataflow that one kernel could do.

Groups grow in execution order along producer → consumer edges. Two kernels join when the consumer
walks the same elements that the producer wrote, or when they are the two halves of a normalisation (a
reduction over rows, and what broadcasts its result back over the same rows). Neighbours that don't feed
each other never join, however close they are launched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Set
from dataclasses import dataclass, field

from auditor.engine.legality import Refusal, Region, barrier_name, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import ACCUMULATE, Op
from auditor.graph.nodes import CValue, Node
from auditor.graph.ops import base_name, kind_of
from auditor.graph.promotion import may_be_number

JOINING_MOVEMENT = frozenset(
    {"aten.cat", "aten.stack", "aten.slice_backward", "aten.select_backward", "aten.constant_pad_nd"}
)
"""Movement ops that read each input element once: their producers can write into the result directly."""
SHIFTING_MOVEMENT = frozenset({"aten.roll", "aten.flip"})
"""Movement ops that read elements of other places: a kernel can read them there, once they are in memory."""

CONSTANTS = frozenset({"aten.fill", "aten.zero"})
"""Ops that write one number everywhere."""

_BY_COLUMNS = ("batch_norm", "group_norm", "groupnorm")

ROWS, COLUMNS, ALL = "rows", "columns", "all"


@dataclass(slots=True, eq=False)
class _Group:
    nodes: list[Node]
    space: int
    axis: str = ""
    row: int = 0
    first: int = 0
    last: int = 0
    members: set[int] = field(default_factory=set)
    shifted: set[int] = field(default_factory=set)
    """Ops whose results are read at other places than the kernel is at: they can't be part of it."""
    before: dict[int, Op] = field(default_factory=dict)
    """Ops outside that have to run before a member, by index: what each join would else gather from all members."""

    def join(self, other: _Group) -> None:
        """Take in all that ``other``, the smaller one, has."""
        for index in other.members:
            self.before.pop(index, None)
        self.before.update((index, op) for index, op in other.before.items() if index not in self.members)
        self.nodes.extend(other.nodes)
        self.members |= other.members
        self.shifted |= other.shifted
        self.space = max(self.space, other.space)
        self.axis, self.row = (self.axis or other.axis), (self.row or other.row)
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)


def propose_chains(graph: Canonical, rule: Rule, claimed: set[int]) -> Proposals:
    """Maximal legal groups over the kernels that no other rule claimed."""
    grower = _Grower(graph, claimed)
    for node in graph.nodes:
        grower.visit(node)
    candidates: list[Candidate] = []
    refusals = list(grower.refusals)
    least = (rule.chain or {}).get("min", 2)
    pending = [group.nodes for group in grower.groups()]
    while pending:
        nodes = pending.pop()
        ops = [op for node in nodes for op in node.ops]
        if sum(op.launches > 0 for op in ops) < least:  # the kernels of one op are nobody's to join but its own
            continue
        region = check(graph, _with_constants(graph, ops, claimed), None)
        if isinstance(region, Region) and _reads_numbers_only(region):  # no kernel replaces what makes its own input
            region = check(graph, ops, None)
        if isinstance(region, Refusal):
            refusals.append(region)
            pending.extend(_pieces(nodes, region.op))
        elif (waiting := _host_check(graph, region)) is not None:
            refusals.append(
                Refusal("its result only decides what the host does next", region.ops[0], waiting, region.ops)
            )
        elif region.bytes_fused < region.bytes_now:
            candidates.append(Candidate(rule, region))
    candidates.sort(key=lambda c: c.region.ops[0].index)
    return Proposals(candidates, refusals)


def _with_constants(graph: Canonical, ops: list[Op], claimed: Set[int]) -> list[Op]:
    """``ops`` with what makes the constants (fills, ranges) that nobody else reads: a kernel has them in registers."""
    inside = {op.index for op in ops}
    written = {value.storage for op in ops for value in op.mutates}
    first = ops[0]
    for op in list(ops):
        for value in graph.inputs[op.index]:
            owner = graph.owners[value.id]
            made = owner.producer
            if made is None or made.index in inside or made.index in claimed or not made.kernels:
                continue
            if kind_of(made.name) != "generator" and base_name(made.name) not in CONSTANTS:
                continue
            if (made.phase, made.thread) != (first.phase, first.thread) or owner.storage in written:
                continue
            alone = owner.id not in graph.escaping
            if alone and all(reader.index in inside for reader in graph.readers.get(owner.id, ())):
                inside.add(made.index)
                ops = [*ops, made]
    return ops


def _reads_numbers_only(region: Region) -> bool:
    return all(may_be_number(value.dtype, value.shape, value.device) for value in region.inputs)


def _pieces(nodes: list[Node], culprit: Op) -> list[list[Node]]:
    """What is left of a refused group: the connected parts before the op that forbids it, and from it on."""
    return [
        part
        for side in (
            [n for n in nodes if n.index < culprit.index],
            [n for n in nodes if n.index >= culprit.index],
        )
        if len(side) < len(nodes)
        for part in _connected(side)
    ]


def _connected(nodes: list[Node]) -> list[list[Node]]:
    part_of = {id(node): [node] for node in nodes}
    for node in sorted(nodes, key=lambda n: n.index):
        for operand in node.distinct_operands():
            theirs, ours = part_of.get(id(operand.producer)), part_of[id(node)]
            if theirs is not None and theirs is not ours:
                theirs.extend(ours)
                part_of.update((id(member), theirs) for member in ours)
    return list({id(part): part for part in part_of.values()}.values())


def _host_check(graph: Canonical, region: Region) -> Op | None:
    """The op that hands the region's result to the host, where nobody else reads it (``mask.all().item()``).

    Fusing such a check saves a launch, but the host stalls for the answer all the same: the fix is to drop
    the check, not to fuse it.
    """
    readers = [r for v in region.outputs for r in graph.readers.get(v.id, ()) if r not in region.ops]
    if readers and all(r.index in graph.barrier_ops for r in readers) and not region.saved:
        return readers[0]
    return None


class _Grower:
    def __init__(self, graph: Canonical, claimed: set[int]) -> None:
        self.graph = graph
        self.claimed = claimed
        self.group_of: dict[int, _Group] = {}
        self.applied: set[int] = set()
        """Nodes, by identity, that walk what the last pass of a batch or group norm writes."""
        self.refusals: list[Refusal] = []

    def groups(self) -> list[_Group]:
        return list({id(g): g for g in self.group_of.values()}.values())

    def visit(self, node: Node) -> None:
        if not node.ops or not self._eligible(node):
            return
        axis = _axis(node)
        row = (_input_shape(node) or (1,))[-1] if axis == ROWS else 0
        members, shifted = {op.index for op in node.ops}, _shifted(node)
        before = {op.index: op for own in node.ops for op in self.graph.before(own) if op.index not in members}
        own = _Group([node], _space(node), axis, row, node.ops[0].index, node.index, members, shifted, before)
        self.group_of[id(node)] = own
        for operand in node.distinct_operands():
            producer = operand.producer
            if producer is None or not producer.ops:
                continue
            theirs = self.group_of.get(id(producer))
            ours = self.group_of[id(node)]
            if theirs is not None and theirs is not ours and self._joins(theirs, ours, producer, node, operand):
                if self._is_applied(producer) and not axis:
                    self.applied.add(id(node))
                self._merge(theirs, ours)

    def _eligible(self, node: Node) -> bool:
        """What accumulates gradients is a node of the engine's own: no kernel of a backward takes it in."""
        for op in node.ops:
            if op.index in self.claimed or not op.kernels or op.scope == ACCUMULATE:
                return False
        return could_join(node)

    def _joins(self, theirs: _Group, ours: _Group, producer: Node, node: Node, operand: CValue) -> bool:
        a, b = producer.op, node.op
        if a.phase != b.phase or a.thread != b.thread:
            return False
        if (a.kernels[0].stream, a.kernels[0].device) != (b.kernels[0].stream, b.kernels[0].device):
            return False
        if not _same_walk(theirs, ours, operand, node):
            return False
        if theirs.shifted & ours.members or ours.shifted & theirs.members:
            return False
        if not _axes_agree(theirs, ours) and (ours.axis or not self._is_applied(producer)):
            return False
        return self._convex(theirs, ours, min(theirs.first, ours.first), max(theirs.last, ours.last))

    def _is_applied(self, producer: Node) -> bool:
        """What a batch or group norm writes comes from its last pass, elementwise: what follows can ride on it."""
        return kind_of(producer.op.name) == "norm" or id(producer) in self.applied

    def _convex(self, theirs: _Group, ours: _Group, first: int, last: int) -> bool:
        """No path leaves the two and comes back: walk up from what comes in, and from what the host waits for."""
        one, other = ours.members, theirs.members
        pending = [
            made
            for group in (ours, theirs)
            for index, made in group.before.items()
            if index > first and index not in one and index not in other
        ]
        barriers = self.graph.barriers
        for i in range(bisect_right(barriers, first), bisect_right(barriers, last - 1)):
            pending.append(self.graph.graph.ops[barriers[i]])
        seen: set[int] = set()
        while pending:
            op = pending.pop()
            if op.index in seen:
                continue
            seen.add(op.index)
            for made in self.graph.before(op):
                if made.index < first:
                    continue
                if made.index in one or made.index in other:
                    self.refusals.append(self._refusal(made, op))
                    return False
                pending.append(made)
        return True

    def _refusal(self, made: Op, op: Op) -> Refusal:
        if op.index in self.graph.barrier_ops:
            return Refusal(f"{barrier_name(op)} in between waits for it: {op.name}", made, op, (made, op))
        return Refusal(f"a path leaves and comes back through {op.name}", made, op, (made, op))

    def _merge(self, theirs: _Group, ours: _Group) -> None:
        small, large = sorted((theirs, ours), key=lambda g: len(g.nodes))
        for node in small.nodes:
            self.group_of[id(node)] = large
        large.join(small)


def could_join(node: Node) -> bool:
    """Whether the kernels of ``node`` may be part of a chain at all, wherever it stands."""
    if not node.ops:
        return False
    if node.kind == "dropout":
        return True
    name = node.op.name
    if kind_of(name) in ("pointwise", "reduction", "norm", "copy"):
        return bool(node.outs)
    return name in JOINING_MOVEMENT or name in SHIFTING_MOVEMENT


def _shifted(node: Node) -> set[int]:
    if node.op.name not in SHIFTING_MOVEMENT:
        return set()
    return {op.index for operand in node.operands() if operand.producer for op in operand.producer.ops}


def _space(node: Node) -> int:
    """Elements that the kernel walks: of its result, or of its input for a reduction."""
    sizes = [v.value.numel for v in node.outs[:1]]
    if kind_of(node.op.name) in ("reduction", "norm"):
        sizes += [v.value.numel for v in node.operands()]
    return max(sizes, default=0)


def _axis(node: Node) -> str:
    kind = kind_of(node.op.name)
    if kind == "norm":
        return COLUMNS if any(name in node.op.name for name in _BY_COLUMNS) else ROWS
    if kind != "reduction":
        return ""
    at = 2 if node.kind == "vector_norm" else 1
    dims = node.args[at] if len(node.args) > at else None
    if dims is None:
        return ALL
    if isinstance(dims, tuple):
        return ROWS if -1 in dims else COLUMNS
    return ROWS if dims in (-1, len(_input_shape(node)) - 1) else COLUMNS


def _input_shape(node: Node) -> tuple[int, ...]:
    operand = next(iter(node.operands()), None)
    return operand.value.shape if operand is not None else ()


def _same_walk(theirs: _Group, ours: _Group, operand: CValue, node: Node) -> bool:
    size = operand.value.numel
    if size == _space(node):
        return True
    if node.op.name in JOINING_MOVEMENT:
        return True
    # A row's result broadcast back over the rows that it was reduced from: a normalisation.
    return theirs.axis == ROWS and theirs.space == ours.space and size < theirs.space


def _axes_agree(theirs: _Group, ours: _Group) -> bool:
    """One kernel walks one way: two row-wise steps share it when their rows are equally long.

    What was reduced over columns, or to one number, is finished only when all blocks are: the kernel can
    go on with the reduced values, not with the elements that they came from.
    """
    if theirs.axis and ours.axis:
        return theirs.axis == ours.axis == ROWS and theirs.row == ours.row
    return theirs.axis not in (COLUMNS, ALL) or ours.space < theirs.space
