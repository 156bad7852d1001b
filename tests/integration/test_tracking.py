"""Audits in trackers of experiments: written by their own libraries, read back from what these left. No network."""

from __future__ import annotations

import importlib
import json
import struct
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import auditor
from auditor.audit import Audit
from auditor.errors import AuditError
from auditor.tracking.metrics import COLUMNS, metrics, rows

HOSTILE = "x|<script>`\x1b[31m"


class Norm(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.fixture(scope="module")
def audit() -> Audit:
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), Norm())
    with auditor.record(steps=1) as recording, torch.no_grad():
        for _ in range(5):
            model(torch.rand(4, 16))
    return recording.audit(name=HOSTILE)


@pytest.fixture
def own_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Weights & Biases without a network, which leaves its files in ``tmp_path``."""
    for name in ("DIR", "DATA_DIR", "CACHE_DIR", "CONFIG_DIR", "ARTIFACT_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = importlib.import_module("wandb")
    yield wandb
    wandb.teardown()  # its service would take a fifth of a core from every test that follows


@pytest.fixture(scope="module")
def own_mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow with a database of its own, which takes seconds to make."""
    folder = tmp_path_factory.mktemp("mlflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SQLAlchemy and MLflow between themselves
        mlflow = importlib.import_module("mlflow")
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("tests", artifact_location=str(folder / "artefacts"))
        mlflow.set_experiment("tests")
    yield mlflow
    mlflow.set_tracking_uri(before)


def test_metrics_have_stable_names(audit: Audit) -> None:
    # Dashboards and alerts of others hang on these
    assert list(metrics(audit)) == [
        f"fusion_audit/{name}"
        for name in (
            "kernels", "memory_bound_kernels", "unfused_kernels", "avoidable_kernels", "already_fused_kernels",
            "findings", "bytes", "peak_bytes", "device_us", "step_us", "saving_likely_us", "saving_step_us",
            "saving_bytes",
        )
    ]  # fmt: skip
    assert metrics(audit)["fusion_audit/unfused_kernels"] == audit.unfused_kernels == 5
    (row,) = rows(audit)
    assert dict(zip(COLUMNS, row, strict=True))["rule"] == "FUS201"


def test_tensorboard_has_scalars_and_the_report(audit: Audit, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        auditor.log(audit, writer, step=3)

    events = EventAccumulator(str(tmp_path)).Reload()
    read = {tag: events.Scalars(tag)[0] for tag in events.Tags()["scalars"]}
    assert {tag: event.value for tag, event in read.items()} == pytest.approx(metrics(audit), rel=1e-6)
    assert {event.step for event in read.values()} == {3}
    (text,) = events.Tensors("fusion_audit/report/text_summary")[0].tensor_proto.string_val
    assert b"FUS201" in text
    assert b"\x1b" not in text


def test_mlflow_has_metrics_a_table_and_the_report(audit: Audit, own_mlflow: Any) -> None:
    # WHEN an audit is logged to the active run, to one by its client, and to a run
    with own_mlflow.start_run() as active:
        auditor.log(audit, "mlflow", step=3)
    client = own_mlflow.MlflowClient()
    others = [client.create_run(active.info.experiment_id) for _ in range(2)]
    auditor.log(audit, [(client, others[0].info.run_id), others[1]])

    # THEN all have it
    for run, step in ((active, 3), (others[0], 0), (others[1], 0)):
        kept = client.get_run(run.info.run_id).data
        assert kept.metrics == metrics(audit)
        assert client.get_metric_history(run.info.run_id, "fusion_audit/kernels")[0].step == step
        folder = Path(run.info.artifact_uri) / "fusion_audit"
        assert sorted(file.name for file in folder.iterdir()) == ["audit.json", "findings.json", "report.html"]
        table = json.loads((folder / "findings.json").read_text())
        assert table["columns"] == list(COLUMNS)
        assert table["data"] == [pytest.approx(row) for row in rows(audit)]
        assert json.loads((folder / "audit.json").read_text())["totals"]["kernels"] == audit.kernels
        assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")


def wandb_records(file: Path) -> Iterator[Any]:
    """What a run left, in the log format of LevelDB: blocks of 32 KiB, records in parts.

    https://github.com/google/leveldb/blob/main/doc/log_format.md, behind a header of 7 bytes.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    raw, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(raw):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack_from("<IHB", raw, at)
        part, at = raw[at + 7 : at + 7 + length], at + 7 + length
        whole = part if kind in (1, 2) else whole + part
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(whole)
            yield record


def closed(file: Path) -> list[Any]:
    """The records of a run that has ended; its service writes the last ones in its own time."""
    for _ in range(600):
        records = list(wandb_records(file))
        if any(record.WhichOneof("record_type") == "exit" for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file} has no end: {[record.WhichOneof('record_type') for record in records]}")


def test_wandb_has_metrics_a_table_and_the_report(audit: Audit, own_wandb: Any, tmp_path: Path) -> None:
    # WHEN
    with own_wandb.init(project="tests", settings=own_wandb.Settings(x_disable_stats=True)) as run:
        auditor.log(audit, "wandb", step=3)
        files = Path(run.dir)

    # THEN the metrics are a row of the history
    (log,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    records = closed(log)
    (history,) = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in history.item}
    assert {key: row[key] for key in metrics(audit)} == pytest.approx(metrics(audit))
    assert row["fusion_audit/step"] == 3

    # AND table and report are files, and an artefact with a name that one can have
    (table,) = files.glob("media/table/fusion_audit/*.json")
    assert json.loads(table.read_text()) == {"columns": list(COLUMNS), "data": rows(audit)}
    (page,) = files.glob("media/html/fusion_audit/*.html")
    assert page.read_text().startswith("<!DOCTYPE html>")
    artefacts = [r.artifact for r in records if r.WhichOneof("record_type") == "artifact"]
    (artefact,) = [each for each in artefacts if each.type == "fusion-audit"]
    assert artefact.name == "fusion-audit-x-script-31m"
    assert sorted(file.path for file in artefact.manifest.contents) == ["audit.json", "report.html"]


@pytest.mark.usefixtures("own_wandb")
@pytest.mark.parametrize(("name", "expected"), [("обучение", "run"), ("обучение llama/7b", "llama-7b"), ("..", "run")])
def test_a_name_of_any_letters_names_an_artefact(
    name: str, expected: str, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from auditor.tracking.wandb import _artefact

    monkeypatch.setattr(audit.document.run, "name", name)
    assert _artefact(audit, "<!DOCTYPE html>", tmp_path).name == f"fusion-audit-{expected}"


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("tensorboard", "a SummaryWriter of TensorBoard, or a list of these, not 'tensorboard'"),
        (3, "or a list of these, not int"),
        ([None], "or a list of these, not NoneType"),
    ],
)
def test_a_target_that_is_none(audit: Audit, to: Any, message: str) -> None:
    with pytest.raises(AuditError, match=message):
        auditor.log(audit, to)


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_without_an_active_run(audit: Audit, library: str) -> None:
    with pytest.raises(AuditError, match=rf"no run of .* is active: call {library}\.\w+\(\) first, or give the run"):
        auditor.log(audit, library)


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_a_library_that_is_missing(audit: Audit, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"auditor.tracking.{library}", raising=False)

    with pytest.raises(AuditError, match=rf"{library} is not installed: pip install fusion-auditor\[{library}\]"):
        auditor.log(audit, library)


@pytest.mark.parametrize("library", ["lightning", "pytorch_lightning", "transformers"])
def test_a_trainer_that_is_missing(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"auditor.integrations.{library}", raising=False)

    with pytest.raises(ModuleNotFoundError, match=rf"auditor.integrations.{library} needs .*: pip install"):
        importlib.import_module(f"auditor.integrations.{library}")
