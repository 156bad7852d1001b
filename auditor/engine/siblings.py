"""Horizontal fusion: GEMMs that read the same activations with different weights.

They could be one GEMM over the concatenated weights: the activations are read once and one launch
does the work of several.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set

from auditor.engine.legality import Refusal, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, Value, owner_of
from auditor.graph.nodes import CValue, Node
from auditor.graph.traffic import region_of

SIBLING_KINDS = ("mm", "addmm", "linear")
"""In an order: of a set it would be another one in each process, and so would be what is refused first."""


def propose_siblings(graph: Canonical, rule: Rule, taken: Set[int] = frozenset()) -> Proposals:
    """Sets of GEMMs on one input: same activations, same dtype, weights that are parameters, no adapters.

    ``taken`` are indices of ops that other sites claimed.
    """
    options = rule.siblings or {}
    groups: dict[tuple[object, ...], list[Node]] = defaultdict(list)
    for kind in SIBLING_KINDS:
        for node in graph.by_kind.get(kind, ()):
            key = _key(node) if node.op.index not in taken else None
            if key is not None:
                groups[key].append(node)
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    for nodes in groups.values():
        nodes.sort(key=lambda n: n.index)
        kept = _alike(nodes, options.get("narrowest", 1 / 16))
        if len(kept) < options.get("min", 2):
            if len(nodes) >= options.get("min", 2):
                ops = tuple(n.op for n in nodes)
                refusals.append(Refusal("the siblings are adapters or too narrow", ops[0], ops[-1], ops))
            continue
        region = check(graph, [n.op for n in kept], None, gemms=len(kept))
        if isinstance(region, Refusal):
            refusals.append(region)
        else:
            candidates.append(Candidate(rule, region, {"width": str(len(kept))}))
    return Proposals(candidates, refusals)


def _key(node: Node) -> tuple[object, ...] | None:
    """What siblings share: the activations, their layout as read, dtypes, and whether there is a bias."""
    x, w = (*node.args[:2], None, None)[:2]
    if type(x) is not CValue or type(w) is not CValue or not _is_weight(w):
        return None
    if x.root.producer is None and owner_of(x.value).producer is None and not x.value.numel:
        return None
    out = node.op.outputs[0].dtype if node.op.outputs else ""
    return (id(x), *_rows(node), w.value.dtype, out, node.op.phase, node.op.thread)


def _rows(node: Node) -> tuple[int, int]:
    """How the activations are read: how long a row is, and how far apart its elements lie.

    In a backward one GEMM of a layer reads the gradient, the other one reads it transposed.
    """
    read = node.op.args[1 if node.kind == "addmm" else 0]
    return (read.shape[-1], read.strides[-1]) if isinstance(read, Value) and read.shape else (0, 0)


def _is_weight(value: CValue) -> bool:
    """Not computed in the step, apart from casts of what was not (autocast casts weights anew)."""
    return owner_of(value.root.value).producer is None


def _width(node: Node) -> int:
    return node.op.outputs[0].shape[-1] if node.op.outputs and node.op.outputs[0].shape else 0


def _alike(nodes: list[Node], narrowest: float) -> list[Node]:
    distinct: dict[object, Node] = {}
    for node in nodes:
        if not _is_adapter(node) and not _is_router(node):
            distinct.setdefault(region_of(node.args[1].root.value), node)
    widest = max((_width(n) for n in distinct.values()), default=0)
    return [n for n in distinct.values() if _width(n) >= widest * narrowest]


def _is_adapter(node: Node) -> bool:
    """A low-rank pair: the narrow result goes straight into another GEMM with a weight of its own."""
    out = node.outs[0] if node.outs else None
    if out is None:
        return False
    k = _contracted(node.op)
    users = [u for u in out.root.deep_users if not u.ops or u.op.phase == node.op.phase]
    return bool(users) and _width(node) * 4 <= k and all(_takes_as_activation(u, out) for u in users)


def _takes_as_activation(user: Node, out: CValue) -> bool:
    return (
        user.kind in SIBLING_KINDS
        and type(user.args[0]) is CValue
        and user.args[0].root is out.root
        and _is_weight(user.args[1])
    )


def _contracted(op: Op) -> int:
    value = next((a for a in reversed(op.args) if isinstance(a, Value) and len(a.shape) == 2), None)
    return max(value.shape) if value is not None else 0


_CHOICE = frozenset({"topk", "argmax", "max", "sort"})


def _is_router(node: Node, steps: int = 4) -> bool:
    """Scores from which experts are chosen: a few steps on, top-k. They stay apart, often in another dtype."""
    front = list(node.outs[:1])
    for _ in range(steps):
        users = [u for out in front for u in out.root.deep_users if u.ops]
        if any(u.kind in _CHOICE for u in users):
            return True
        if any(u.kind in SIBLING_KINDS for u in users):
            return False
        front = [out for u in users for out in u.outs[:1]]
    return False
