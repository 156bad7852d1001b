"""An observer that loses count of what is open, as it does where a collective ends on another thread."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from auditor.collect.closures import BACKWARD
from auditor.collect.execution_trace import ExecutionTrace, Node, load_execution_trace
from auditor.collect.kineto import load_trace
from auditor.collect.observed import observed_graph
from auditor.collect.recorder import Recorder
from auditor.collect.recording import GRAPH_ET, GRAPH_KINETO


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x) + x
        return nn.functional.layer_norm(x, (8,))


def record(name: str, folder: Path, *, closure: bool) -> None:
    """One step of a small training; with ``closure`` the optimizer calls the model, as in Lightning."""
    model, x = Net(), torch.randn(2, 8)
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
        id_: stack[max(i - 1, 0)] if popped else stack[min(i + 1, len(stack) - 1)] for i, id_ in enumerate(stack)
    }
    for node in trace.nodes.values():
        if node.id > at.id and node.thread == at.thread:
            node.parent = instead.get(node.parent, node.parent)
    trace.hang()


def ops(folder: Path, execution: ExecutionTrace) -> list[tuple[object, ...]]:
    graph = observed_graph(load_trace(folder / GRAPH_KINETO), execution)
    return [(op.name, op.phase, op.module, op.module_class, op.source, op.launches) for op in graph.ops]


@pytest.mark.parametrize(("optimizer", "closure"), [("LBFGS", True), ("Adam", True), ("Adam", False)])
def test_every_op_is_found_where_it_ran(optimizer: str, closure: bool, tmp_path: Path) -> None:
    # GIVEN a recorded step
    record(optimizer, tmp_path, closure=closure)
    execution = load_execution_trace(tmp_path / GRAPH_ET)
    expected = ops(tmp_path, execution)
    kernel = {"LBFGS": "aten.dot", "Adam": "aten.lerp_"}[optimizer]
    assert {phase for name, phase, *_ in expected if name == kernel} == {"optimizer"}
    assert {module for _, _, module, *_ in expected} >= {"", "inner.0", "inner.1"}

    # WHEN the observer loses count in an op of the forward, in one that an op calls, and in the last autograd node
    names = [
        next(n.id for n in execution.nodes.values() if n.name == "aten::addmm"),
        next(n.id for n in execution.nodes.values() if execution.nodes[n.parent].name == "aten::native_layer_norm"),
        max(n.id for n in execution.nodes.values() if n.name.startswith(BACKWARD)),
    ]
    for at in names:
        for popped in (True, False):
            lost = load_execution_trace(tmp_path / GRAPH_ET)
            lose(lost, lost.nodes[at], popped=popped)

            # THEN
            assert ops(tmp_path, lost) == expected
