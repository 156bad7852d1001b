"""The recorder in this process: what it leaves as it was, and whose mistakes it tells."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder_runs import Net, check_complete, recorder
from torch import nn
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode

from auditor.collect.recorder import Recorder
from auditor.collect.recording import GRAPH_ET
from auditor.errors import AuditError


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
        with pytest.raises(AuditError, match=r"test_collect_care\.py:\d+: a torch profiler"):
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
