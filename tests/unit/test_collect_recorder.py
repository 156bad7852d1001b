"""The recorder in this process: real modules, real traces, many kinds of loops."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode

from auditor.collect.contexts import dispatched_nodes
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.mark import step
from auditor.collect.recorder import Recorder
from auditor.collect.recording import GRAPH_ET, GRAPH_KINETO, Recording, timing_file
from auditor.errors import AuditError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.act = nn.Tanh()
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)) + 1)


@contextmanager
def recorder(folder: Path, steps: int = 1) -> Iterator[Recorder]:
    with Recorder(folder, steps=steps) as active:
        yield active


def nodes(folder: Path) -> list[dict[str, Any]]:
    """Nodes of the execution trace in the order in which ops began."""
    return sorted(json.loads((folder / GRAPH_ET).read_text())["nodes"], key=lambda node: node["id"])


def names(folder: Path) -> Counter[str]:
    return Counter(node["name"] for node in nodes(folder))


def check_complete(folder: Path, recording: Recording) -> None:
    """Every file that the recording promises is there and both files of the graph hold one step."""
    assert recording.has_graph
    for index in range(len(recording.timing_us)):
        assert json.loads((folder / timing_file(index)).read_text())["traceEvents"]
    assert not (folder / timing_file(len(recording.timing_us))).exists()
    kineto = json.loads((folder / GRAPH_KINETO).read_text())["traceEvents"]
    assert [event["name"] for event in kineto].count("fa.step") == 1
    assert names(folder)["fa.step"] == 1
    known = {node["id"] for node in nodes(folder)}
    assert all(node["ctrl_deps"] in known for node in nodes(folder))


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
    assert {(function, file) for _, _, function, file in lines} == {("forward", __file__)}
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


def test_models_on_one_other_thread(tmp_path: Path) -> None:
    # GIVEN a worker that owns the model, as in a server
    model = Net()

    def work() -> None:
        for _ in range(5):
            model(torch.randn(2, 8))

    # WHEN
    with recorder(tmp_path) as rec:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert not rec.recording.graph_is_first_step


def test_a_thread_for_every_call(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path) as rec:
        for _ in range(4):
            thread = threading.Thread(target=model, args=(torch.randn(2, 8),))
            thread.start()
            thread.join()

    check_complete(tmp_path, rec.recording)
    assert rec.recording.steps == 4


def test_several_threads_at_once(tmp_path: Path) -> None:
    # GIVEN two threads that are both alive
    model, second_done = Net(), threading.Event()

    def work() -> None:
        for _ in range(5):
            model(torch.randn(2, 8))
        second_done.set()

    # WHEN
    with recorder(tmp_path) as rec:
        model(torch.randn(2, 8))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        for _ in range(4):
            model(torch.randn(2, 8))

    # THEN the first is recorded and the reader is told
    check_complete(tmp_path, rec.recording)
    assert second_done.is_set()
    assert any("other threads" in note for note in rec.recording.notes)


def test_one_model_that_many_threads_call_at_the_same_time(tmp_path: Path) -> None:
    # GIVEN other threads inside the very module whose call is recorded
    model, stop = Net(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            model(torch.randn(2, 8))

    threads = [threading.Thread(target=work) for _ in range(3)]

    # WHEN
    with recorder(tmp_path, steps=3) as rec:
        model(torch.randn(2, 8))
        for thread in threads:
            thread.start()
        for _ in range(8):
            model(torch.randn(2, 8))
        stop.set()
        for thread in threads:
            thread.join()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert len(rec.recording.timing_us) == 3


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


def test_modes_of_the_script_are_left_in_order(tmp_path: Path) -> None:
    # GIVEN a mode that is entered before a step and left in the middle of it, and one the other way round
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    model = Net()
    optimizer = torch.optim.SGD(model.parameters())

    # WHEN
    with recorder(tmp_path) as rec:
        for _ in range(4):
            with Mode():
                loss = model(torch.randn(2, 8)).sum()
            with Mode(), torch.autograd.profiler.record_function("update"):
                loss.backward()
                optimizer.step()

    # THEN
    check_complete(tmp_path, rec.recording)
    assert torch._C._len_torch_function_stack() == 0


def test_everything_is_taken_out_again(tmp_path: Path) -> None:
    # GIVEN
    before = (
        torch.compile, torch.autograd._engine_run_backward, torch.optim.Optimizer.zero_grad,
        torch.autograd.profiler.record_function.__exit__, torch.autograd.profiler.profile._prepare_trace,
    )  # fmt: skip
    model = Net()

    # WHEN
    with recorder(tmp_path):
        for _ in range(7):
            model(torch.randn(2, 8))
            # the model can be pickled and copied at any moment
            pickle.loads(pickle.dumps(copy.deepcopy(model)))

    # THEN
    assert before == (
        torch.compile, torch.autograd._engine_run_backward, torch.optim.Optimizer.zero_grad,
        torch.autograd.profiler.record_function.__exit__, torch.autograd.profiler.profile._prepare_trace,
    )  # fmt: skip
    assert not model._forward_hooks
    assert not nn_module._global_forward_pre_hooks
    assert not nn_module._global_forward_hooks
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks


@pytest.mark.parametrize("whole", [True, False], ids=["module", "function"])
def test_compiled_code_is_compiled_once(tmp_path: Path, whole: bool) -> None:
    # GIVEN compiled code that must not break, and a counter of compilations
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        compilations.append(1)
        return graph.forward

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.compile(Net(), backend=backend, fullgraph=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + 1

    model: Any = Outer()
    net = Net()
    if not whole:
        model = torch.compile(lambda x: net(x), backend=backend, fullgraph=True)

    # WHEN it runs in every pass, and afterwards
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with recorder(tmp_path) as rec:
            for _ in range(7):
                model(torch.randn(2, 8))

    # THEN
    check_complete(tmp_path, rec.recording)
    assert compilations == [1]
    assert any("torch.compile" in note for note in rec.recording.notes)


def test_traced_and_scripted_models(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(Net(), torch.randn(2, 8))

    with recorder(tmp_path) as rec:
        for _ in range(4):
            traced(torch.randn(2, 8))

    check_complete(tmp_path, rec.recording)


def test_no_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match=r"auditor\.step\(\)"), recorder(tmp_path):
        torch.randn(3).exp()


def test_the_scripts_own_error_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), recorder(tmp_path):
        _ = 1 / 0
    assert Recorder.active is None


def test_a_profiler_in_the_recorded_code_is_an_error(tmp_path: Path) -> None:
    profile = torch.profiler.profile()

    with recorder(tmp_path):
        Net()(torch.randn(2, 8))
        with pytest.raises(AuditError, match=r"test_collect_recorder\.py:\d+: a torch profiler"):
            profile.start()


def test_a_profiler_after_the_recorded_steps_is_welcome(tmp_path: Path) -> None:
    model = Net()

    with recorder(tmp_path, steps=3) as rec:
        for _ in range(4):
            model(torch.randn(2, 8))
        with torch.profiler.profile(acc_events=True) as profile:
            model(torch.randn(2, 8))

    assert any("own profiler" in note for note in rec.recording.notes)
    assert "aten::addmm" in {event.key for event in profile.key_averages()}


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="already active"), Recorder(tmp_path), Recorder(tmp_path):
        pass


def test_recording_inside_a_profiler_is_an_error(tmp_path: Path) -> None:
    with torch.profiler.profile(), pytest.raises(AuditError, match="profiler is running"):
        Recorder(tmp_path).start()


def test_the_folder_is_temporary_unless_given() -> None:
    with Recorder(steps=1) as rec:
        Net()(torch.randn(2, 8))

    assert (rec.folder / GRAPH_ET).exists()


def test_a_fault_of_ours_ends_the_recording_and_not_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN
    model, x = Net(), torch.randn(2, 8)
    monkeypatch.setattr("auditor.collect.passes.TimingPass.start", lambda _self: 1 / 0)

    # WHEN
    with recorder(tmp_path) as rec:
        results = [model(x) for _ in range(4)]

    # THEN
    assert len(results) == 4
    assert rec.recording.has_graph
    assert rec.recording.notes[0] == "Recording stopped early: ZeroDivisionError: division by zero"


def test_a_thread_that_is_in_the_middle_of_a_step_at_the_end(tmp_path: Path) -> None:
    # GIVEN a thread that waits inside its model
    entered, leave = threading.Event(), threading.Event()

    class Waits(nn.Module):
        def forward(self, x: torch.Tensor, wait: bool) -> torch.Tensor:
            if wait:
                entered.set()
                leave.wait(10)
            return x + 1

    model, x = Waits(), torch.randn(2)
    thread = threading.Thread(target=lambda: [model(x, wait) for wait in (False, False, True)])

    # WHEN the recording ends meanwhile
    with recorder(tmp_path) as rec:
        thread.start()
        entered.wait(10)
    leave.set()
    thread.join()

    # THEN what was complete is kept
    check_complete(tmp_path, rec.recording)
    assert rec.recording.graph_is_first_step
