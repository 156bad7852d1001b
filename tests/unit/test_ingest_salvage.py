"""Files that are cut off or damaged: what is whole is audited on request, and the audit says that it is a part."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from era_traces import ERAS, KERNELS_A_STEP, Event, step, write
from hypothesis import given, settings
from hypothesis import strategies as st

from auditor.api import load
from auditor.cli import main
from auditor.collect.execution_trace import load_execution_trace
from auditor.collect.ingest import graph_from_trace
from auditor.collect.kineto import Event as Decoded
from auditor.collect.kineto import load_trace
from auditor.collect.tracefile import Reading
from auditor.config import Config
from auditor.errors import AuditError

MODERN = next(era for era in ERAS if era.name == "2.6")


def events() -> list[Event]:
    """One step, with a name and arguments that look like the end of an event."""
    made = list(step(MODERN))
    made[1]["args"]["like an end"] = [{"a": {"b": 1}}, {"c": '}, {"'}]
    made[5]["name"] = "aten::empty"
    made[8]["name"] = 'op of {lambda()#1}, {x}], "y": ]}'
    return made


def whole(tmp_path: Path) -> bytes:
    return write(tmp_path / "whole.json", MODERN, events()).read_bytes()


def saved(path: Path) -> list[str]:
    return [event.name for event in _all(load_trace(path, Reading(salvage=True)))]


def _all(trace: object) -> list[Decoded]:
    names = ("cpu_ops", "kernels", "memory", "launches", "annotations", "instants")
    return sorted((event for name in names for event in getattr(trace, name)), key=lambda event: event.start)


def one_line(text: str) -> str:
    return " ".join(text.split())


def cut_names(data: bytes, cut: int) -> list[str]:
    """Names of the events that end before ``cut``, by decoding the whole file and asking where each one ends."""
    decoder = json.JSONDecoder()
    text = data.decode()
    at, found = text.index("[") + 1, []
    while at < cut:
        event, end = decoder.raw_decode(text, at)
        if end > cut:
            break
        found.append(event)
        at = end + 2
    return [event["name"] for event in found if event["ph"] != "s"]


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0.05, 0.999))
def test_every_event_before_the_cut_is_there_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    data = whole(folder)
    cut = int(len(data) * share)
    (folder / "cut.json").write_bytes(data[:cut])

    expected = cut_names(data, cut)
    if not expected:
        with pytest.raises(AuditError, match="before anything in it is whole"):
            load_trace(folder / "cut.json", Reading(salvage=True))
    else:
        assert sorted(saved(folder / "cut.json")) == sorted(expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bare", [False, True])
def test_a_cut_off_trace_is_refused_and_saved_on_request(tmp_path: Path, packed: bool, bare: bool) -> None:
    # GIVEN a trace that breaks off, packed or not, as an object or as a bare list
    data = whole(tmp_path)
    if bare:
        data = json.dumps(json.loads(data)["traceEvents"]).encode()
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(data)[:-200] if packed else data[: len(data) * 3 // 4])

    # WHEN it is read as it is THEN it is refused, with the way to read it
    with pytest.raises(AuditError, match=r"cut off .*record(?: or copy)? it again \(--salvage reads what is whole\)"):
        load(path, config=Config())

    # WHEN what is whole is asked for THEN there is an audit of it, which says so
    audit = load(path, config=Config(), salvage=True)
    document = audit.document
    assert document.coverage.partial
    assert 0 < document.coverage.linked < KERNELS_A_STEP
    notes = "\n".join(document.run.notes)
    assert re.search(r"(?m)^The JSON is cut off after [\d,]+ bytes of [\d,]+: what follows is lost\.$", notes)
    assert re.search(r"(?m)^Only a part of the trace is there: \d+ whole events were saved, and .* of these\.$", notes)
    assert ("The gzip file is cut off after" in notes) == packed
    assert "a part of the trace: the rest is lost" in one_line(str(audit))


def test_a_whole_trace_is_whole_with_salvage(tmp_path: Path) -> None:
    (tmp_path / "whole.json").write_bytes(whole(tmp_path))
    coverage = graph_from_trace(tmp_path / "whole.json", salvage=True).coverage
    assert (coverage.partial, coverage.notes) == (False, graph_from_trace(tmp_path / "whole.json").coverage.notes)


def test_what_follows_the_events_may_be_cut_too(tmp_path: Path) -> None:
    data = whole(tmp_path)[:-1] + b', "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceName": "/tm'
    (tmp_path / "cut.json").write_bytes(data)

    trace = load_trace(tmp_path / "cut.json", Reading(salvage=True))

    assert len(trace.kernels) == KERNELS_A_STEP
    assert trace.partial


def test_lost_kernels_do_not_make_a_gpu_a_cpu(tmp_path: Path) -> None:
    # GIVEN a trace of a GPU as Kineto writes it: the device first, ops, launches, and the kernels last
    made = sorted(events(), key=lambda event: ["cpu_op", "cuda_runtime", "kernel"].index(_rank(event)))
    device = '{"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": '
    text = device + json.dumps(made) + "}"
    path = tmp_path / "cut.json"

    # WHEN its kernels are lost THEN it is still a GPU's, without kernels
    path.write_text(text[: text.index('"cat": "kernel"')])
    coverage = graph_from_trace(path, salvage=True).coverage
    assert (coverage.kernels, coverage.linked) == (0, 0)
    assert coverage.notes[-1].startswith("The trace holds launches and none of their kernels")

    # AND where the launches are, too, it is refused
    path.write_text(text[: text.index('"cat": "cuda_runtime"')])
    with pytest.raises(AuditError, match="no kernel is in the part that is whole, as they come last"):
        graph_from_trace(path, salvage=True)

    # AND where nothing tells of a device the audit says what it takes the ops for
    path.write_text(text[text.index("[{", len(device)) : text.index('"cat": "cuda_runtime"')])
    assert "its ops are taken for a CPU's" in " ".join(graph_from_trace(path, salvage=True).coverage.notes)


def test_a_gpu_without_device_properties_is_an_unknown_gpu(tmp_path: Path) -> None:
    # GIVEN a trace that breaks off before the properties of the device, which some profilers write last
    made = json.dumps({"traceEvents": events(), "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]})
    path = tmp_path / "cut.json"
    path.write_text(made[: made.index('"deviceProperties"') + 30])

    # WHEN it is audited THEN its kernels are a GPU's, of which nobody knows the peak, and the way on is said
    run = load(path, config=Config(), salvage=True).document.run
    assert (run.device.kind, run.device.name) == ("cuda", "cuda")
    assert any(re.match(r"The trace does not say which cuda device .*reached.*--device NAME", n) for n in run.notes)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"cat": "cpu_op", "name": "aten::cudnn_convolution"}, "cuda"),
        ({"cat": "cpu_op", "name": "aten::_scaled_dot_product_flash_attention"}, "cuda"),
        ({"cat": "cpu_op", "name": "CudnnConvolutionBackward0"}, "cuda"),
        ({"cat": "cpu_op", "name": "aten::miopen_batch_norm"}, "hip"),
        ({"cat": "cuda_runtime", "name": "cudaMemcpyAsync"}, "cuda"),
        ({"cat": "user_annotation", "name": "nccl:all_reduce"}, "cuda"),
        ({"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "args": {"Device Type": 1, "Bytes": 512}}, "cuda"),
        ({"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "args": {"Device Type": 0, "Bytes": 512}}, "cpu"),
        ({"cat": "cpu_instant_event", "name": "[memory]", "ph": "i", "args": {"Device Type": "?"}}, "cpu"),
        ({"cat": "cpu_op", "name": "aten::cudnn_is_acceptable"}, "cpu"),
        ({"cat": "cpu_op", "name": "aten::_use_cudnn_ctc_loss"}, "cpu"),
        ({"cat": "cpu_op", "name": "aten::_scaled_dot_product_flash_attention_for_cpu"}, "cpu"),
        ({"cat": "cuda_runtime", "name": "cudaDeviceSynchronize"}, "cpu"),  # the profiler's own, on any machine
        ({"cat": "user_annotation", "name": "gloo:all_reduce"}, "cpu"),
    ],
)
def test_ops_tell_of_a_gpu_whose_kernels_are_not_there(more: Event, kind: str, tmp_path: Path) -> None:
    # GIVEN ops without launches, and one event more
    ops = [event for event in events() if event.get("cat") == "cpu_op"]
    ops.append({"ph": "X", "pid": 1, "tid": 1, "ts": 900_000, "dur": 2, "args": {}} | more)
    text = json.dumps({"traceEvents": ops})
    path = tmp_path / "ops.json"
    path.write_text(text)

    # WHEN the file is whole THEN no op of a GPU becomes a kernel of a CPU
    graph = graph_from_trace(path)
    assert graph.device_kind == kind
    if kind != "cpu":
        assert graph.kernels == 0
        assert graph.coverage.notes[-1].startswith("The ops of the trace ran on a GPU, and nothing that it did was")

    # AND where its kernels are lost with the end of the file it is refused
    path.write_text(text[:-2])
    if kind != "cpu":
        with pytest.raises(AuditError, match="no kernel is in the part that is whole, as they come last"):
            graph_from_trace(path, salvage=True)
    else:
        assert graph_from_trace(path, salvage=True).device_kind == "cpu"


def test_kernels_alone_tell_the_vendor_by_their_names(tmp_path: Path) -> None:
    made = [event for event in events() if event.get("cat") == "kernel"]
    for name, kind in (("Cijk_Alik_Bljk_HHS_BH_MT128x128x64", "hip"), ("sm90_xmma_gemm_f16f16", "cuda")):
        (tmp_path / "t.json").write_text(json.dumps({"traceEvents": [event | {"name": name} for event in made]}))
        assert graph_from_trace(tmp_path / "t.json").device_kind == kind


def _rank(event: Event) -> str:
    cat = event.get("cat", "")
    return "kernel" if cat == "kernel" else "cuda_runtime" if "correlation" in event.get("args", {}) else "cpu_op"


def test_damage_in_the_middle_keeps_what_comes_before(tmp_path: Path) -> None:
    data = whole(tmp_path)
    at = data.index(b'"aten::sigmoid"')
    for name, damaged in (
        ("overwritten", data[:at] + b"\x00\x01{{,,]]" + data[at + 8 :]),
        ("gzip", _flipped(gzip.compress(data, mtime=0))),
        ("two documents", data + b"\n" + data),
    ):
        path = tmp_path / name
        path.write_bytes(damaged)
        with pytest.raises(AuditError, match=r"--salvage reads what is whole"):
            load_trace(path)
        assert 0 < len(load_trace(path, Reading(salvage=True)).kernels) <= KERNELS_A_STEP


def _flipped(packed: bytes) -> bytes:
    middle = len(packed) * 4 // 5
    return packed[:middle] + b"\xff" * 40 + packed[middle + 40 :]


def test_nothing_whole_is_said(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "na')
    with pytest.raises(AuditError, match=r"cut\.json: is cut off before anything in it is whole; record or copy"):
        load_trace(tmp_path / "cut.json", Reading(salvage=True))


def test_damage_before_the_first_event_is_not_called_another_kind_of_file(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_bytes(b'{"schemaVersion": 1, "deviceProperties": [{"id": 0},, {"id": 1}], "traceEvents": [{"ph": "X"}]}')
    with pytest.raises(AuditError, match="is damaged before the first event, so there is nothing to save"):
        load_trace(bad, Reading(salvage=True))


def test_an_execution_trace_is_saved_node_by_node(tmp_path: Path) -> None:
    nodes = [{"id": i, "name": "aten::add", "ctrl_deps": 1, "attrs": [{"name": "tid", "value": 1}]} for i in range(9)]
    data = json.dumps({"schema": "1.1.1", "nodes": nodes}).encode()
    (tmp_path / "cut.json").write_bytes(data[: data.index(b'"id": 7') + 30])

    execution = load_execution_trace(tmp_path / "cut.json", Reading(salvage=True))

    assert list(execution.nodes) == list(range(7))
    assert execution.partial
    assert execution.notes[-1] == "Only a part of the execution trace is there: 7 whole nodes were saved."


def test_the_command_takes_it_and_the_store_keeps_that_it_is_a_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = whole(tmp_path)
    path = tmp_path / "cut.json"
    path.write_bytes(data[: len(data) * 3 // 4])

    assert main(["import", str(path), "--salvage", "--db", str(tmp_path / "db")]) == 0
    first = capsys.readouterr().out
    assert main(["show", "latest", "--db", str(tmp_path / "db")]) == 0
    for text in (first, capsys.readouterr().out):
        assert "a part of the trace: the rest is lost" in one_line(text)
        assert "whole events were saved" in one_line(text)
