"""Finding a pattern in a canonical graph.

The search starts at the pattern's rarest kind, follows operands upward and readers downward, tries both
orders of a commutative pair, and looks through casts and copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from auditor.engine.pattern import Call, Pattern, Rest, Result, Variable, Wildcard
from auditor.graph.canonical import Canonical
from auditor.graph.nodes import CValue, Node
from auditor.graph.normal import ConstantVariable
from auditor.graph.ops import COMMUTATIVE

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


Goals = tuple[Any, Any, Any] | None
"""What is left to settle, as a linked list: (wanted, given, the rest)."""

MAX_BINDINGS = 64
"""Ways tried for one anchor: a pattern over a symmetric region has many that differ in nothing."""


@dataclass(slots=True, eq=False)
class Search:
    """One pattern over one graph: where a match may begin, and the matches that begin there."""

    graph: Canonical
    pattern: Pattern
    anchor: Call | None = field(init=False)
    _steps: list[tuple[Call, Call]] = field(init=False, default_factory=list)
    _goals: Goals = field(init=False, default=None)
    _operand_kinds: list[tuple[int, frozenset[str]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.anchor = rarest_call(self.graph, self.pattern)
        if self.anchor is not None:
            self._steps = self.pattern.plan(self.anchor)
            self._goals = _step_goals(self._steps)
            if not self.anchor.commutative:
                self._operand_kinds = [(i, a.kinds) for i, a in enumerate(self.anchor.args) if isinstance(a, Call)]

    def starts(self) -> list[Node]:
        """The nodes of the anchor's kinds, in execution order; none if some kind of the pattern is missing."""
        if self.anchor is None:
            return []
        found = [self.graph.by_kind.get(kind, []) for kind in self.anchor.kinds]
        return found[0] if len(found) == 1 else sorted((n for nodes in found for n in nodes), key=lambda n: n.index)

    def at(self, start: Node) -> Iterator[Match]:
        """Every match with its anchor at ``start`` that covers another set of nodes.

        Over one set there may be several where the rule's ``where`` has to say which tensor is which.
        """
        assert self.anchor is not None
        # Most starts of a rule with many forms fail at their first operand: tell before setting out.
        for i, kinds in self._operand_kinds:
            given = start.args[i] if i < len(start.args) else None
            made = given.root.producer if type(given) is CValue else None
            if made is None or made.kind not in kinds:
                return
        seen: set[tuple[frozenset[int], tuple[int, ...]]] = set()
        solver = _Solver(self.anchor, start, self._steps, self._goals)
        for binding in islice(solver.solutions(), MAX_BINDINGS):
            match = _as_match(self.pattern, binding)
            covered = frozenset(n.index for n in match.nodes.values())
            tensors = tuple(id(match.variables.get(name)) for name in self.pattern.constrained)
            if (covered, tensors) not in seen:
                seen.add((covered, tensors))
                yield match


def find_matches(graph: Canonical, pattern: Pattern) -> Iterator[Match]:
    """Every match that covers another set of nodes, in the order of its anchor."""
    search = Search(graph, pattern)
    for start in search.starts():
        yield from search.at(start)


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


class _Down(int):
    """Goal: take step ``i`` of the plan, from a bound call to one of the readers of its result."""


