"""The export as Chrome trace events: by the rules of the format, with what the audit knows in it."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gate_factory import audited, graph, save
from report_factory import HOSTILE
from trace_event_rules import broken_rules

import auditor
from auditor.document import Document, Finding, Saving, Site, SourceInfo
from auditor.errors import AuditError
from auditor.graph.model import HostCall, Kernel, Op, OpGraph
from auditor.graph.tables import from_tables, to_tables
from auditor.report import perfetto
from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"


def exported(document: Document, of: OpGraph) -> dict[str, Any]:
    """The trace, which has to keep every rule of its format."""
    file = io.BytesIO()
    perfetto.write(document, of, file)
    trace: dict[str, Any] = json.loads(file.getvalue())
    assert broken_rules(trace) == []
    return trace


def slices(trace: dict[str, Any], category: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == category]


def tracks(trace: dict[str, Any]) -> dict[tuple[int, int], str]:
    named = [event for event in trace["traceEvents"] if event["name"] == "thread_name"]
    return {(event["pid"], event["tid"]): event["args"]["name"] for event in named}


def on_gpu(norms: int = 2) -> OpGraph:
    """Norms by hand whose host calls run ahead of the kernels."""
    of = graph(norms)
    for i, op in enumerate(of.ops):
        op.host = HostCall(10.0 * i, 8.0)
        op.kernels[0].start_us += 5.0
    return of


def test_ops_kernels_modules_and_the_arrows_between_them() -> None:
    of = on_gpu()
    trace = exported(audited(of), of)

    assert [(s["name"], s["ts"], s["dur"]) for s in slices(trace, "op")[:2]] == [
        ("aten.pow", 0.0, 8.0), ("aten.mean", 10.0, 8.0),
    ]  # fmt: skip
    assert [(s["name"], s["ts"], s["dur"]) for s in slices(trace, "kernel")[:2]] == [
        ("aten.pow_kernel", 5.0, 20.0), ("aten.mean_kernel", 35.0, 20.0),
    ]  # fmt: skip
    assert [(s["name"], s["ts"], s["dur"]) for s in slices(trace, "module")] == [
        ("layers", 0.0, 138.0), ("layers.0", 0.0, 68.0), ("layers.0.norm", 0.0, 68.0),
        ("layers.1", 70.0, 68.0), ("layers.1.norm", 70.0, 68.0),
    ]  # fmt: skip
    arrows = [event for event in trace["traceEvents"] if event["ph"] in ("s", "f")]
    assert len(arrows) == 2 * 14
    assert [(event["pid"], event["tid"], event["ts"]) for event in arrows[:2]] == [(1, 2, 0.0), (10, 8, 5.0)]
    assert tracks(trace) == {
        (1, 1): "modules, thread 0", (1, 2): "ops, thread 0", (10, 8): "stream 7",
        (2, 1): "FUS201 unfused-rms-norm · Norm · /repo/model.py:10",
    }  # fmt: skip


def test_a_slice_of_a_finding_spans_the_kernels_of_a_site_and_says_what_fusing_them_is_worth() -> None:
    of = on_gpu(1)
    document = audited(of)
    (whole, *inner) = slices(exported(document, of), "finding")
    (finding,) = document.findings
    (site,) = finding.places
    assert (whole["name"], whole["ts"], whole["ts"] + whole["dur"]) == (
        "FUS201 · layers.0.norm",
        5.0,
        5.0 + 5 * 30 + 20,
    )
    assert [slice_["name"] for slice_ in inner] == [f"{name}_kernel" for name in finding.ops]
    args = whole["args"]
    assert (args["rule"], args["fingerprint"]) == ("FUS201 unfused-rms-norm", finding.fingerprint)
    assert (args["bytes_now"], args["bytes_fused"]) == (site.bytes_now, site.bytes_fused)
    assert args["likely_saving_us"] == pytest.approx(site.saving.likely_us, abs=1e-3)
    assert args["source"] == "/repo/model.py:10 in forward"
    assert "no path leaves it and comes back" in args["legal"]


def test_tracks_of_one_rule_outside_any_module_can_be_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perfetto.os, "getcwd", lambda: "/repo")  # type: ignore[attr-defined]
    of = OpGraph(device_kind="cpu")
    of.add(Op(0, "aten.mul", (), (), kernels=(Kernel("k", 0.0, 9.0),)))
    at = [SourceInfo(file="/repo/sub/model.py", line=line, function="loss") for line in (3, 7)]
    made = [(at[0], {}), (at[1], {}), (at[1], {"phase": "backward"}), (at[1], {"fingerprint": "b7"}), (None, {})]
    findings = [
        Finding(rule="FUS101", name="chain", family="e", source=source, ops=["aten.mul"],
                places=[Site(ops=[0], source=source)], **more)
        for source, more in made
    ]  # fmt: skip
    trace = exported(Document(findings=findings), of)
    head = "FUS101 chain · outside any module"
    assert {name for (pid, _), name in tracks(trace).items() if pid == perfetto.FINDINGS} == {
        f"{head} · sub/model.py:3", f"{head} · sub/model.py:7", f"{head} · sub/model.py:7 · backward",
        f"{head} · sub/model.py:7 · b7", f"{head} · aten.mul",
    }  # fmt: skip
    named = {(s["name"], s["args"].get("source")) for s in slices(trace, "finding") if "args" in s}
    assert named == {
        ("FUS101 · sub/model.py:3", "sub/model.py:3 in loss"), ("FUS101 · sub/model.py:7", "sub/model.py:7 in loss"),
        ("FUS101", None),
    }  # fmt: skip


def test_sites_that_run_in_turns_get_tracks_of_their_own() -> None:
    of = OpGraph(device_kind="cuda")
    for i in range(6):
        of.add(Op(0, "aten.mul", (), (), kernels=(Kernel("k", 10.0 * i, 9.0, 7),)))
    sites = [Site(ops=[0, 2]), Site(ops=[1, 3]), Site(ops=[4, 5])]
    finding = Finding(rule="FUS207", name="rope", family="e", module_class="Attention", places=sites)
    trace = exported(Document(findings=[finding]), of)
    assert [name for (pid, _), name in tracks(trace).items() if pid == perfetto.FINDINGS] == [
        "FUS207 rope · Attention", "FUS207 rope · Attention (2)",
    ]  # fmt: skip
    assert Counter(s["tid"] for s in slices(trace, "finding") if s["name"] == "FUS207") == {1: 2, 2: 1}


def test_medians_that_overlap_are_cut_and_keep_their_time() -> None:
    of = OpGraph(device_kind="cuda")
    for start, dur in ((0.0, 12.3456), (10.0, 5.0), (10.0, 0.0), (16.0, 1e300)):
        of.add(Op(0, "aten.mul", (), (), kernels=(Kernel("k", start, dur, 7),), host=HostCall(start, dur)))
    drawn = slices(exported(Document(), of), "kernel")
    assert [(s["ts"], s["dur"], s["args"].get("dur_us")) for s in drawn[:2]] == [(0.0, 10.0, 12.346), (10.0, 0.0, 5.0)]


def test_a_cpu_run_has_ops_and_no_device() -> None:
    of = graph(1)
    of.device_kind = "cpu"
    trace = exported(audited(of), of)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    assert len(slices(trace, "op")) == 7
    assert not slices(trace, "kernel")


def test_what_was_never_timed_is_left_out() -> None:
    of = on_gpu(1)
    of.ops[0].kernels[0].start_us = float("nan")
    of.ops[1].kernels[0].dur_us = float("inf")
    of.ops[2].host = HostCall(float("nan"), 1.0)
    of.unlinked.append(Kernel("nccl\x1b[31m", 500.0, 4.0, -1, 2))
    trace = exported(audited(graph(1)), of)
    assert len(slices(trace, "kernel")) == 6
    assert len(slices(trace, "op")) == 6
    assert [s["name"] for s in slices(trace, "kernel") if s["pid"] == 12] == ["nccl\\x1b[31m"]


def test_names_from_the_run_steer_nothing() -> None:
    of = on_gpu(1)
    evil = HOSTILE + "\ud800"
    for op in of.ops:
        op.module = op.module_class = op.name = evil
        op.kernels[0].name = evil
    site = Site(ops=[0, 1], module=evil, source=SourceInfo(file=evil, line=1), saving=Saving(likely_us=float("nan")))
    document = Document(findings=[Finding(rule=evil, name=evil, family="e", module_class=evil, places=[site])])
    document.run.name = document.run.id = evil
    text = json.dumps(exported(document, of), ensure_ascii=False)
    assert not any(mark in text for mark in ("\x1b", "\u202e", "\ud800"))


def test_an_empty_graph_is_an_empty_trace() -> None:
    assert slices(exported(Document(), OpGraph()), "op") == []


def test_host_calls_are_kept_by_the_store() -> None:
    of = on_gpu(1)
    of.ops[3].host = None
    read = from_tables(to_tables(of))
    assert [op.host for op in read.ops] == [op.host for op in of.ops]
    assert "host" not in to_tables(graph(1))


@pytest.mark.parametrize("name", ["mi300x_resnet_ddp_training", "dlrm_8_ranks/rank1", "h100_bert-small_launch_bound"])
def test_real_traces(name: str) -> None:
    path = TRACES / f"{name}.json.gz"
    if not path.is_file():
        pytest.skip("no ../shared/traces here")
    audit = auditor.load(path)
    trace = exported(audit.document, audit.graph)
    kernels = len(slices(trace, "kernel"))
    assert kernels >= audit.kernels  # and the transfers
    assert len(slices(trace, "finding")) >= sum(len(finding.places) for finding in audit.findings)
    assert not [f for f in audit.findings if any(op.startswith("c10d.") for op in f.ops)]


class TestCommand:
    def test_a_file_plain_or_packed_and_stdout(self, fusion_audit: Cli, store: Store, folder: Path) -> None:
        run = save(store, on_gpu()).id
        assert fusion_audit("show", run, "--format", "perfetto", "-o", "trace.json").code == 0
        done = fusion_audit("show", run, "--format", "perfetto", "-o", "trace.json.gz")
        assert (done.out, done.err.strip()) == (
            "", "fusion-audit: trace written to trace.json.gz; open it at https://ui.perfetto.dev",
        )  # fmt: skip
        plain = (folder / "trace.json").read_bytes()
        assert gzip.decompress((folder / "trace.json.gz").read_bytes()) == plain
        assert fusion_audit("show", run, "--format", "perfetto").out.encode() == plain
        assert broken_rules(json.loads(plain)) == []
        assert json.loads(plain)["otherData"]["run"] == run

    @pytest.mark.usefixtures("folder")
    def test_an_export_is_no_trace_to_import(self, fusion_audit: Cli, store: Store) -> None:
        run = save(store, on_gpu()).id
        fusion_audit("show", run, "--format", "perfetto", "-o", "trace.json.gz")
        done = fusion_audit("import", "trace.json.gz")
        assert done.code == 2
        assert f"error: trace.json.gz: is an export of the audited run {run}, not a profiler's trace" in done.err

    def test_a_fix_has_no_trace(self, fusion_audit: Cli, store: Store) -> None:
        run = save(store, on_gpu()).id
        assert fusion_audit("show", run, "--fix", "--format", "perfetto").code == 2

    @pytest.mark.usefixtures("folder")
    def test_a_place_that_can_not_be_written(self, fusion_audit: Cli, store: Store) -> None:
        run = save(store, on_gpu()).id
        done = fusion_audit("show", run, "--format", "perfetto", "-o", "no/such/folder.json")
        assert (done.code, "there is no folder no/such" in done.err) == (2, True)


OTHER_DATA = ['{"producer": 1}', '"text"', "[]", '{"producer": "fusion-audit", "run": null}']


@pytest.mark.parametrize("data", OTHER_DATA)
def test_what_other_programs_write_beside_their_events_is_their_own(data: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    op = '{"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 1, "dur": 1}'
    path.write_text(f'{{"otherData": {data}, "traceEvents": [{op}]}}')
    if "fusion-audit" in data:
        with pytest.raises(AuditError, match=r"audited run \(without an id\)"):
            auditor.load(path)
    else:
        assert auditor.load(path).kernels == 1


BROKEN = {
    "reaches out of": [{"ts": 0, "dur": 10}, {"ts": 5, "dur": 10}],
    "stands behind a later slice": [{"ts": 5, "dur": 1}, {"ts": 0, "dur": 1}],
    "dur is -1": [{"ts": 0, "dur": -1}],
    "ts is nan": [{"ts": float("nan"), "dur": 1}],
    "name is no text": [{"ts": 0, "dur": 1, "name": ""}],
    "pid is no whole number": [{"ts": 0, "dur": 1, "pid": "1"}],
    "ph 'B' is not expected": [{"ts": 0, "dur": 1, "ph": "B"}],
    "has no name": [{"ts": 0, "dur": 1, "tid": 9}],
    "is in no slice": [{"ts": 0, "dur": 1}, {"ph": "s", "id": 1, "ts": 5}, {"ph": "f", "bp": "e", "id": 1, "ts": 6}],
    "ends before it starts": [
        {"ts": 0, "dur": 9}, {"ph": "s", "id": 1, "ts": 5}, {"ph": "f", "bp": "e", "id": 1, "ts": 4},
    ],
    "without bp e": [{"ts": 0, "dur": 9}, {"ph": "s", "id": 1, "ts": 5}, {"ph": "f", "id": 1, "ts": 6}],
}  # fmt: skip


@pytest.mark.parametrize("reason", BROKEN)
def test_the_rules_see_what_is_broken(reason: str) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}}
    made = [{"ph": "X", "cat": "c", "name": "n", "pid": 1, "tid": 1} | event for event in BROKEN[reason]]
    assert any(reason in told for told in broken_rules({"traceEvents": [name, *made]}))
    assert broken_rules({"traceEvents": [name]}) == []


def test_a_path_of_many_levels_costs_no_more_than_one_of_some() -> None:
    of = on_gpu(1)
    for number, op in enumerate(of.ops):
        op.module = ("a." if number % 2 else "b.") * 50_000 + "c"
    file = io.BytesIO()
    perfetto.write(audited(graph(1)), of, file)
    assert len(file.getvalue()) < 1_200_000 + 2 * 100_000 * len(of.ops)  # an op tells its module, too
    deep = exported(audited(graph(1)), of)
    names = [each["name"] for each in slices(deep, "module")]
    assert len(names) == 64 * len(of.ops)
    assert max(map(len, names)) == 1001  # the innermost one has the rest of the path, cut
    assert {name[-1] for name in names if len(name) == 1001} == {"…"}
