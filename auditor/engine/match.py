"""Finding a pattern in a canonical graph.

The search starts at the pattern's rarest kind, follows operands upward and readers downward, tries both
orders of a commutative pair, and looks through casts and copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from auditor.engine.pattern import Call, Pattern, Rest, Result, Variable, Wildcard
from auditor.graph.canonical import Canonical, CValue, Node
from auditor.graph.normal import ConstantVariable

Binding = dict[Any, Any]


@dataclass(slots=True, eq=False)
class Match:
    """One way to lay a pattern over the graph: calls to nodes, variables to contents, constants to numbers."""

    pattern: Pattern
    nodes: dict[Call, Node]
    variables: dict[str, CValue]
    constants: dict[str, Any]

    @property
    def sink(self) -> Node:
        """The node that makes the final result."""
        return self.nodes[self.pattern.sink]

    def op_indices(self) -> Iterator[int]:
        """Indices of the recorded ops under the matched nodes."""
        return (op.index for node in self.nodes.values() for op in node.ops)


PHASE = "phase"
"""Key of a binding: no kernel spans forward and backward, so a match stays in the phase of its anchor."""

MAX_BINDINGS = 64
"""Ways tried for one anchor: a pattern over a symmetric region has many that differ in nothing."""


def find_matches(graph: Canonical, pattern: Pattern) -> Iterator[Match]:
    """Every match that covers another set of nodes, in the order of its anchor."""
    anchor = rarest_call(graph, pattern)
    if anchor is None:
        return
    steps = pattern.plan(anchor)
    if len(anchor.kinds) == 1:
        candidates = graph.by_kind.get(next(iter(anchor.kinds)), [])
    else:
        candidates = sorted((n for k in anchor.kinds for n in graph.by_kind.get(k, ())), key=lambda n: n.index)
    for node in candidates:
        seen: set[frozenset[int]] = set()
        for binding in islice(_extend(_unify_call(anchor, node, {PHASE: node.phase}), steps, 0), MAX_BINDINGS):
            match = _as_match(pattern, binding)
            covered = frozenset(n.index for n in match.nodes.values())
            if covered not in seen:
                seen.add(covered)
                yield match


def rarest_call(graph: Canonical, pattern: Pattern) -> Call | None:
    """The call whose kinds are rarest in the graph; ``None`` if one of them does not occur at all."""
    best, best_count = None, -1
    for call in pattern.calls:
        count = sum(len(graph.by_kind.get(kind, ())) for kind in call.kinds)
        if count == 0:
            return None
        if best is None or count < best_count:
            best, best_count = call, count
    return best


def _as_match(pattern: Pattern, binding: Binding) -> Match:
    nodes = {k: v for k, v in binding.items() if isinstance(k, Call)}
    variables = {k.name: v for k, v in binding.items() if isinstance(k, Variable)}
    constants = {str(k): v for k, v in binding.items() if isinstance(k, ConstantVariable)}
    return Match(pattern, nodes, variables, constants)


def _extend(bindings: Iterator[Binding], steps: list[tuple[Call, Call]], i: int) -> Iterator[Binding]:
    for binding in bindings:
        if i == len(steps):
            yield binding
            continue
        source, target = steps[i]
        node = binding[source]
        if target in binding:
            yield from _extend(iter((binding,)), steps, i + 1)
            continue
        for out in node.outs:
            for user in out.root.deep_users if out.root is not out else out.deep_users:
                if user.kind in target.kinds and not user.dead:
                    yield from _extend(_unify_call(target, user, binding), steps, i + 1)


def _unify_call(call: Call, node: Node, binding: Binding) -> Iterator[Binding]:
    bound = binding.get(call)
    if bound is not None:
        if bound is node:
            yield binding
        return
    if node.kind not in call.kinds or (node.phase is not None and node.phase != binding[PHASE]):
        return
    extended = {**binding, call: node}
    yield from _unify_args(call.args, node.args, extended)
    if call.commutative and len(node.args) == 2:
        yield from _unify_args(call.args, (node.args[1], node.args[0]), extended)


def _unify_args(wanted: tuple[Any, ...], given: tuple[Any, ...], binding: Binding, i: int = 0) -> Iterator[Binding]:
    if i == len(wanted):
        if i == len(given) or all(_is_default(a) for a in given[i:]):
            yield binding
        return
    if type(wanted[i]) is Rest:
        yield binding
        return
    if i >= len(given):
        return
    for extended in _unify(wanted[i], given[i], binding):
        yield from _unify_args(wanted, given, extended, i + 1)


def _is_default(arg: Any) -> bool:
    return arg is None or arg is False or arg == 0


def _unify(wanted: Any, given: Any, binding: Binding) -> Iterator[Binding]:
    kind = type(wanted)
    if kind is Call:
        if type(given) is CValue:
            producer = given.root.producer
            if producer is not None and given.root.index == 0:
                yield from _unify_call(wanted, producer, binding)
    elif kind is Variable:
        if type(given) is CValue:
            yield from _bind(wanted, given.root, binding)
    elif kind is ConstantVariable:
        yield from _unify_constant(wanted, given, binding)
    elif kind is Result:
        if type(given) is CValue and given.root.producer is not None and given.root.index == wanted.index:
            yield from _unify_call(wanted.call, given.root.producer, binding)
    elif kind is Wildcard:
        yield binding
    elif kind is tuple:
        if type(given) is tuple and len(given) == len(wanted):
            yield from _unify_args(wanted, given, binding)
    elif _same_constant(wanted, given):
        yield binding


def _unify_constant(wanted: ConstantVariable, given: Any, binding: Binding) -> Iterator[Binding]:
    if type(given) is CValue:
        # A scalar kept as a 0-d tensor (a buffer, a learned temperature) serves as a constant too.
        if given.value.numel == 1:
            yield from _bind(wanted, given.root, binding)
    elif isinstance(given, int | float):
        yield from _bind(wanted, given, binding)


def _bind(key: Any, content: Any, binding: Binding) -> Iterator[Binding]:
    bound = binding.get(key)
    if bound is None:
        yield {**binding, key: content}
    elif bound is content or (isinstance(content, int | float) and bound == content):
        yield binding


def _same_constant(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return bool(wanted == given)
    if isinstance(given, int | float):
        return abs(wanted - given) <= 1e-6 * max(1.0, abs(wanted))
    return False
