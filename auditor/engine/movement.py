"""Copies and casts that nothing needs.

* *round trip*: what a cast or a copy makes is only cast or copied back to what it was;
* *same layout*: a copy that lies in memory as its source does, where neither is written later;
* *read in place*: a copy to another layout for a kernel that could have read the source as it lies: attention
  takes any strides as long as the last dimension is dense, a matrix product any matrix that is dense along a dimension;
* *cut apart again*: a concatenation of which only parts are read, each from one of what was joined.

Where edges are inferred only the third is told: who reads a copy is seen there, what it is a copy of is a guess.
A chain takes copies in for nothing: where a kernel beside them could be in one, they are left to it.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import pairwise

from auditor.engine.chains import could_join
from auditor.engine.legality import Refusal, check
from auditor.engine.propose import Candidate, Proposals
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op, Value
from auditor.graph.nodes import CValue, Node
from auditor.graph.ops import kind_of

_INSTEAD = {
    "round trip": "the tensor that was there before both",
    "same layout": "the tensor itself, without .clone()",
    "read in place": "the view itself, without .contiguous()",
    "cut apart again": "the tensors that were joined",
}
MATRIX_PRODUCTS = frozenset({"aten.mm", "aten.addmm"})


def propose_movement(graph: Canonical, rule: Rule, taken: Set[int]) -> Proposals:
    """One site for each copy (or pair of them) that could go; nothing would remain of it."""
    found = Proposals()
    gone: set[int] = set(taken)
    for node in graph.nodes:
        if not _is_free(node, gone):
            continue
        kind, nodes = _needless(graph, node, gone)
        if not kind:
            continue
        region = check(graph, [op for one in nodes for op in one.ops], None)
        if isinstance(region, Refusal):
            found.refusals.append(region)
            continue
        region.moves(())
        gone.update(op.index for op in region.ops)
        found.candidates.append(Candidate(rule, region, {"kind": kind}, left=0, instead=_INSTEAD[kind]))
    return found


def _is_free(node: Node, gone: Set[int]) -> bool:
    return len(node.ops) == 1 and node.op.launches == 1 and node.op.index not in gone and len(node.outs) == 1


def _needless(graph: Canonical, node: Node, gone: Set[int]) -> tuple[str, list[Node]]:
    known = graph.graph.provenance != "inferred"
    if node.op.name == "aten.cat":
        return ("cut apart again", [node]) if known and _cut_apart(graph, node) else ("", [])
    if node.kind not in ("cast", "copy") or type(node.args[0]) is not CValue or not _out(node).shape:
        return "", []
    if not _stays(graph, node):
        return "", []
    first = node.args[0].producer
    if known and first is not None and _is_free(first, gone) and _returns(graph, first, node):
        return "round trip", [first, node]
    if node.kind == "copy" and not _has_chain(node):
        if known and _same_layout(_source(node), _out(node)):
            return "same layout", [node]
        if _read_in_place(graph, node):
            return "read in place", [node]
    return "", []


def _source(node: Node) -> Value:
    value = node.op.args[0]
    assert isinstance(value, Value)
    return value


def _out(node: Node) -> Value:
    return node.op.outputs[0]


def _stays(graph: Canonical, node: Node) -> bool:
    """Whether the result could be its source: it is read here and not handed out, and neither is written from here on.

    What was there before the step and is written in it is written in the next one, too.
    """
    source, out = node.op.args[0], _out(node)
    if not isinstance(source, Value) or node.op.mutates or source.device != out.device:
        return False
    owner = graph.owners[out.id].id
    if owner in graph.escaping or not graph.readers.get(owner):
        return False
    if graph.owners[source.id].producer is None and graph.writers.get(source.storage):
        return False
    return not any(w.index > node.op.index for s in (source.storage, out.storage) for w in graph.writers.get(s, ()))


def _has_chain(*nodes: Node) -> bool:
    """Whether a kernel before or after them could take them in."""
    made = nodes[0].args[0].producer
    while made is not None and made.kind == "slice":
        made = made.args[0].producer
    readers = list(nodes[-1].outs[0].users)
    readers += [user for one in readers if one.kind == "slice" for out in one.outs for user in out.users]
    return (made is not None and could_join(made)) or any(could_join(reader) for reader in readers)


def _returns(graph: Canonical, first: Node, second: Node) -> bool:
    """Whether ``second`` makes what ``first`` was made of, and nothing else reads what lies between."""
    if first.kind not in ("cast", "copy"):
        return False
    between = graph.owners[_out(first).id]
    if between.id in graph.escaping or [op.index for op in graph.readers[between.id]] != [second.op.index]:
        return False
    if _has_chain(first, second) or not _stays(graph, first):
        return False
    start, end = _source(first), _out(second)
    return start.dtype == end.dtype and _undoes(start, _out(first), _source(second), end)


def _undoes(start: Value, made: Value, read: Value, end: Value) -> bool:
    """Whether each element of ``end`` lies as that of ``start`` did which it is: ``read`` is a view of ``made``."""
    whole = start.extent == start.numel == made.numel == made.extent == read.numel == end.numel
    alike = (start.shape, read.shape, read.offset) == (made.shape, end.shape, made.offset)
    return whole and alike and _strides_by_place(made, start) == _strides_by_place(read, end)


def _strides_by_place(value: Value, like: Value) -> set[tuple[int, int, int]]:
    """Of each dimension its size, its stride in ``value``, and its stride in ``like``."""
    every = zip(value.shape, value.strides, like.strides, strict=True)
    return {dimension for dimension in every if dimension[0] > 1}


def _same_layout(source: Value, out: Value) -> bool:
    dense = source.extent == source.numel == out.numel
    return dense and (source.dtype, source.shape, source.strides) == (out.dtype, out.shape, out.strides)


def _read_in_place(graph: Canonical, node: Node) -> bool:
    """Whether all that reads the copy could read its source, through the same strides as it lies."""
    source, out = _source(node), _out(node)
    readers = graph.readers[graph.owners[out.id].id]
    if source.dtype != out.dtype or source.extent != source.numel or not readers:
        return False
    return all(_takes(reader, source, out) for reader in readers)


def _takes(reader: Op, source: Value, out: Value) -> bool:
    reads = [value for value in reader.inputs() if value.storage == out.storage]
    if any(value.shape != source.shape or value.strides != out.strides for value in reads):
        return False
    if kind_of(reader.name) == "attention":
        return len(source.shape) == 4 and source.strides[-1] == 1
    return reader.name in MATRIX_PRODUCTS and len(source.shape) == 2 and 1 in source.strides


def _cut_apart(graph: Canonical, node: Node) -> bool:
    """Whether a concatenation is only read in parts, each of which lies in one of what was joined."""
    out = node.outs[0]
    parts, dim = node.args[0] if node.args else None, node.args[1] if len(node.args) > 1 else 0
    shape = _out(node).shape
    if graph.owners[_out(node).id].id in graph.escaping or not out.users or not isinstance(parts, tuple):
        return False
    if not isinstance(dim, int) or graph.writers.get(_out(node).storage):
        return False
    dim %= max(len(shape), 1)
    bounds = [0]
    for part in parts:
        if type(part) is not CValue or len(part.value.shape) != len(shape):
            return False
        if any(w.index > node.op.index for w in graph.writers.get(part.value.storage, ())):
            return False
        bounds.append(bounds[-1] + part.value.shape[dim])
    return all(_in_one(user, dim, len(shape), bounds) for user in out.users)


def _in_one(user: Node, dim: int, rank: int, bounds: list[int]) -> bool:
    if user.kind != "slice" or len(user.args) < 4 or not isinstance(user.args[1], int) or user.args[1] % rank != dim:
        return False
    start, stop = user.args[2], user.args[3]
    return any(low <= start and stop <= high for low, high in pairwise(bounds))
