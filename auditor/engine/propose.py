"""From a match to a proposal: the recorded ops that the fused kernel would replace.

Casts and copies between matched nodes belong to it; a cast at the border belongs to it if nobody else
reads what it made. Where the casts lie is the *casting mode*: it changes results, so it is kept.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from auditor.engine.constraints import lookup_in, means, violated
from auditor.engine.costs import KEEPS_GEMM, remaining
from auditor.engine.legality import Refusal, Region, check
from auditor.engine.match import Match, Search
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, Value, owner_of
from auditor.graph.nodes import CValue, Node
from auditor.graph.normal import IDENTITY_KINDS
from auditor.graph.ops import is_memory_bound, kind_of


@dataclass(frozen=True, slots=True)
class Waiting:
    """A stretch of launches that the device waits for. Times in microseconds of wall time; ``saved_us`` by a graph."""

    kernels: int
    wall_us: float
    busy_us: float
    saved_us: float
    told: str
    """The same as one readable line."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A legal site of one rule, not yet claimed."""

    rule: Rule
    region: Region
    variant: dict[str, str] = field(default_factory=dict)
    match: Match | None = None
    """What the pattern bound; None for chains, siblings and what is detected."""
    left: int | None = None
    """Kernels that would remain of the site, where that is not one fused kernel."""
    launches_only: bool = False
    """The kernels that remain move what these move: only launches are saved."""
    example: tuple[Op, ...] = ()
    """The ops that tell what the site is, where it repeats them: of a step of an optimizer those of one parameter."""
    copied: Op | None = None
    """The copy to another layout that alone reads what the pattern makes: its kernel may write there at once."""
    instead: str = ""
    """What to write, where no kernel in a model replaces these."""
    waiting: Waiting | None = None
    """Of a region where the device waits for launches: how long. It claims no kernel's time."""
    unpriced: str = ""
    """Why nothing is known of what it saves; empty where the shapes tell."""

    @property
    def bytes_saved(self) -> int:
        return self.region.bytes_now - self.region.bytes_fused

    @property
    def kernels_after(self) -> int:
        """Kernels that would remain of the site: one, and what its native ops keep."""
        return remaining(self.region.ops, self.rule.family) if self.left is None else self.left


Deferred = tuple[Search, Node]
"""A place to look at again: a pattern's search, and the node that it would start from."""


@dataclass(slots=True)
class Proposals:
    """What one rule would take. ``deferred`` are places inside legal sites where a smaller form may match
    too: worth a look only where the larger form loses its kernels to another site.
    """

    candidates: list[Candidate] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)


def propose(graph: Canonical, rule: Rule, taken: Set[int] = frozenset()) -> Proposals:
    """Legal sites of a pattern rule, larger forms first, overlapping ones included, and the refused.

    What needs an op in ``taken``, claimed in an earlier turn, is passed over.
    """
    proposals = Proposals()
    refusals: list[Refusal] = []
    refused: set[int] = set()
    covered: set[int] = set()
    nowhere = {name for name, dtypes in rule.where.get("holds", {}).items() if graph.dtypes.isdisjoint(dtypes)}
    for pattern in rule.patterns:
        if not nowhere.isdisjoint(pattern.names):
            continue
        search = Search(graph, pattern)
        for start in search.starts():
            if start.index in taken:
                continue
            if start.index in covered:
                proposals.deferred.append((search, start))
                continue
            for match in search.at(start):
                if taken and not taken.isdisjoint(match.op_indices()):
                    continue
                result = evaluate(graph, rule, match)
                if result is None:
                    continue
                if isinstance(result, Refusal):
                    # The smaller forms of a refused site would say the same place again.
                    if refused.isdisjoint(match.op_indices()):
                        refusals.append(result)
                        refused.update(match.op_indices())
                else:
                    covered.update(op.index for op in result.region.ops)
                    proposals.candidates.append(result)
    proposals.refusals = [r for r in refusals if not covered.issuperset(op.index for op in r.ops)]
    return proposals


def evaluate(graph: Canonical, rule: Rule, match: Match) -> Candidate | Refusal | None:
    """Check the rule's constraints and legality for one match; ``None`` where the rule does not mean such ops."""
    ops = [op for node in match.nodes.values() for op in node.ops]
    lookup = lookup_in(match)
    if not means(rule.where, lookup):
        return None
    reason = violated(rule.where, lookup)
    if reason:
        ordered = tuple(sorted(ops, key=lambda op: op.index))
        return Refusal(reason, ordered[0], ordered[0], ordered)
    casts = _Casts(graph, match, relays=rule.family not in (*KEEPS_GEMM, "algorithmic"))
    casts.collect()
    allowed, names = _outside_names(match, casts)
    region = check(graph, [*ops, *casts.ops], allowed, gemms=2 if rule.family == "algorithmic" else 1, names=names)
    if isinstance(region, Refusal):
        return region
    if region.kernels < 2:
        return Refusal("it is one kernel already", region.ops[0], region.ops[0], region.ops)
    if region.bytes_fused > region.bytes_now:
        return Refusal("the fused kernel would move more bytes", region.ops[0], region.ops[0], region.ops)
    return Candidate(rule, region, casts.variant(), match, copied=casts.copied)


