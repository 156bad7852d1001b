"""The callback in trainings with the Trainer of Transformers, which run for real. Nothing is fetched."""

# ruff: noqa: ARG002 (callbacks have the arguments that their trainers give)
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trainings import SCRIPTS, assert_equal_weights, assert_nothing_is_left, counts, script
from transformers import TrainerCallback

import auditor
from auditor.errors import OverBudget
from auditor.integrations.transformers import FusionAuditCallback
from auditor.store import Store

training = script("train_transformers")


def test_the_counts_are_those_of_run_and_the_training_is_the_same(
    fusion_audit: Callable[..., Any], store: Store, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN the same training without the callback, in this process and under `fusion-audit run`
    alone = training.trained([], tmp_path, bf16=True)
    assert fusion_audit("run", "--steps", "1", SCRIPTS / "train_transformers.py", "--bf16").code == 0
    expected = store.load("latest").document
    capfd.readouterr()

    # WHEN it has the callback
    callback = FusionAuditCallback(step=3, steps=1, name="trained")
    model = training.trained([callback], tmp_path, bf16=True)

    # THEN the audit is the same to the last finding, a step of two batches, and stored
    stored = store.load("trained").document
    assert counts(stored) == counts(expected)
    assert {f.fingerprint for f in stored.findings} == {f.fingerprint for f in expected.findings}
    assert callback.audit is not None
    assert callback.audit.document.run.id == stored.run.id
    assert sum(op.name == "aten.nll_loss_forward" for op in callback.audit.graph.ops) == 2
    assert (stored.run.notes, stored.run.project) == ([], "fusion-auditor")
    assert f"next: fusion-audit show {stored.run.id}" in capfd.readouterr().err

    # AND the training is what it was
    assert_equal_weights(model, alone)
    assert_nothing_is_left()
    assert len(store.list_runs()) == 2


def test_a_training_that_ends_early(store: Store, tmp_path: Path) -> None:
    late, cut = FusionAuditCallback(step=50), FusionAuditCallback(step=15, name="cut")

    with pytest.warns(UserWarning, match="ended after 16 optimizer steps and the audit was to begin with step 50"):
        training.trained([late, cut], tmp_path)

    assert late.audit is None
    assert cut.audit is not None
    assert any("first step" in note for note in store.load("cut").document.run.notes)
    assert_nothing_is_left()


class Breaks(TrainerCallback):
    """Makes the model fail, forward or backward, from a step on."""

    def __init__(self, where: str) -> None:
        self._where = where

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step == 3:
            layer = model.model.layers[0]
            if self._where == "forward":
                layer.register_forward_pre_hook(self._break)
            else:
                layer.register_full_backward_hook(self._break)

    def _break(self, *_: Any) -> None:
        raise RuntimeError("of the training")


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_of_the_training_leaves_nothing_behind(where: str, store: Store, tmp_path: Path) -> None:
    # The trainer tells its callbacks of no error
    callback = FusionAuditCallback(step=2)

    with pytest.raises(RuntimeError, match="of the training"):
        training.trained([callback, Breaks(where)], tmp_path)

    assert_nothing_is_left()
    assert (callback.audit, store.list_runs()) == (None, [])


class Interrupts(TrainerCallback):
    """Fails between the passes of a step."""

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 3:
            raise RuntimeError("of the training")


def test_what_an_error_elsewhere_left_is_gone_with_the_next_training(tmp_path: Path) -> None:
    # GIVEN a training that failed where nobody sees it
    with pytest.raises(RuntimeError, match="of the training"):
        training.trained([FusionAuditCallback(step=2), Interrupts()], tmp_path)

    # WHEN another one begins, with a callback of its own
    callback = FusionAuditCallback(step=2, steps=1)
    training.trained([callback], tmp_path)

    # THEN it is audited
    assert callback.audit is not None
    assert callback.audit.document.run.notes == []
    assert_nothing_is_left()


def test_a_resumed_training_counts_from_where_it_resumes(tmp_path: Path, store: Store) -> None:
    model = training.trained([], tmp_path, max_steps=10, save_strategy="steps", save_steps=10)

    callback = FusionAuditCallback(step=2, steps=1, name="resumed")
    training.trained([callback], tmp_path, model=model, resume=str(tmp_path / "checkpoint-10"), max_steps=16)

    assert callback.audit is not None
    assert store.load("resumed").document.run.notes == []


def test_a_budget_ends_the_training(tmp_path: Path, store: Store) -> None:
    callback = FusionAuditCallback(step=2, steps=1, budget={"max_kernels": 10}, over_budget="raise")

    with pytest.raises(OverBudget, match="more than the 10 allowed"):
        training.trained([callback], tmp_path)

    assert callback.verdict is not None
    assert not callback.verdict.passed
    assert len(store.list_runs()) == 1
    assert_nothing_is_left()


def test_inside_of_another_recording_it_stays_out_of_the_way(tmp_path: Path) -> None:
    # As under `fusion-audit run`, which has its own recorder
    callback = FusionAuditCallback(step=2)

    with (
        auditor.record(steps=1) as recording,
        pytest.warns(UserWarning, match="goes on without an audit: A recorder is already active"),
    ):
        training.trained([callback], tmp_path)

    assert callback.audit is None
    assert recording.audit().kernels > 0


def test_the_trainers_tensorboard_gets_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    callback = FusionAuditCallback(step=3, steps=1)
    training.trained([callback], tmp_path, report_to=["tensorboard"])

    # One file: that of the trainer's own writer
    (file,) = (tmp_path / "board").iterdir()
    events = EventAccumulator(str(file)).Reload()
    assert callback.audit is not None
    assert [(e.value, e.step) for e in events.Scalars("fusion_audit/kernels")] == [(callback.audit.kernels, 6)]
    assert "train/loss" in events.Tags()["scalars"]
    assert torch.is_grad_enabled()
