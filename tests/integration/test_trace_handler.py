"""A handler for the profiler of somebody else: real profilers, real traces."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile, schedule, tensorboard_trace_handler
from trainings import counts, script

import auditor
from auditor.errors import AuditError
from auditor.integrations import ranks
from auditor.store import Store

# Of torch itself: a profiler with a schedule that ran more than one cycle
pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")
Net = script("train_lightning").Net
CPU = [ProfilerActivity.CPU]


def train(prof: Any, steps: int) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.rand(4, 32)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()


def one_cycle(**arguments: Any) -> Any:
    return schedule(wait=1, warmup=1, active=2, **arguments)


def profiled_steps(trace: Path) -> set[str]:
    with gzip.open(trace) as file:
        names = {str(event.get("name")) for event in json.load(file)["traceEvents"]}
    return {name for name in names if name.startswith("ProfilerStep")}


def test_the_audit_is_that_of_import(tmp_path: Path, store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    # GIVEN a profiler with all that it can record
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    handler = auditor.trace_handler(name="mine")
    with profile(
        activities=CPU, schedule=one_cycle(repeat=1), on_trace_ready=handler, record_shapes=True, with_stack=True,
        execution_trace_observer=observer,
    ) as prof:  # fmt: skip
        train(prof, 5)
    observer.unregister_callback()

    # WHEN its own files are imported
    prof.export_chrome_trace(str(tmp_path / "trace.json"))  # a profiler gives its trace once: this is a copy
    expected = auditor.load(tmp_path / "trace.json", tmp_path / "et.json").document

    # THEN they say what the stored run says
    stored = store.load("mine").document
    assert counts(stored) == counts(expected)
    assert (stored.coverage.edges, stored.coverage.steps, stored.run.source) == ("observed", 2, "trace")
    assert stored.run.project == "fusion-auditor"
    assert [audit.document.run.id for audit in handler.audits] == [stored.run.id]
    assert not any("did not record" in note for note in stored.run.notes)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fusion-audit: ")]
    assert len(told) == 1
    assert told[0].startswith(f"fusion-audit: mine: {stored.totals.unfused_kernels} of ")


def test_what_a_profile_did_not_record_is_said(store: Store, capfd: pytest.CaptureFixture[str]) -> None:
    with profile(activities=CPU, on_trace_ready=auditor.trace_handler(name="bare")):
        Net()(torch.rand(4, 32))

    (note,) = [note for note in store.load("bare").document.run.notes if "did not record" in note]
    assert "record_shapes=True" in note
    assert "with_stack=True" in note
    assert "execution_trace_observer=" in note
    assert f"fusion-audit: {note}" in capfd.readouterr().err
    assert store.load("bare").document.coverage.edges == "inferred"


def test_once_by_default_and_with_another_handler_at_every_cycle(tmp_path: Path, store: Store) -> None:
    # GIVEN three cycles, and TensorBoard's handler behind
    handler = auditor.trace_handler(also=tensorboard_trace_handler(str(tmp_path), use_gzip=True))

    # WHEN
    with profile(activities=CPU, schedule=one_cycle(repeat=3), on_trace_ready=handler, record_shapes=True) as prof:
        train(prof, 13)

    # THEN one is audited, and the other handler has all of them
    assert len(handler.audits) == len(store.list_runs()) == 1
    traces = sorted(tmp_path.glob("*.pt.trace.json.gz"))
    assert len(traces) == 3
    steps = [profiled_steps(trace) for trace in traces]
    assert steps == [{f"ProfilerStep#{n}", f"ProfilerStep#{n + 1}"} for n in (2, 6, 10)]


def test_every_cycle_has_its_own_part_of_the_execution_trace(tmp_path: Path) -> None:
    # The observer writes all cycles into one file, which is open until the end
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))
    handler = auditor.trace_handler(times=2)

    with profile(
        activities=CPU, schedule=one_cycle(repeat=2), on_trace_ready=handler, record_shapes=True,
        execution_trace_observer=observer,
    ) as prof:  # fmt: skip
        train(prof, 9)
    observer.unregister_callback()

    first, second = (audit.document for audit in handler.audits)
    assert counts(first) == counts(second)
    assert (first.coverage.edges, second.coverage.edges) == ("observed", "observed")
    json.loads((tmp_path / "et.json").read_text())  # and the user's own file is whole


def test_an_execution_trace_of_something_else_is_left_out(tmp_path: Path, store: Store) -> None:
    # GIVEN an observer's file that was damaged
    observer = ExecutionTraceObserver().register_callback(str(tmp_path / "et.json"))

    def damage(prof: Any) -> None:
        (tmp_path / "et.json").write_text('{"nodes": [{"id": 1, "na')
        auditor.trace_handler(name="damaged")(prof)

    with profile(activities=CPU, on_trace_ready=damage, record_shapes=True, execution_trace_observer=observer):
        Net()(torch.rand(4, 32))
    observer.unregister_callback()

    document = store.load("damaged").document
    assert document.coverage.edges == "inferred"
    assert any("execution trace was left out" in note for note in document.run.notes)


def test_behind_a_handler_that_exported_the_trace(tmp_path: Path, store: Store) -> None:
    own, other = auditor.trace_handler(), tensorboard_trace_handler(str(tmp_path))

    with (
        pytest.warns(UserWarning, match=r"give that handler to this one: auditor.trace_handler\(also=…\)"),
        profile(activities=CPU, on_trace_ready=lambda prof: (other(prof), own(prof))),
    ):
        Net()(torch.rand(4, 32))

    assert store.list_runs() == []
    assert len(list(tmp_path.iterdir())) == 1


def test_before_a_handler_that_exports_the_trace(tmp_path: Path, store: Store) -> None:
    own, other = auditor.trace_handler(), tensorboard_trace_handler(str(tmp_path))

    with profile(activities=CPU, on_trace_ready=lambda prof: (own(prof), other(prof))):
        Net()(torch.rand(4, 32))

    assert len(store.list_runs()) == len(list(tmp_path.iterdir())) == 1


def test_a_fault_of_ours_ends_nothing_and_one_of_the_other_handler_is_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN a trace with nothing in it
    handler = auditor.trace_handler()
    with pytest.warns(UserWarning, match="goes on without an audit of this trace: .*holds no ops and no kernels"):  # noqa: SIM117
        with profile(activities=CPU, on_trace_ready=handler):
            pass
    assert handler.audits == []

    # AND another handler that fails
    def fails(_prof: Any) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):  # noqa: SIM117
        with profile(activities=CPU, on_trace_ready=auditor.trace_handler(also=fails)):
            Net()(torch.rand(4, 32))

    # AND another rank
    monkeypatch.setattr(ranks, "_rank", lambda: 3)
    silent = auditor.trace_handler(also=tensorboard_trace_handler(str(tmp_path)))
    with profile(activities=CPU, on_trace_ready=silent):
        Net()(torch.rand(4, 32))
    assert silent.audits == []
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": 0}, "times must be a whole number from 1 on"),
        ({"also": "log"}, "also takes another handler, not str"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        auditor.trace_handler(**arguments)