def _outside_names(match: Match, casts: _Casts) -> tuple[set[int], dict[int, str]]:
    allowed: set[int] = set()
    names: dict[int, str] = {}
    for call, node in match.nodes.items():
        for out in node.outs:
            if out.index == 0:
                names[out.value.id] = call.name
        if call.name in match.pattern.outputs or call is match.pattern.sink:
            allowed.update(v.id for v in node.op.outputs)
        elif node.ops and kind_of(node.op.name) != "reduction":  # statistics, a mask: written for the backward anyway
            allowed.update(v.id for v in node.op.outputs[1:])
    for made, source in casts.made.items():
        if owner_of(source.value).id in allowed:
            allowed.add(made)
    if casts.trailing is not None:
        allowed.add(casts.trailing)
    return allowed, names


class _Casts:
    """The casts and copies that belong to a match. ``relays``: the kernel can write its result in another layout."""

    def __init__(self, graph: Canonical, match: Match, *, relays: bool) -> None:
        self.graph = graph
        self.match = match
        self.relays = relays
        self.copied: Op | None = None
        self.ops: list[Op] = []
        self.made: dict[int, CValue] = {}
        self.trailing: int | None = None
        self._names: list[str] = []
        self._members = {n.index for n in match.nodes.values()}
        self._inside = {op.index for n in match.nodes.values() for op in n.ops}
        self._labels = {id(v): k for k, v in match.variables.items()}
        self._labels |= {id(n.outs[0]): c.name for c, n in match.nodes.items() if n.outs}

    def collect(self) -> None:
        for node in self.match.nodes.values():
            for operand in node.operands():
                self._path(operand)
        self._after(self.match.nodes[self.match.pattern.sink])

    def variant(self) -> dict[str, str]:
        return {"casts": ", ".join(dict.fromkeys(self._names))} if self._names else {}

    def _path(self, operand: CValue) -> None:
        """Identity nodes from an operand up to its root."""
        root = operand.root
        inner = root.producer is not None and root.producer.index in self._members and not _is_slice(root)
        while operand is not root:
            node = operand.producer
            assert node is not None
            if node.ops[0].index not in self._inside:
                if not inner and not (node.kind == "cast" and self._read_here(operand) and not _left_to_maker(node)):
                    return
                self._take(node, root)
            operand = node.args[0]

    def _read_here(self, made: CValue) -> bool:
        owner = owner_of(made.value)
        if owner.id in self.graph.escaping:
            return False
        phase = owner.producer.phase if owner.producer else "forward"
        return all(r.index in self._inside or r.phase != phase for r in self.graph.readers.get(owner.id, ()))

    def _take(self, node: Node, root: CValue) -> None:
        self._inside.update(op.index for op in node.ops)
        self.ops.extend(node.ops)
        out = node.outs[0] if node.outs else None
        if out is not None:
            self.made[out.value.id] = root
        if node.kind == "cast":
            label = self._labels.get(id(root)) or (root.producer.kind if root.producer else "an input")
            self._names.append(f"{label} to {node.op.outputs[0].dtype}")

    def _after(self, sink: Node) -> None:
        """A cast or copy that alone reads the result belongs to the kernel: it writes that value instead."""
        out = sink.outs[0] if sink.outs else None
        if out is None or len(out.users) != 1 or out.users[0].kind not in IDENTITY_KINDS:
            return
        node = out.users[0]
        if not node.ops or not node.outs or node.op.phase != sink.op.phase or not self.graph.read_only_by(out, node.op):
            return
        if (
            node.kind == "cast"
            and _widens(node)
            and any(is_memory_bound(u.op.name) for u in node.outs[0].users if u.ops)
        ):
            return
        if node.kind == "copy" and not (self.relays or _keeps_layout(node)):
            return
        self._take(node, out)
        self.copied = node.op if node.kind == "copy" else None
        self.trailing = node.outs[0].value.id


def _keeps_layout(copy: Node) -> bool:
    source, made = copy.op.args[0], copy.op.outputs[0]
    return isinstance(source, Value) and source.shape == made.shape and source.strides == made.strides


def _is_slice(value: CValue) -> bool:
    return value.producer is not None and value.producer.kind == "slice"


def _widens(cast: Node) -> bool:
    """The result takes more bytes an element than the source: the reader had better cast as it reads."""
    source = cast.args[0]
    return bool(cast.outs) and cast.outs[0].value.itemsize > source.value.itemsize


def _left_to_maker(cast: Node) -> bool:
    """A narrowing cast at the border: the memory-bound kernel that makes its source writes fewer bytes with it."""
    source = cast.args[0]
    made = source.producer
    narrows = bool(cast.outs) and cast.outs[0].value.itemsize < source.value.itemsize
    return narrows and made is not None and bool(made.ops) and is_memory_bound(made.op.name)
