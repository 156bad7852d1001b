"""What an op of a backward node may read: the node's gradient, saved tensors, what the node made itself.

Values of a backward pass look more alike than others: the gradient of ``x·s`` to both, of a linear layer's input and
of its output. But most nodes have one gradient, whose shape the profiler writes down with the node. What else a node
reads of the backward pass it made itself, and the rest was saved by the forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from auditor.collect.candidate import Candidate
from auditor.collect.foreign_ops import ForeignOp
from auditor.collect.frames import NO_NODE, NodeCall
from auditor.collect.recorded_inputs import Path, TensorSpec

_ADDS_UP = frozenset({"add", "add_", "copy_", "detach"})
"""Run around a node too, where gradients of several readers are added up."""
_GEMMS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_READ_ONCE = {"mul": frozenset({"mul"}), **dict.fromkeys(_GEMMS, _GEMMS | {"t", "transpose", "sum"})}
"""Ops that never read, in the node that made it, what such an op made: both take the node's gradient."""


@dataclass(slots=True)
class Gradients:
    """Reads of the backward node that runs."""

    _node: NodeCall = NO_NODE
    _gradient: Candidate | None = None
    _made: dict[int, str] = field(default_factory=dict)
    """Ops of the node by number, with their names."""
    _gathered: set[int] = field(default_factory=set)
    """Ops, by number, that put gradients where they stay: into parameters' and into buckets."""

    def enter(self, foreign: ForeignOp, node: NodeCall) -> None:
        """Say that ``foreign`` runs next, in ``node``."""
        if node.call != self._node.call:
            self._node, self._gradient, self._made = node, None, {}
        self._made[foreign.number] = foreign.call.manner.base
        if node.gathers:
            self._gathered.add(foreign.number)

    @property
    def gathers(self) -> bool:
        """Whether the node adds a gradient to that of a parameter."""
        return self._node.gathers

    def may_read(self, foreign: ForeignOp, path: Path, spec: TensorSpec, reachable: list[Candidate]) -> list[Candidate]:
        """Those of ``reachable``, which look like ``spec``, that ``foreign`` can be reading at ``path``."""
        if self._node.gathers:
            if path == (0,) and foreign.call.name == "aten::add_":
                return []
            return [c for c in reachable if c.op not in self._gathered or c.op in self._made]
        name = foreign.call.manner.base
        if len(self._node.gradients) != 1 or name in _ADDS_UP:
            return reachable
        made = self._made
        shunned = {maker for maker, never in _READ_ONCE.items() if name in never}
        allowed = [c for c in reachable if made.get(c.op) not in shunned] if shunned else reachable
        gradient = self._gradient
        if gradient is None:
            shape = self._node.gradients[0].shape
            return [c for c in allowed if spec.shape == shape or c.op in made or _of_the_forward(c)]
        owner = gradient.owner
        return [c for c in allowed if c is owner or c.root is owner] or [
            c for c in allowed if c.op in made or _of_the_forward(c)
        ]

    def note(self, foreign: ForeignOp, found: Candidate) -> None:
        """Keep the gradient of the node: the first value of the backward pass that it read."""
        if self._gradient is not None or foreign.call.manner.base in _ADDS_UP:
            return
        if found.op not in self._made and not _of_the_forward(found):
            self._gradient = found


def _of_the_forward(candidate: Candidate) -> bool:
    made = candidate.value.producer
    return made is not None and made.phase == "forward"
