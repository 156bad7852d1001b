"""An observer that loses count of what is open, as it does where a collective ends on another thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from auditor.collect.closures import BACKWARD
from auditor.collect.contexts import Context, dispatched_nodes
from auditor.collect.execution_trace import ExecutionTrace, Node, load_execution_trace
from auditor.collect.recorder import Recorder
from auditor.collect.recording import GRAPH_ET


def train(name: str, folder: Path, *, closure: bool) -> ExecutionTrace:
    """One step of a small training, recorded; with ``closure`` the optimizer calls the model, as in Lightning."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    x = torch.randn(2, 8)
    optimizer: torch.optim.Optimizer
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2) if name == "LBFGS" else torch.optim.Adam(
        model.parameters(), foreach=False
    )  # fmt: skip

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value

    with Recorder(folder, steps=1):
        for _ in range(4):
            if closure:
                optimizer.step(loss)
            else:
                loss()
                optimizer.step()
    return load_execution_trace(folder / GRAPH_ET)


def on_stack(trace: ExecutionTrace, node: Node) -> list[int]:
    """``node`` and all around it, outermost first."""
    found = [node.id]
    while node.parent != node.id and node.parent in trace.nodes:
        node = trace.nodes[node.parent]
        found.append(node.id)
    return found[::-1]


def lose(trace: ExecutionTrace, at: Node, *, popped: bool) -> None:
    """From ``at`` on the observer's stack is one short (an end came that began elsewhere), or one long (none came).

    Each end takes the innermost entry off, whatever it is, so the stack stays so.
    """
    stack = on_stack(trace, at)
    instead = {
        id_: stack[max(i - 1, 0)] if popped else (stack[i + 1] if i + 1 < len(stack) else id_)
        for i, id_ in enumerate(stack)
    }
    for node in list(trace.nodes.values()):
        if node.id > at.id and node.thread == at.thread and node.parent in instead:
            node.parent = instead[node.parent]
    trace.children.clear()
    trace.roots.clear()
    for node in trace.nodes.values():
        if node.parent == node.id or node.parent not in trace.nodes:
            trace.roots.append(node)
        else:
            trace.children.setdefault(node.parent, []).append(node)


def contexts(trace: ExecutionTrace) -> list[tuple[str, Context]]:
    return [(node.name, context) for node, context in dispatched_nodes(trace) if not context.outside]


@pytest.mark.parametrize("popped", [True, False], ids=["one short", "one long"])
@pytest.mark.parametrize(("optimizer", "closure"), [("LBFGS", True), ("Adam", True), ("Adam", False)])
def test_the_optimizers_kernels_stay_the_optimizers(
    optimizer: str, closure: bool, popped: bool, tmp_path: Path
) -> None:
    # GIVEN a recorded step, and the same one as an observer leaves it that loses count in the last autograd node
    trace = train(optimizer, tmp_path, closure=closure)
    expected = contexts(trace)
    kernel = {"LBFGS": "aten::dot", "Adam": "aten::lerp_"}[optimizer]
    assert {context.phase for name, context in expected if name == kernel} == {"optimizer"}
    last = max((n for n in trace.nodes.values() if n.name.startswith(BACKWARD)), key=lambda n: n.id)

    # WHEN
    lose(trace, last, popped=popped)

    # THEN
    assert contexts(trace) == expected
