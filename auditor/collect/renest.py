"""What an op of an execution trace ran in, by the times of events.

The observer keeps a stack of what is open, and each end takes the innermost entry off. The record function of a
collective ends on another thread than it began on: from then on the stack is one long, or one short, until another
such end makes up for it. Ops then stand below one that had ended long before (DDP's copies out of a bucket below the
``allreduce_`` before them), below a range that they do not belong to, or beside the op that called them.
"""

from __future__ import annotations

from collections.abc import Mapping

from auditor.collect.execution_trace import ExecutionTrace
from auditor.collect.kineto import Event
from auditor.collect.nesting import nests


def nest_by_time(execution: ExecutionTrace, events: Mapping[int, Event]) -> None:
    """Hang each node that has an event below the one whose event is the innermost around it on its thread.

    ``events`` by node id, of ranges that end on the thread on which they began. Nodes without one stay where they are.
    """
    node_of = {id(event): node for node, event in events.items()}
    for nest in nests(events.values()).values():
        nodes = [node_of[id(event)] for event in nest.events]
        for node, around in zip(nodes, nest.parent, strict=True):
            execution.nodes[node].parent = nodes[around] if around >= 0 else node
    execution.hang()
