"""Join of an execution trace with the Kineto trace of the same step: which event is which node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from auditor.collect.closures import OPTIMIZER
from auditor.collect.contexts import Dispatched
from auditor.collect.execution_trace import ExecutionTrace, Node
from auditor.collect.kineto import Event, Trace, by_thread, decode_op
from auditor.errors import AuditError

MIN_AGREEMENT = 0.95
"""Share of the ops that must find an event of the same name. Real pairs reach 0.97 to 1: a last op may be cut off."""


def join(
    execution: ExecutionTrace, trace: Trace, dispatched: Sequence[Dispatched], by_id: dict[int, Event]
) -> dict[int, Event]:
    """Event of each node id: ``by_id``, or where those are too few by the order of ops.

    Raises:
        AuditError: neither joins 95 % of the dispatched ops.
    """
    wanted = [node for node, _ in dispatched]
    agreement = _agreement(wanted, by_id)
    if agreement >= MIN_AGREEMENT:
        return by_id
    by_order = _by_order(execution, trace)
    best = max(agreement, _agreement(wanted, by_order))
    if best < MIN_AGREEMENT:
        raise AuditError(
            f"{execution.path}: not of the same step as {trace.path}: only {best:.0%} of {len(wanted)} ops agree; "
            "give the pair that one profiler wrote."
        )
    return by_order


def _agreement(wanted: Sequence[Node], joined: dict[int, Event]) -> float:
    return sum(node.id in joined for node in wanted) / len(wanted)


def by_record_function(execution: ExecutionTrace, trace: Trace) -> dict[int, Event]:
    """Event of each node id by ``Record function id``: of ops, our annotations, autograd nodes and optimizers' ranges.

    Empty where ids do not match, as older recorders' do not.
    """
    ranges = (event for event in trace.annotations if event.name.startswith(OPTIMIZER))  # others may end anywhere
    events = {decode_op(event).record_function_id: event for event in (*trace.cpu_ops, *ranges)}
    events.pop(0, None)
    joined = ((node, events.get(node.rf_id)) for node in execution.nodes.values())
    found = {node.id: event for node, event in joined if event is not None and event.name == node.name}
    ops = [node for node in execution.nodes.values() if node.schema]
    return found if ops and _agreement(ops, found) >= MIN_AGREEMENT else {}


def _by_order(execution: ExecutionTrace, trace: Trace) -> dict[int, Event]:
    """Per thread: the nodes' names as one run somewhere in the events' names (a trace may hold many steps)."""
    threads: dict[int, list[Node]] = defaultdict(list)
    for node in execution.nodes.values():
        if "::" in node.name:
            threads[node.thread].append(node)
    event_threads = [[e for e in held if "::" in e.name] for held in by_thread(trace.cpu_ops).values()]
    codes: dict[str, str] = {}
    joined: dict[int, Event] = {}
    for nodes in threads.values():
        names = _encode((node.name for node in nodes), codes)
        for events in event_threads:
            start = _encode((event.name for event in events), codes).find(names)
            if start >= 0:
                joined.update((n.id, e) for n, e in zip(nodes, events[start:], strict=False))
                break
    return joined


def _encode(names: Iterable[str], codes: dict[str, str]) -> str:
    """One character per name, so that a run of names is found with a string search."""
    return "".join(codes.setdefault(name, chr(0x100 + len(codes))) for name in names)
