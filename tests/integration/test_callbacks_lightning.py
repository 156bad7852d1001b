"""The callback in trainings with Lightning, which run for real."""

# ruff: noqa: ARG002 (callbacks have the arguments that their trainers give)
from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import msgspec
import pytest
import torch
from trainings import SCRIPTS, assert_equal_weights, assert_nothing_is_left, counts, script

from auditor.errors import AuditError, OverBudget
from auditor.integrations import ranks
from auditor.integrations import training as training_steps
from auditor.integrations.lightning import FusionAuditCallback
from auditor.ranks.part import Process
from auditor.ranks.world import world
from auditor.store import Store

pytestmark = [
    pytest.mark.filterwarnings("ignore:::lightning"),
    pytest.mark.filterwarnings("ignore:::pytorch_lightning"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning"),
]
training = script("train_lightning")


@pytest.mark.parametrize("batches", [1, 2])
def test_the_audit_is_that_of_run_and_the_training_is_the_same(
    batches: int, fusion_audit: Callable[..., Any], store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    # GIVEN the same training without the callback, in this process and under `fusion-audit run`
    precision = "bf16-mixed"
    alone, _ = training.fit(pl, [], precision=precision, accumulate_grad_batches=batches)
    assert fusion_audit("run", "--steps", "1", SCRIPTS / "train_lightning.py", precision, batches).code == 0
    expected = store.load("latest").document
    capfd.readouterr()

    # WHEN it has the callback
    callback = FusionAuditCallback(step=3, steps=1, name="trained")
    model, _ = training.fit(pl, [callback], precision=precision, accumulate_grad_batches=batches)

    # THEN the audit is the same to the last finding, a step of all batches, stored, and told of in a line
    stored = store.load("trained").document
    assert counts(stored) == counts(expected)
    assert {f.fingerprint for f in stored.findings} == {f.fingerprint for f in expected.findings}
    assert "optimizer" in {f.phase for f in stored.findings}
    assert stored.coverage.edges == "observed"
    assert callback.audit is not None
    assert callback.audit.document.run.id == stored.run.id
    assert sum(op.name == "aten.mse_loss" for op in callback.audit.graph.ops) == batches
    assert (stored.run.notes, stored.run.project) == ([], "fusion-auditor")
    assert stored.overhead.bare_us > 0
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fusion-audit: ")]
    assert len(told) == 1
    assert told[0].startswith(f"fusion-audit: trained: {stored.totals.unfused_kernels} of ")
    assert told[0].endswith(f"next: fusion-audit show {stored.run.id}")

    # AND the training is what it was
    assert_equal_weights(model, alone)
    assert_nothing_is_left()
    assert len(store.list_runs()) == 2


def test_the_forward_in_the_optimizers_closure_is_no_part_of_the_optimizer() -> None:
    # Lightning runs forward and backward inside of optimizer.step(closure)
    callback = FusionAuditCallback(step=2, steps=1)
    training.fit(pl, [callback], accumulate_grad_batches=1)

    assert callback.audit is not None
    phases = {(op.name, op.phase) for op in callback.audit.graph.ops}
    assert {("aten.mse_loss", "forward"), ("aten.mse_loss_backward", "backward")} <= phases
    assert {phase for name, phase in phases if name in ("aten.lerp_", "aten.addcdiv_")} == {"optimizer"}
    assert {phase for name, phase in phases if name == "aten.rsqrt"} == {"forward"}


def test_a_training_that_ends_early(store: Store) -> None:
    # GIVEN one that ends before its step, one in the middle of the recording, and one before its first step ended
    late, cut = FusionAuditCallback(step=50), FusionAuditCallback(step=8, name="cut")

    # WHEN
    with pytest.warns(UserWarning, match="ended after 20 optimizer steps and the audit was to begin with step 50"):
        training.fit(pl, [late])
    training.fit(pl, [cut], max_steps=9)

    # THEN what was recorded is audited, and says what it is
    assert late.audit is None
    assert cut.audit is not None
    assert any("first step" in note for note in store.load("cut").document.run.notes)
    assert [run.name for run in store.list_runs()] == ["cut"]
    assert_nothing_is_left()


def test_once_and_again_where_a_training_is_resumed(tmp_path: Path, store: Store) -> None:
    # GIVEN a training of which a checkpoint is left
    first = FusionAuditCallback(step=2, steps=1, name="first")
    model, trainer = training.fit(pl, [first], max_steps=10)
    trainer.save_checkpoint(tmp_path / "last.ckpt")

    # WHEN it goes on, with the callback that has its audit and a new one
    second = FusionAuditCallback(step=2, steps=1, name="second")
    training.fit(pl, [first, second], max_steps=20, model=model, ckpt_path=str(tmp_path / "last.ckpt"), max_epochs=2)

    # THEN the new one counts from where it resumes
    assert sorted(run.name for run in store.list_runs()) == ["first", "second"]
    assert counts(store.load("first").document) == counts(store.load("second").document)


class Raises(pl.Callback):
    """Fails in the backward of a step."""

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step == 3:
            raise RuntimeError("of the training")


def test_an_error_of_the_training_is_its_own(store: Store) -> None:
    callback = FusionAuditCallback(step=2)

    with (
        pytest.warns(UserWarning, match="ended with an error while steps were recorded: no audit was made"),
        pytest.raises(RuntimeError, match="of the training"),
    ):
        training.fit(pl, [callback, Raises()])

    assert callback.audit is None
    assert store.list_runs() == []
    assert_nothing_is_left()


def test_a_budget_warns_or_ends_the_training(store: Store, folder: Path) -> None:
    # GIVEN the same limit in a dict, a file and the project
    (folder / "limits.yaml").write_text("max_unfused_kernels: 3\n")
    (folder / "pyproject.toml").write_text("[tool.fusion-audit]\nmax_kernels = 5000\n")
    warns = FusionAuditCallback(step=2, steps=1, budget={"max_unfused_kernels": 3})
    raises = FusionAuditCallback(step=2, steps=1, budget="limits.yaml", over_budget="raise")
    keeps = FusionAuditCallback(step=2, steps=1, budget=True, over_budget="raise")

    # WHEN
    with pytest.warns(UserWarning, match="over its budget: (?s:.*)more than the 3 allowed"):
        _, trainer = training.fit(pl, [warns])
    with pytest.raises(OverBudget, match="more than the 3 allowed"):
        training.fit(pl, [raises])
    training.fit(pl, [keeps])

    # THEN the verdicts are those of the gate, and the runs are there
    assert trainer.global_step == 20
    assert [each.verdict.passed for each in (warns, raises, keeps) if each.verdict] == [False, False, True]
    assert len(store.list_runs()) == 3
    assert_nothing_is_left()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": 0}, "step must be a whole number from 1 on, not 0"),
        ({"steps": True}, "steps must be a whole number from 1 on, not True"),
        ({"over_budget": "stop"}, "over_budget is 'warn' or 'raise', not 'stop'"),
        ({"budget": True}, "budget=True, and there is no budget: "),
        ({"budget": 3}, "budget is True, a file or a dict of limits, not int"),
        ({"budget": {}}, "budget sets no limit; write one such as max_unfused_kernels=12"),
        ({"budget": {"max_unfused": 1}}, "budget has no key 'max_unfused'"),
        ({"budget": {"max_increase": {"kernels": 0}}}, "budget has no max_increase: a training has no baseline"),
        ({"budget": "none.yaml"}, "none.yaml: No such file"),
    ],
)
def test_wrong_arguments_are_told_before_the_training(arguments: dict[str, Any], message: str, folder: Path) -> None:  # noqa: ARG001
    with pytest.raises(AuditError) as error:
        FusionAuditCallback(**arguments)
    assert message in str(error.value)


