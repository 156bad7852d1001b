"""Callbacks and the handler under torchrun, with gloo: one run of both ranks, and the training as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torchruns import torchrun
from trainings import SCRIPTS

from auditor.store import Store
from auditor.store.rank_tables import rank_of

pytestmark = pytest.mark.slow
SCRIPT = str(SCRIPTS / "train_ranks.py")


def left_by(folder: Path, rank: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / f"rank-{rank}.json").read_text())
    return found


def phases(run: Any, rank: int) -> set[tuple[str, str]]:
    ops = rank_of(run, rank)[1]()["ops"]
    return set(zip(ops.column("name").to_pylist(), ops.column("phase").to_pylist(), strict=True))


def test_each_training_is_one_run_of_two_ranks(folder: Path, store: Store) -> None:
    # WHEN one process of each rank trains with the Trainer of Transformers, without the callback, with it, and with one
    # whose steps on rank 1 are never alike, and then profiles a loop of its own
    trainings = ["transformers,without", "transformers", "transformers,grows,steps=9", "profiler"]
    done = torchrun(SCRIPT, *trainings)

    # THEN rank 0 has the audit of both, and each other rank its own
    assert done.returncode == 0, done.stderr
    first, second = left_by(folder, 0), left_by(folder, 1)
    assert [each["ranks"] for each in first] == [0, 2, 2, 2]
    assert [(each["audit"], each["ranks"]) for each in second] == [(False, 0), (True, 0), (True, 0), (True, 0)]
    assert sorted(run.name for run in store.list_runs()) == sorted(trainings[1:])
    assert done.stderr.count("next: fusion-audit show") == 3
    assert not list(folder.parent.rglob("*.ranks"))

    # AND the weights are those of the training without it, in both
    assert len({each[i]["weights"] for each in (first, second) for i in (0, 1)}) == 1

    # AND the ranks are alike where they do alike
    run = store.load("transformers")
    one, other = run.document.ranks
    assert (one.totals.kernels, one.totals.unfused_kernels) == (other.totals.kernels, other.totals.unfused_kernels)
    assert (run.document.run.world_size, run.document.run.notes, other.differs) == (2, [], [])
    for rank in (0, 1):
        assert ("c10d.allreduce_", "backward") in phases(run, rank)
    _, grown = store.load("transformers,grows,steps=9").document.ranks
    assert grown.status == "recorded"
    assert any("moved by kernels, not" in each for each in grown.differs)
    assert [rank.status for rank in store.load("profiler").document.ranks] == ["recorded", "recorded"]


def test_rank_0_ends_the_job_where_the_budget_is_broken(folder: Path, store: Store) -> None:
    done = torchrun(SCRIPT, "lightning,over")

    assert done.returncode == 1
    assert "OverBudget: " in done.stderr
    assert "rank      : 0 (local_rank: 0)" in done.stderr.partition("Root Cause")[2]
    assert not list(folder.glob("rank-*.json"))
    run = store.load("lightning,over")
    assert [rank.status for rank in run.document.ranks] == ["recorded", "recorded"]
    # Lightning runs DDP within the optimizer's closure
    for rank in (0, 1):
        assert {phase for name, phase in phases(run, rank) if name == "c10d.allreduce_"} == {"backward"}
        assert {phase for name, phase in phases(run, rank) if name == "aten.copy_"} == {"backward"}
        assert {phase for name, phase in phases(run, rank) if name == "aten.lerp_"} == {"optimizer"}
    assert not list(folder.parent.rglob("*.ranks"))
