"""Scripts under torchrun, with gloo: one run, whose parts are the ranks, and one report, of rank 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torchruns import torchrun

from auditor.store import Store
from auditor.store.rank_tables import rank_of

Cli = Callable[..., Any]  # gives (code, out, err)

SCRIPT = """
import os, sys, time
if "--fail" in sys.argv and os.environ["RANK"] == "1":
    while not os.path.exists("trained"):
        time.sleep(0.1)
    raise SystemExit("rank 1 can't go on")

import torch
import torch.distributed as dist

class Norm(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(64))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight

def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(8, 64)).square().mean().backward()
        optimizer.step()

model = torch.nn.Sequential(torch.nn.Linear(64, 64), Norm(), torch.nn.Linear(64, 64))
if "--fail" in sys.argv:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    train(torch.nn.parallel.DistributedDataParallel(model), 12)
    open("trained", "w").close()
    time.sleep(600)  # as a collective that waits for rank 1
else:
    dist.init_process_group("gloo")
    train(torch.nn.parallel.DistributedDataParallel(model), 12)
    os.write(1, b"rank %d is done\\n" % dist.get_rank())  # print would write it piece by piece, between the other's
    dist.destroy_process_group()
"""


@pytest.fixture
def script(folder: Path) -> Path:
    (folder / "device.yaml").write_text("name: some CPU\nkind: cpu\n", encoding="utf-8")  # measuring one takes long
    path = folder / "train.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.mark.slow
def test_two_ranks_are_one_run_that_rank_0_reports(script: Path, store: Store, fusion_audit: Cli) -> None:
    done = torchrun(
        "-m", "auditor", "run", "--device", "device.yaml", "--format", "json", "-o", "report.json", script.name
    )

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 is done", "rank 1 is done"]
    (line,) = store.list_runs()
    run = store.load(line.id)
    report = json.loads((script.parent / "report.json").read_text())
    assert report["run"]["id"] == line.id
    assert (report["run"]["world_size"], report["run"]["notes"]) == (2, [])
    first, second = report["ranks"]
    counts = ("kernels", "memory_bound_kernels", "unfused_kernels", "avoidable_kernels", "bytes", "peak_bytes")
    assert [first["totals"][key] for key in counts] == [second["totals"][key] for key in counts]
    assert first["totals"]["unfused_kernels"] > 6
    assert (first["totals"]["collective_kernels"], second["differs"]) == (1, [])
    assert first["pid"] != second["pid"]
    marks = [sorted(f["fingerprint"] for f in rank["findings"]) for rank in (first, second)]
    assert marks[0] == marks[1]  # their order is that of their times, which differ
    assert not [f for f in report["findings"] if any(op.startswith("c10d.") for op in f["ops"])]
    for rank in (0, 1):
        document, tables = rank_of(run, rank)
        phases = dict(zip(*(tables()["ops"].column(name).to_pylist() for name in ("name", "phase")), strict=True))
        assert phases["c10d.allreduce_"] == "backward"
        assert phases["aten.copy_"] == "backward"  # gradients out of DDP's bucket
        assert document.totals.kernels == first["totals"]["kernels"]
    assert not list((script.parent.parent).rglob("*.ranks"))
    assert fusion_audit("fix", line.id).err == (
        f"error: run {line.id} is of 2 ranks, and fix runs a script in one process: make a run of the model alone "
        "with: fusion-audit run script.py\n"
    )


@pytest.mark.slow
def test_ranks_that_fail_or_never_come_are_named_and_the_others_report_what_they_have(
    script: Path, store: Store
) -> None:
    words = f"run --device device.yaml {script.name} --fail"
    # Two of three ranks: the third is on a machine that nobody started
    done = torchrun("--no-python", "sh", "-c", f'WORLD_SIZE=3 exec "$0" -m auditor {words}', sys.executable)

    assert done.returncode == 1
    assert done.stdout.startswith("fusion audit of train (")
    assert done.stdout.count("fusion audit of") == 1
    assert "Root Cause" in done.stderr
    assert "rank      : 1 (local_rank: 1)" in done.stderr.partition("Root Cause")[2]
    (run,) = store.list_runs()
    document = store.load(run.id).document
    assert [(rank.status, rank.recorded, rank.exit_code) for rank in document.ranks] == [
        ("recorded", True, 0), ("failed", False, 1), ("missing", False, 0),
    ]  # fmt: skip
    assert document.run.exit_code == 1
    # a busy machine may add that its times are not to be trusted
    cut, failed, missing = [note for note in document.run.notes if not note.startswith("The kernels of a step")][-3:]
    assert cut.startswith("train.py: the script was ended after 11 steps: rank 1: train.py: the script failed")
    assert failed.startswith("Rank 1 of 3 failed: train.py: the script failed before a step was recorded")
    assert missing.startswith("Rank 2 of 3 is missing: nothing of it was seen in ")
