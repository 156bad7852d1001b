"""What an op of a backward node may read: the node's gradient, saved tensors, what the node made itself.

Values of a backward pass look more alike than others: the gradient of ``x·s`` to both, of a linear layer's input and
of its output. But most nodes have one gradient, whose shape the profiler writes down with the node. What else a node
reads of the backward pass it made itself, and the rest was saved by the forward. And a gradient is given to one node,
unless that of a sum gives it to both summands.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from auditor.collect.candidate import Candidate
from auditor.collect.closures import takes_up
from auditor.collect.foreign_ops import ForeignOp
from auditor.collect.frames import NO_NODE, Frames, NodeCall
from auditor.collect.recorded_inputs import Path, TensorSpec

_ADDS_UP = frozenset({"add", "add_", "copy_", "detach"})
"""Run around a node too, where gradients of several readers are added up."""
_GEMMS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
_TURNS = frozenset({"t", "transpose"})
_READ_ONCE = {"mul": frozenset({"mul"}), **dict.fromkeys(_GEMMS, _GEMMS | _TURNS | {"sum"})}
"""Ops that never read, in the node that made it, what such an op made: both take the node's gradient."""


@dataclass(slots=True)
class Gradients:
    """Reads of the backward node that runs."""

    frames: Frames | None = None
    _node: NodeCall = NO_NODE
    _begun: float = 0.0
    _gradient: Candidate | None = None
    _turned: bool = False
    """Whether the gradient was transposed: for the product that is a weight's, which is transposed back."""
    _made: dict[int, str] = field(default_factory=dict)
    """Ops of the node by number, with their names."""
    _gathered: set[int] = field(default_factory=set)
    """Ops, by number, that put gradients where they stay: into parameters' and into buckets."""
    _summed: list[Candidate] = field(default_factory=list)
    """Gradients that were added to others around the node that runs."""

    def enter(self, foreign: ForeignOp, node: NodeCall) -> None:
        """Say that ``foreign`` runs next, in ``node``."""
        if node.call != self._node.call:
            self._node, self._gradient, self._turned, self._made = node, None, False, {}
            self._begun = self.frames.begin(node.call) if self.frames else 0.0
            for gradient in self._summed:
                gradient.taken = True
            self._summed.clear()
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
        if self._turned and name in _TURNS and (products := [c for c in reachable if made.get(c.op) in _GEMMS]):
            return products[-1:]
        shunned = {maker for maker, never in _READ_ONCE.items() if name in never}
        allowed = [c for c in reachable if made.get(c.op) not in shunned] if shunned else reachable
        gradient = self._gradient
        if gradient is None:
            shape = self._node.gradients[0].shape
            allowed = [c for c in allowed if not c.taken]
            return [c for c in allowed if spec.shape == shape or c.op in made or _of_the_forward(c)]
        owner = gradient.owner
        whole = gradient is owner
        own = [c for c in allowed if c is gradient or (c.root is owner and (whole or c.op in made))]
        return own or [c for c in allowed if c.op in made or _of_the_forward(c)]

    def note(self, foreign: ForeignOp, found: Candidate, made_at: float) -> None:
        """Keep the gradient of the node: the first value of the backward pass that it read, made at ``made_at``."""
        name = foreign.call.manner.base
        if name in _ADDS_UP:
            alone = not _of_the_forward(found) and not self._is_handed_on(found, made_at, foreign.start)
            if name == "add" and alone:
                self._summed.append(found)
            return
        if self._gradient is None and found.op not in self._made and not _of_the_forward(found):
            self._gradient = found
        self._turned = self._turned or (found is self._gradient and name in _TURNS)
        if found is self._gradient and self._takes_up(name) and not self._is_handed_on(found, made_at, self._begun):
            found.taken = True

    def _is_handed_on(self, gradient: Candidate, made_at: float, before: float) -> bool:
        """Whether a sum may have given ``gradient`` to several nodes before that time."""
        return self.frames is None or self.frames.hands_on(gradient.spec.shape, made_at, before)

    def _takes_up(self, op: str) -> bool:
        """Whether the node gives on no gradient as it got it; ``addmm`` may, unless it sums that up for a bias."""
        return takes_up(self._node.name) or (op == "sum" and self._node.name.startswith("AddmmBackward"))


def _of_the_forward(candidate: Candidate) -> bool:
    made = candidate.value.producer
    return made is not None and made.phase == "forward"
