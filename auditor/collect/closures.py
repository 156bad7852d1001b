"""What stands below an optimizer's step, or a backward pass, in a trace and is no part of it.

``optimizer.step(closure)`` calls forward and backward itself: Lightning always does, and L-BFGS has to, several times
in one step. A closure is no range of its own in a trace. It is taken to begin with the step, or after a backward pass
with the next ``zero_grad`` or module, and to end with its backward; what comes after that is the optimizer's own.

A collective's record function may end on another thread than it began on. The observer then loses count of what is
open: it takes the autograd node that started it for open, and everything that follows in the step for a part of it; or
it takes the optimizer's range for closed. So the recorder marks where each of the two has returned.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from dataclasses import dataclass
from operator import itemgetter

from auditor.collect.execution_trace import ExecutionTrace, Node

BACKWARD = "autograd::engine::evaluate_function: "
STEP, ZERO_GRAD = "Optimizer.step#", "Optimizer.zero_grad#"
OPTIMIZER = (STEP, ZERO_GRAD)
_BEGINS = (ZERO_GRAD, "fa.module|")


@dataclass(frozen=True, slots=True)
class Closures:
    """Spans of node ids, first and last, in order and apart from each other: each call of a step's closure."""

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()

    def __contains__(self, node: int) -> bool:
        at = bisect_right(self.first, node)
        return at > 0 and node <= self.last[at - 1]


NONE = Closures()


def backward_ends(trace: ExecutionTrace) -> list[int]:
    """Nodes at which a backward pass had returned, in order; none in traces that the recorder did not make."""
    return sorted(node.id for node in trace.nodes.values() if node.name == "fa.backward_end")


def after_the_next(ends: list[int], node: int) -> Closures:
    """All that began after the backward pass that ``node`` belongs to."""
    at = bisect_right(ends, node)
    return Closures((ends[at],), (sys.maxsize,)) if at < len(ends) else NONE


class OwnOps:
    """Whether a node is an optimizer's own by where its steps began and returned, whatever the observer took for open.

    Known of the outermost steps that the recorder saw return; of none in traces of others.
    """

    def __init__(self, trace: ExecutionTrace) -> None:
        self._steps: dict[int, list[tuple[int, int, Closures]]] = {}
        events = _closure_events(trace)
        began: dict[int, int] = {}
        for node in trace.nodes.values():
            if node.name.startswith(STEP):
                began.setdefault(node.thread, node.id)
            elif node.name == "fa.optimizer_end" and node.thread in began:
                first = began.pop(node.thread)
                step = (first, node.id, _calls(first, _between(events, first, node.id)))
                self._steps.setdefault(node.thread, []).append(step)

    def __contains__(self, node: Node) -> bool:
        steps = self._steps.get(node.thread, [])
        at = bisect_right(steps, node.id, key=itemgetter(0))
        if not at:
            return False
        _, last, closures = steps[at - 1]
        return node.id < last and node.id not in closures


def closures_of(trace: ExecutionTrace) -> dict[int, Closures]:
    """Of each optimizer step that has a backward pass within: its closure's calls. Node ids are in order of start."""
    steps = [node for node in trace.nodes.values() if node.name.startswith(STEP)]
    if not steps:
        return {}
    events = _closure_events(trace)
    calls = {step.id: _calls(step.id, _between(events, step.id, _last_within(trace, step))) for step in steps}
    return {step: closures for step, closures in calls.items() if closures is not NONE}


def _closure_events(trace: ExecutionTrace) -> list[tuple[int, bool]]:
    """Nodes that begin or end a closure, in order; True where it is one of a backward pass."""
    return sorted(
        (node.id, node.name.startswith(BACKWARD))
        for node in trace.nodes.values()
        if node.name.startswith((BACKWARD, *_BEGINS))
    )


def _between(events: list[tuple[int, bool]], first: int, last: int) -> list[tuple[int, bool]]:
    return events[bisect_right(events, (first, True)) : bisect_right(events, (last, True))]


def _calls(step: int, events: list[tuple[int, bool]]) -> Closures:
    if not any(backward for _, backward in events):
        return NONE
    first, last = [step], [0]
    for id_, backward in events:
        if backward:
            last[-1] = id_
        elif last[-1]:
            first.append(id_)
            last.append(0)
    if not last[-1]:  # zero_grad of the optimizer's own, after the last one
        del first[-1], last[-1]
    return Closures(tuple(first), tuple(last))


def _last_within(trace: ExecutionTrace, node: Node) -> int:
    """The largest id of what ran within ``node``: the last child that started, or what ran in that."""
    while children := trace.children.get(node.id):
        node = children[-1]
    return node.id