class Profiles(pl.Callback):
    """Starts a profiler of its own in a step."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 9:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                pl_module.net(batch[0])
            self.events = len(profile.events())


def test_a_profiler_of_the_trainings_own_has_the_right_of_way() -> None:
    own, callback = Profiles(), FusionAuditCallback(step=3)

    _, trainer = training.fit(pl, [callback, own])

    assert own.events > 5
    assert trainer.global_step == 20
    assert callback.audit is not None
    assert any("starts its own profiler" in note for note in callback.audit.document.run.notes)
    assert_nothing_is_left()


def test_a_profiler_that_runs_already() -> None:
    callback = FusionAuditCallback(step=3)

    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.warns(UserWarning, match="the training goes on without an audit: A torch profiler is running"),
    ):
        _, trainer = training.fit(pl, [callback])

    assert (trainer.global_step, callback.audit) == (20, None)


class Grows(pl.LightningModule):
    """Each batch has another length than the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.net = training.Net()

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(batch[0].repeat(batch_idx + 1, 1)).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def test_recording_ends_where_no_two_steps_are_alike() -> None:
    callback = FusionAuditCallback(step=2, steps=1)
    seen = []

    class Watches(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            seen.append((trainer.global_step, callback.audit is not None))

    training.fit(
        pl,
        [callback, Watches()],
        model=Grows(),
        accumulate_grad_batches=1,
        limit_val_batches=0,
        val_check_interval=None,
    )

    made = next(step for step, there in seen if there)
    assert 2 < made <= 2 + 16
    assert_nothing_is_left()


def test_a_fault_of_ours_never_ends_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # GIVEN a store that can't be written, and an audit that fails
    (tmp_path / "file").write_text("")
    nowhere = FusionAuditCallback(step=2, steps=1, db=tmp_path / "file" / "store", budget={"max_kernels": 1})
    broken = FusionAuditCallback(step=2, steps=1)

    # WHEN
    with (
        pytest.warns(UserWarning, match="the audit could not be stored: "),
        pytest.warns(UserWarning, match="the audit was not held to its budget: it could not be stored"),
    ):
        training.fit(pl, [nowhere])
    monkeypatch.setattr("auditor.api.audit_recording", lambda *_, **__: 1 / 0)
    with pytest.warns(UserWarning, match="the recorded steps could not be audited: ZeroDivisionError"):
        _, trainer = training.fit(pl, [broken])

    # THEN
    assert nowhere.audit is not None
    assert (trainer.global_step, broken.audit) == (20, None)
    assert_nothing_is_left()


def test_another_rank_records_nothing(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr(ranks, "_rank", lambda: 1)
    callback = FusionAuditCallback(step=2, steps=1)

    training.fit(pl, [callback])

    assert callback.audit is None
    assert store.list_runs() == []


def as_rank(monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    """Of two under torchrun, of which the other one is not there; Lightning knows nothing of it."""
    where = {"MASTER_ADDR": "localhost", "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    monkeypatch.setattr(ranks, "world", lambda: world(where))


def test_rank_0_waits_for_a_bounded_time_and_names_who_is_missing(
    monkeypatch: pytest.MonkeyPatch, store: Store, folder: Path
) -> None:
    # GIVEN a rank 1 that began, and never comes to an end
    as_rank(monkeypatch, 0)
    monkeypatch.setattr(training_steps, "WAIT_S", 0.5)
    callback, seen = FusionAuditCallback(step=2, steps=1, name="joined"), []

    class Other(pl.Callback):
        def on_train_start(self, *_: Any) -> None:
            (place,) = folder.parent.rglob("job.json")
            (place.parent / "rank-1.json").write_bytes(msgspec.json.encode(Process.this()))

        def on_train_batch_end(self, *_: Any) -> None:
            seen.append(callback.audit)

    # WHEN
    with pytest.warns(UserWarning, match="Rank 1 of 2 is missing: it did not hand in its part within"):
        _, trainer = training.fit(pl, [callback, Other()])

    # THEN nothing was waited for before the end
    assert trainer.global_step == 20
    assert set(seen) == {None}
    assert [rank.status for rank in store.load("joined").document.ranks] == ["recorded", "missing"]
    assert not list(folder.parent.rglob("*.ranks"))
    assert_nothing_is_left()


def test_another_rank_without_rank_0_goes_on(monkeypatch: pytest.MonkeyPatch, store: Store, folder: Path) -> None:
    as_rank(monkeypatch, 1)
    callback = FusionAuditCallback(step=2, steps=1)

    with pytest.warns(UserWarning, match="rank 0 is not there to take this rank's part of the audit"):
        _, trainer = training.fit(pl, [callback])

    assert (trainer.global_step, callback.audit is not None, store.list_runs()) == (20, True, [])
    assert not list(folder.parent.rglob("rank-*.json"))


def test_a_training_that_fails_keeps_what_rank_0_has(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    # GIVEN a rank 0 that is through, and waits for nobody when the training fails
    as_rank(monkeypatch, 0)
    callback = FusionAuditCallback(step=2, steps=1, name="kept")

    class Fails(pl.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 15:
                raise RuntimeError("of the training")

    with pytest.raises(RuntimeError, match="of the training"):
        training.fit(pl, [callback, Fails()])

    assert [rank.status for rank in store.load("kept").document.ranks] == ["recorded", "missing"]
    assert_nothing_is_left()


def test_the_trainers_loggers_get_it(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    # WHEN a training has two loggers
    board, table = TensorBoardLogger(tmp_path, name="board"), CSVLogger(tmp_path, name="table")
    callback = FusionAuditCallback(step=3, steps=1)
    training.fit(pl, [callback], logger=[board, table])

    # THEN TensorBoard has the whole audit, and the other the metrics
    assert callback.audit is not None
    events = EventAccumulator(board.log_dir).Reload()
    (unfused,) = events.Scalars("fusion_audit/unfused_kernels")
    assert (unfused.value, unfused.step) == (callback.audit.unfused_kernels, 6)
    rows = list(csv.DictReader((Path(table.log_dir) / "metrics.csv").read_text().splitlines()))
    assert [float(row["fusion_audit/kernels"]) for row in rows if row["fusion_audit/kernels"]] == [
        callback.audit.kernels
    ]


def test_the_package_of_the_older_name() -> None:
    import pytorch_lightning

    from auditor.integrations.pytorch_lightning import FusionAuditCallback as Older

    callback = Older(step=2, steps=1)
    training.fit(pytorch_lightning, [callback])

    assert callback.audit is not None
    assert callback.audit.unfused_kernels > 0
