"""The parts of a canonical graph: contents and the nodes between them."""

from __future__ import annotations

from typing import Any

from auditor.graph.model import Op, Value

OPAQUE = "opaque"
"""Kind of an op whose arguments the trace does not hold; no rule names it."""


class CValue:
    """One content: a value, all its reshapes and expansions. ``root`` is it before casts and copies."""

    __slots__ = ("deep_users", "index", "producer", "root", "users", "value")

    def __init__(self, value: Value, producer: Node | None, index: int = 0) -> None:
        self.value = value
        self.producer = producer
        self.index = index
        self.users: list[Node] = []
        self.root: CValue = self
        self.deep_users: list[Node] = []

    def __repr__(self) -> str:
        return f"<C {self.value!r}>"


class Node:
    """A canonical op over the recorded ``ops`` (in order; empty for a slice)."""

    __slots__ = ("args", "dead", "index", "kind", "main", "ops", "outs", "phase")

    def __init__(self, kind: str, args: tuple[Any, ...], ops: tuple[Op, ...], index: int) -> None:
        self.kind = kind
        self.args = args
        self.ops = ops
        self.main = ops[-1] if ops else None
        self.index = index
        self.outs: list[CValue] = []
        self.dead = False
        self.phase = ops[-1].phase if ops else None

    @property
    def op(self) -> Op:
        """The recorded op that makes the node's first result. A slice has none."""
        assert self.main is not None
        return self.main

    def operands(self) -> list[CValue]:
        """Every tensor operand, lists opened."""
        found: list[CValue] = []
        _collect(self.args, found)
        return found

    def distinct_operands(self) -> list[CValue]:
        """Every tensor operand once."""
        found = self.operands()
        return found if len(found) < 2 else list(dict.fromkeys(found))

    def __repr__(self) -> str:
        return f"<{self.index}: {self.kind}>"


def _collect(args: tuple[Any, ...], found: list[CValue]) -> None:
    for arg in args:
        if type(arg) is CValue:
            found.append(arg)
        elif type(arg) is tuple:
            _collect(arg, found)
