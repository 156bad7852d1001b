"""How far a pattern got at a place where it did not match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from auditor.engine.chains import JOINING_MOVEMENT
from auditor.engine.detect import NOTHING_HERE
from auditor.engine.match import find_matches
from auditor.engine.pattern import Call, Pattern
from auditor.engine.rules import Rule
from auditor.graph.canonical import Canonical
from auditor.graph.model import Op
from auditor.graph.nodes import Node
from auditor.graph.ops import kind_of


def nearest(graph: Canonical, rule: Rule, ops: Sequence[Op]) -> list[str]:
    """Sentences on what is missing among ``ops`` for ``rule`` to match."""
    here = {op.index for op in ops}
    nodes = [n for n in graph.nodes if any(op.index in here for op in n.ops)]
    if rule.chain is not None:
        return _no_chain(nodes)
    if rule.siblings is not None:
        return ["no two GEMMs here read the same activations with weights of their own"]
    if rule.detect is not None:
        return [NOTHING_HERE[rule.detect["what"]]]
    best = max(rule.patterns, key=lambda p: (_share(p, nodes), -len(p.calls)))
    present = {n.kind for n in nodes}
    missing = [c for c in best.calls if not c.kinds & present]
    if missing:
        return [
            f"no match: the closest form needs {_show(c)} (`{c.name}`), and no such op was recorded here"
            for c in missing[:4]
        ]
    return _broken_edges(graph, best, nodes)


def _share(pattern: Pattern, nodes: list[Node]) -> float:
    present = {n.kind for n in nodes}
    return sum(bool(c.kinds & present) for c in pattern.calls) / len(pattern.calls)


def _show(call: Call) -> str:
    kinds = sorted(call.kinds)
    return " or ".join(f"aten.{k}" if "." not in k else k for k in kinds[:4]) + (" …" if len(kinds) > 4 else "")


def _broken_edges(graph: Canonical, pattern: Pattern, nodes: list[Node]) -> list[str]:
    """All op kinds are here, so an edge or a constant differs: match growing prefixes of the pattern."""
    here = {op.index for n in nodes for op in n.ops}
    for size in range(len(pattern.calls) - 1, 0, -1):
        part = Pattern(pattern.calls[:size], frozenset(), pattern.text, pattern.names)
        if not _connected(part):
            continue
        for match in find_matches(graph, part):
            covered = {op.index for n in match.nodes.values() for op in n.ops}
            if covered & here:
                reached, stuck = part.sink, pattern.calls[size]
                last = match.nodes[reached].op
                return [
                    f"no match: {size} of {len(pattern.calls)} ops agree, up to `{reached.name}` = op {last.index} "
                    f"{last.name}; then `{stuck.name}` = {_show(stuck)} of those values is not there"
                ]
    return ["no match: the ops of the pattern are here, but they do not feed each other as it wants"]


def _connected(pattern: Pattern) -> bool:
    return bool(pattern.calls) and _reaches_all(pattern)


def _reaches_all(pattern: Pattern) -> bool:
    covered: set[Any] = {pattern.sink}
    pending = [pattern.sink]
    while pending:
        for arg in pending.pop().args:
            for item in arg if isinstance(arg, tuple) else (arg,):
                call = getattr(item, "call", item)
                if isinstance(call, Call) and call not in covered:
                    covered.add(call)
                    pending.append(call)
    return len(covered) == len(pattern.calls)


def _no_chain(nodes: list[Node]) -> list[str]:
    fusible = [
        n
        for n in nodes
        if n.ops and (kind_of(n.op.name) in ("pointwise", "reduction", "norm", "copy") or n.op.name in JOINING_MOVEMENT)
    ]
    if not fusible:
        return ["no memory-bound op that could join a chain was recorded here"]
    return [
        f"op {n.op.index} {n.op.name} stands alone: no neighbour along the dataflow is a memory-bound op over the "
        "same elements"
        for n in fusible
    ]
