"""Where a recorded op stands: phase, module, source line; from the annotations and autograd nodes around it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from auditor.collect.closures import BACKWARD, NONE, OPTIMIZER, Closures, backward_ends, closures_of, scope_of
from auditor.collect.dispatched import is_composite, namespace
from auditor.collect.execution_trace import ExecutionTrace, Node
from auditor.collect.names import decoded
from auditor.graph.model import Phase, Source

_NOT_OPS = frozenset({"", "autograd", "torch", "profiler", "fa"})


@dataclass(slots=True, frozen=True)
class Context:
    """What surrounds an op. ``outside``: it only shows that a result is read by the caller, and is no op."""

    phase: Phase = "forward"
    module: str = ""
    module_class: str = ""
    source: Source | None = None
    outside: bool = False
    scope: str = ""


Dispatched = tuple[Node, Context]


def dispatched_nodes(trace: ExecutionTrace) -> list[Dispatched]:
    """Every dispatched op of ``trace`` with its context, in order of start; composite ops are opened.

    A backward op takes module and source of the forward op with the same autograd sequence number.
    """
    forward: dict[tuple[int, int], Context] = {}
    found: list[Dispatched] = []
    closures, ends = closures_of(trace), backward_ends(trace)
    for root in trace.roots:
        for node, context in _walk(trace, root, Context(), forward, closures):
            if context.phase == "forward" and node.sequence >= 0:
                forward[(node.thread, node.sequence)] = context  # the last op of a number made the autograd node
            found.append((node, context))
    found.sort(key=lambda pair: pair[0].id)
    return _with_engine_callbacks(_with_gradient_seed(found), ends)


def _with_engine_callbacks(found: list[Dispatched], ends: list[int]) -> list[Dispatched]:
    """What runs when a backward is about to end (DDP's copies out of its buckets) is backward too.

    It belongs to no autograd node, and the observer puts it below one or below none: a collective's record function
    ends on another thread, sooner or later. It is told by what it lacks: everything that a script calls has a line.
    ``ends``: nodes at which backward passes had returned.
    """
    if not any(context.source for _, context in found):  # no pass of ours: nothing here has a line
        return found
    backward: dict[int, bool] = {}
    to_come = deque(ends)
    for i, (node, context) in enumerate(found):
        while to_come and to_come[0] < node.id:
            to_come.popleft()
            backward.clear()
        nowhere = context.source is None and not context.module_class and not context.outside
        may_be = context.phase == "forward" or (context.phase == "optimizer" and bool(to_come))
        if may_be and nowhere and backward.get(node.thread):
            found[i] = (node, replace(context, phase="backward"))
        elif not context.outside:
            backward[node.thread] = context.phase == "backward"
    return found


def _with_gradient_seed(found: list[Dispatched]) -> list[Dispatched]:
    """``loss.backward()`` makes the gradient of the loss before any autograd node runs: that is backward too."""
    following: Phase = "forward"
    for i in reversed(range(len(found))):
        node, context = found[i]
        if context.outside:
            continue
        if node.name == "aten::ones_like" and context.phase == "forward" and following == "backward":
            found[i] = (node, replace(context, phase="backward"))
        following = context.phase
    return found


def _walk(
    trace: ExecutionTrace, top: Node, context: Context, forward: dict[tuple[int, int], Context],
    closures: dict[int, Closures],
) -> Iterator[Dispatched]:  # fmt: skip
    """Depth first, without recursion: Python frames of deep models would exceed its limit."""
    open_: list[Dispatched] = [(top, context)]
    while open_:
        node, around = open_.pop()
        if is_dispatched(node):
            yield node, around
            continue
        children = trace.children.get(node.id, [])
        inner, outside = _enter(node, children, around, forward), closures.get(node.id, NONE)
        open_.extend((child, around if child.id in outside else inner) for child in reversed(children))


def is_dispatched(node: Node) -> bool:
    """Whether ``node`` is an op as the dispatcher calls it below autograd (or a compiled Triton kernel)."""
    if node.kernel_backend == "triton":
        return True
    if not node.schema or namespace(node.name) in _NOT_OPS:
        return False
    return not is_composite(node.schema.partition("(")[0])


def _enter(node: Node, children: list[Node], around: Context, forward: dict[tuple[int, int], Context]) -> Context:
    name = node.name
    if name.startswith("fa."):
        return _annotated(name, around)
    if name.startswith(BACKWARD):
        return replace(_backward(children, forward), scope=scope_of(name))
    if name.startswith(OPTIMIZER):
        return Context(phase="optimizer", scope=scope_of(name))
    return around


def _annotated(name: str, around: Context) -> Context:
    """``fa.module|<class>|<path>``, ``fa.source|<line>|<function>|<file>``, ``fa.outputs``."""
    kind, _, rest = name.partition("|")
    if kind == "fa.outputs":
        return replace(around, outside=True)
    if kind == "fa.module":
        class_, _, path = rest.partition("|")
        return replace(around, module=decoded(path), module_class=decoded(class_), source=None)
    if kind == "fa.source":
        line, _, rest = rest.partition("|")
        function, _, file = rest.partition("|")
        place = Source(decoded(file), int(line) if line.isdigit() else 0, decoded(function))
        return replace(around, source=place)
    return around


def _backward(children: list[Node], forward: dict[tuple[int, int], Context]) -> Context:
    made_by = next((c for c in children if c.forward_thread > 0 and c.sequence >= 0), None)
    origin = forward.get((made_by.forward_thread, made_by.sequence)) if made_by else None
    return replace(origin, phase="backward", outside=False) if origin else Context(phase="backward")