class _Solver:
    """Lays a pattern over the graph from one start: settles goals depth-first, with backtracking.

    Only a commutative pair and a step to one of several readers leave a choice behind to come back to; all
    else either holds or fails at once. No kernel spans forward and backward, so every node has to be of the
    phase of the start.
    """

    __slots__ = ("binding", "choices", "goals", "phase", "steps", "trail")

    def __init__(self, anchor: Call, start: Node, steps: list[tuple[Call, Call]], after: Goals) -> None:
        self.binding: Binding = {}
        self.trail: list[Any] = []
        self.goals: Goals = (anchor, start, after)
        self.choices: list[tuple[Goals, int]] = []
        self.steps = steps
        self.phase = start.phase

    def solutions(self) -> Iterator[Binding]:
        """Every binding under which all goals hold."""
        while True:
            if self.goals is None:
                yield dict(self.binding)
            elif self._settle(*self.goals):
                continue
            if not self.choices:
                return
            self._go_back()

    def _go_back(self) -> None:
        self.goals, mark = self.choices.pop()
        while len(self.trail) > mark:
            del self.binding[self.trail.pop()]

    def _settle(self, wanted: Any, given: Any, rest: Goals) -> bool:
        """Settle one goal and leave what follows from it in ``goals``; whether it can hold."""
        kind = type(wanted)
        if kind is Call:
            return self._call(wanted, given if type(given) is Node else _producer(given, 0), rest)
        if kind is _Down:
            source, target = self.steps[wanted]
            return self._down(source, target, rest)
        if kind is Result:
            return self._call(wanted.call, _producer(given, wanted.index), rest)
        if kind is tuple:
            return type(given) is tuple and len(given) == len(wanted) and self._arguments(wanted, given, rest)
        self.goals = rest
        return _holds(wanted, given, self.binding, self.trail)

    def _call(self, call: Call, node: Node | None, rest: Goals) -> bool:
        bound = self.binding.get(call)
        if bound is not None:
            self.goals = rest
            return bound is node
        if node is None or node.kind not in call.kinds or (node.phase is not None and node.phase != self.phase):
            return False
        self.binding[call] = node
        self.trail.append(call)
        args = node.args
        if call.commutative and len(args) == 2 and node.kind in COMMUTATIVE and not call.symmetric:
            swapped = _argument_goals(call.args, (args[1], args[0]), rest)
            if swapped is not False:
                self.choices.append((swapped, len(self.trail)))
        return self._arguments(call.args, args, rest)

    def _arguments(self, wanted: tuple[Any, ...], given: tuple[Any, ...], rest: Goals) -> bool:
        goals = _argument_goals(wanted, given, rest)
        if goals is False:
            return False
        self.goals = goals
        return True

    def _down(self, source: Call, target: Call, rest: Goals) -> bool:
        """Any reader of ``source``'s results may be ``target``: each becomes a choice."""
        self.goals = rest
        if target in self.binding:
            return True
        for out in self.binding[source].outs:
            for user in out.root.deep_users:
                if user.kind in target.kinds and not user.dead:
                    self.choices.append(((target, user, rest), len(self.trail)))
        return False


def _step_goals(steps: list[tuple[Call, Call]]) -> Goals:
    goals: Goals = None
    for i in reversed(range(len(steps))):
        goals = (_Down(i), None, goals)
    return goals


def _producer(given: Any, index: int) -> Node | None:
    """The node whose result ``index`` is ``given``, looking through casts and copies."""
    if type(given) is not CValue:
        return None
    root = given.root
    return root.producer if root.index == index else None


def _argument_goals(wanted: tuple[Any, ...], given: tuple[Any, ...], rest: Goals) -> Goals | Literal[False]:
    """One goal for each pair of arguments before ``rest``; ``False`` where the counts cannot agree."""
    count = len(wanted)
    if count and type(wanted[-1]) is Rest:
        count -= 1
        if len(given) < count:
            return False
    elif len(given) != count and (len(given) < count or not all(_is_default(a) for a in given[count:])):
        return False
    goals = rest
    for i in range(count - 1, -1, -1):
        goals = (wanted[i], given[i], goals)
    # An empty list of goals is a success too, so ``None`` must not read as failure.
    return goals


def _is_default(arg: Any) -> bool:
    return arg is None or arg is False or arg == 0


def _holds(wanted: Any, given: Any, binding: Binding, trail: list[Any]) -> bool:
    """Variables, constants and wildcards: they hold or they don't."""
    kind = type(wanted)
    if kind is Variable:
        return type(given) is CValue and _bind(wanted, given.root, binding, trail)
    if kind is ConstantVariable:
        if type(given) is CValue:
            # A scalar kept as a 0-d tensor (a buffer, a learned temperature) serves as a constant too.
            return given.value.numel == 1 and _bind(wanted, given.root, binding, trail)
        return isinstance(given, int | float) and _bind(wanted, given, binding, trail)
    return kind is Wildcard or _same_constant(wanted, given)


def _bind(key: Any, content: Any, binding: Binding, trail: list[Any]) -> bool:
    bound = binding.get(key)
    if bound is None:
        binding[key] = content
        trail.append(key)
        return True
    return bound is content or (isinstance(content, int | float) and bool(bound == content))


def _same_constant(wanted: Any, given: Any) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return bool(wanted == given)
    if isinstance(given, int | float):
        return abs(wanted - given) <= 1e-6 * max(1.0, abs(wanted))
    return False
