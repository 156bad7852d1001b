"""The recorder in this process: real modules, real traces, many kinds of loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder_runs import Net, check_complete, names, nodes, recorder
from torch import nn

from auditor.collect.contexts import dispatched_nodes
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.mark import step
from auditor.collect.recording import GRAPH_ET, GRAPH_KINETO


def test_inference_loop(tmp_path: Path) -> None:
    # GIVEN
    model, x = Net().eval(), torch.randn(2, 8)

    # WHEN more steps run than are wanted
    with recorder(tmp_path, steps=2) as rec, torch.no_grad():
        for _ in range(9):
            model(x).sum().item()

    # THEN
    facts = rec.recording
    check_complete(tmp_path, facts)
    assert (facts.kind, facts.graph_is_first_step, facts.notes) == ("inference", False, [])
    assert (len(facts.timing_us), len(facts.bare_us), facts.steps) == (2, 2, 6)
    assert [(root.name, root.class_name) for root in facts.roots] == [("Net", "Net")]
    assert not facts.grad_enabled
    # and the step is the call of the model, not what the script does with its result
    found = names(tmp_path)
    assert found["fa.module|Net|"] == found["fa.module|Linear|first"] == found["fa.module|Tanh|act"] == 1
    assert found["aten::addmm"] == 2
    assert not found["aten::sum"]


def test_source_lines_are_the_users(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path):
        for _ in range(4):
            model(torch.randn(2, 8))

    lines = [name.split("|", 3) for name in names(tmp_path) if name.startswith("fa.source")]
    first = Net.forward.__code__.co_firstlineno
    assert {(function, file) for _, _, function, file in lines} == {("forward", Net.forward.__code__.co_filename)}
    assert {int(line) for _, line, _, _ in lines} == {first + 1}


def test_outputs_are_read(tmp_path: Path) -> None:
    # GIVEN a model that hides a result in an object inside a dict
    class Cache:
        def __init__(self, value: torch.Tensor) -> None:
            self.layers = [value]

    class Hiding(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"y": x + 1, "cache": Cache(x * 2)}

    # WHEN
    with recorder(tmp_path):
        Hiding()(torch.randn(3))

    # THEN
    found = nodes(tmp_path)
    outputs = next(node["id"] for node in found if node["name"] == "fa.outputs")
    assert [node["name"] for node in found if node["ctrl_deps"] == outputs] == ["aten::detach", "aten::detach"]


def test_one_call(tmp_path: Path) -> None:
    # GIVEN a script that calls its model once, and goes on computing
    x = torch.randn(2, 8)

    # WHEN
    with recorder(tmp_path) as rec:
        Net()(x).double().abs().mean()

    # THEN the first step is kept, without what came after it
    check_complete(tmp_path, rec.recording)
    assert rec.recording.graph_is_first_step
    assert rec.recording.timing_us == []
    assert len(rec.recording.notes) == 2
    assert not names(tmp_path)["aten::abs"]
    kineto = json.loads((tmp_path / GRAPH_KINETO).read_text())["traceEvents"]
    assert not [event for event in kineto if event["name"] == "aten::abs"]


@pytest.mark.parametrize("zero_first", [True, False])
def test_training_loop(tmp_path: Path, zero_first: bool) -> None:
    # GIVEN a loss that is a module and an optimizer whose zero_grad launches kernels
    model, loss_of = Net(), nn.MSELoss()
    optimizer = torch.optim.AdamW(model.parameters())

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(6):
            if zero_first:
                optimizer.zero_grad(set_to_none=False)
            x = torch.randn(2, 8)
            loss_of(model(x), x).backward()
            optimizer.step()
            if not zero_first:
                optimizer.zero_grad(set_to_none=False)

    # THEN one step holds forward, loss, backward and the optimizer
    check_complete(tmp_path, rec.recording)
    found = names(tmp_path)
    assert rec.recording.kind == "training"
    assert [root.name for root in rec.recording.roots] == ["Net", "MSELoss"]
    assert found["Optimizer.step#AdamW.step"] == found["Optimizer.zero_grad#AdamW.zero_grad"] == 1
    assert found["aten::mse_loss_backward"]
    assert found["fa.module|MSELoss|"] == 1
    # and only the loss leaves it
    outputs = next(node["id"] for node in nodes(tmp_path) if node["name"] == "fa.outputs")
    assert found["fa.outputs"] == 1
    assert len([node for node in nodes(tmp_path) if node["ctrl_deps"] == outputs]) == 1


def test_gradient_accumulation(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters())

    with recorder(tmp_path) as rec:
        for _ in range(4):
            for _ in range(3):
                model(torch.randn(2, 8)).sum().backward()
            optimizer.step()

    assert rec.recording.steps == 4
    assert names(tmp_path)["fa.module|Net|"] == 3


@pytest.mark.parametrize("marked", [False, True])
def test_a_closure_that_calls_the_model(marked: bool, tmp_path: Path) -> None:
    # GIVEN L-BFGS, which calls its closure several times; unmarked steps begin in the middle of its own step
    model, x = Net(), torch.randn(2, 8)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(4):
            if marked:
                rec.step_mark()
            optimizer.step(closure)
            if marked:
                rec.step_mark_end()

    # THEN what it does between the calls is its own, and nothing of theirs is
    check_complete(tmp_path, rec.recording)
    assert rec.recording.kind == ("marked" if marked else "training")
    found = dispatched_nodes(load_execution_trace(tmp_path / GRAPH_ET))
    phases: dict[str, set[str]] = {}
    for node, context in found:
        phases.setdefault(node.name, set()).add(context.phase)
    assert phases["aten::dot"] == {"optimizer"}
    assert (phases["aten::pow"], phases["aten::tanh_backward"]) == ({"forward", "backward"}, {"backward"})
    assert sum(node.name == "aten::addmm" and context.phase == "forward" for node, context in found) >= 2


def test_checkpointing_calls_modules_in_backward(tmp_path: Path) -> None:
    # GIVEN
    from torch.utils.checkpoint import checkpoint

    model, head = Net(), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()])

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(4):
            hidden = checkpoint(model, torch.randn(2, 8), use_reentrant=False)
            head(hidden).sum().backward()
            optimizer.step()

    # THEN a recomputed module is no root
    assert [root.calls for root in rec.recording.roots] == [4, 4]
    check_complete(tmp_path, rec.recording)


def test_generation_with_a_growing_cache(tmp_path: Path) -> None:
    # GIVEN
    class Decoder(nn.Module):
        def forward(self, x: torch.Tensor, cache: list[torch.Tensor]) -> torch.Tensor:
            cache[0] = torch.cat([cache[0], x], 1)
            return (cache[0] * 2).sum(1)

    decoder, cache = Decoder(), [torch.zeros(1, 0, 8)]

    # WHEN
    with recorder(tmp_path) as rec, torch.inference_mode():
        decoder(torch.randn(1, 16, 8), cache=cache)
        for _ in range(4):
            decoder(torch.randn(1, 1, 8), cache=cache)

    # THEN a decode step is recorded, prefill is not
    check_complete(tmp_path, rec.recording)
    assert rec.recording.inference_mode
    assert not rec.recording.graph_is_first_step
    cat = next(node for node in nodes(tmp_path) if node["name"] == "aten::cat")
    assert cat["outputs"]["shapes"] == [[1, 18, 8]]


def test_a_cycle_of_models(tmp_path: Path) -> None:
    model, softmax = Net(), nn.Softmax(-1)

    with recorder(tmp_path) as rec, torch.no_grad():
        for _ in range(5):
            softmax(model(torch.randn(2, 8)))

    assert [root.name for root in rec.recording.roots] == ["Net", "Softmax"]
    assert names(tmp_path)["aten::softmax"] == 1


def test_what_is_not_recorded_is_said(tmp_path: Path) -> None:
    encoder, net = nn.Linear(8, 8), Net()

    with recorder(tmp_path) as rec, torch.no_grad():
        hidden = encoder(torch.randn(2, 8))
        for _ in range(5):
            net(hidden)

    assert [root.name for root in rec.recording.roots] == ["Net"]
    assert rec.recording.notes == ["Called outside the recorded step (Net) and not recorded: Linear (1 call)."]


def test_a_model_that_is_built_anew_for_every_step(tmp_path: Path) -> None:
    with recorder(tmp_path) as rec:
        for _ in range(4):
            model = Net()
            model(torch.randn(2, 8))
            del model

    assert [root.name for root in rec.recording.roots] == ["Net"]
    assert not rec.recording.graph_is_first_step


def test_autocast_is_recorded(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path) as rec:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                model(torch.randn(2, 8))

    assert rec.recording.autocast == "torch.bfloat16"
    assert rec.recording.grad_enabled


def test_an_exception_in_forward_closes_its_annotations(tmp_path: Path) -> None:
    # GIVEN a module that fails inside one that goes on
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError(x.shape)

    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.net = Fails(), Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.fails(x)
            except ValueError:
                return self.net(x)

    model = Tries()

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(4):
            model(torch.randn(2, 8))

    # THEN
    check_complete(tmp_path, rec.recording)
    found = {node["name"]: node for node in nodes(tmp_path)}
    assert found["fa.module|Net|net"]["ctrl_deps"] == found["fa.module|Tries|"]["id"]


def test_a_call_that_fails_is_no_step(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path) as rec:
        for n in (8, 8, 5, 8, 8):
            try:
                model(torch.randn(2, n))
            except RuntimeError:
                model(torch.randn(2, 8))  # called while the exception is handled

    assert rec.recording.steps == 4
    check_complete(tmp_path, rec.recording)


def test_a_module_that_calls_itself(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
            return (self(x, depth - 1) if depth else x).exp()

    model = Twice()

    with recorder(tmp_path) as rec:
        for _ in range(4):
            model(torch.randn(2))

    assert rec.recording.steps == 4
    assert names(tmp_path)["aten::exp"] == 3


def test_marked_steps(tmp_path: Path) -> None:
    # GIVEN code without any module
    x = torch.randn(4)

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(5):
            with step():
                x.exp()
            x.sin()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert rec.recording.kind == "marked"
    assert names(tmp_path)["aten::exp"] == 1
    assert not names(tmp_path)["aten::sin"]


def test_marks_as_calls(tmp_path: Path) -> None:
    x = torch.randn(4)

    with recorder(tmp_path) as rec:
        for _ in range(5):
            step()
            x.exp()
            x.sin()

    assert rec.recording.steps == 4
    assert names(tmp_path)["aten::exp"] == names(tmp_path)["aten::sin"] == 1


def test_a_mark_does_nothing_when_nothing_is_recorded() -> None:
    step()
    with step():
        pass
