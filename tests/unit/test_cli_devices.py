"""What ``fusion-audit devices`` prints and writes, and ``--device`` by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from auditor import doctor
from auditor.devices import describe, load_device
from auditor.devices.skeleton import skeleton
from auditor.engine.achieved import Achieved, achieved_bandwidth
from auditor.graph.model import DeviceProperties, Kernel, OpGraph
from auditor.graph.ssa import parse

pytestmark = pytest.mark.usefixtures("folder")
Cli = Callable[..., tuple[int, str, str]]

UNKNOWN = {
    "id": 0, "name": "NVIDIA GeForce RTX 2080 Ti", "totalGlobalMem": 11554586624, "computeMajor": 7, "computeMinor": 5,
    "warpSize": 32, "numSms": 68,
}  # fmt: skip
OP = {
    "ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 0, "dur": 9,
    "args": {
        "External id": 1, "Input Dims": [[4096, 4096], [4096, 4096], []], "Input type": ["float", "float", "Scalar"],
        "Input Strides": [[4096, 1], [4096, 1], []], "Concrete Inputs": ["", "", "1"],
    },
}  # fmt: skip
LAUNCH = {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 1, "dur": 2,
    "args": {"correlation": 7},
}  # fmt: skip
KERNEL = {
    "ph": "X", "cat": "kernel", "name": "add", "pid": 0, "tid": 7, "ts": 20, "dur": 400,
    "args": {"correlation": 7, "device": 0, "stream": 7},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_own_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "user_config_path", lambda _app: tmp_path / "config")


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., Path]:
    def write(events: tuple[dict, ...] = (OP, LAUNCH, KERNEL), **device: object) -> Path:
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"deviceProperties": [UNKNOWN | device], "traceEvents": events}), encoding="utf-8")
        return path

    return write


def test_list_has_every_device_and_the_users_own_first(fusion_audit: Cli, tmp_path: Path) -> None:
    own = tmp_path / "config" / "devices" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text('name: "My\\x1b[0m GPU"\nkind: cuda\n', encoding="utf-8")
    code, out, err = fusion_audit("devices", "list")
    assert (code, err) == (0, f"fusion-audit: your own descriptions: 1 in {own.parent}\n")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["mine", "cuda", "-"]
    assert "\x1b" not in out
    assert [line.split()[0] for line in lines[1:]] == sorted(path.stem for path in describe.BUILT_IN.glob("*.yaml"))
    assert "l4              cuda  sm_89     24 GB    300 GB/s  NVIDIA L4 24GB" in lines


def test_show_gives_each_figure_its_source(fusion_audit: Cli) -> None:
    code, out, err = fusion_audit("devices", "show", "mi250x")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "AMD Instinct MI250X (one GCD) (hip)"
    peak = lines.index("  peak_gbps         1638.4")
    assert lines[peak + 1].endswith(
        "3,276.8 GB/s of the card, halved: the runtime shows each of the two dies (GCDs) as a device"
    )
    assert "  tflops            f64 47.85, f32 47.85, bf16 191.5, f16 191.5, i8 191.5" in lines
    assert "chained" not in out


def test_match_says_whose_figures_are_used(fusion_audit: Cli, trace) -> None:
    code, out, err = fusion_audit(
        "devices",
        "match",
        str(trace(name="NVIDIA L4", numSms=58, computeMajor=8, computeMinor=9, totalGlobalMem=23_600_000_000)),
    )
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "described as      NVIDIA L4 24GB"


def test_match_of_a_slice_says_why_it_is_unknown(fusion_audit: Cli, trace) -> None:
    code, out, err = fusion_audit(
        "devices", "match", str(trace(name="NVIDIA L4", numSms=58, computeMajor=8, computeMinor=9))
    )
    assert code == 0
    assert out.splitlines()[-1] == "described as      -"
    assert "has the name of NVIDIA L4 24GB but 10.8 GiB of memory where that has 24 GiB" in err


def test_new_from_a_trace_is_a_description_that_fits_it(fusion_audit: Cli, trace, tmp_path: Path) -> None:
    # GIVEN a trace of a device that nobody described WHEN a file is started from it
    file = tmp_path / "sub" / "my.yaml"
    assert fusion_audit("devices", "new", str(file), "--from", str(trace())) == (0, f"{file}\n", "")
    # THEN what the trace knows is in it, with the bandwidth that its kernels reached
    device = load_device(file)
    assert (device.name, device.kind, device.arch) == ("NVIDIA GeForce RTX 2080 Ti", "cuda", "sm_75")
    assert (device.multiprocessors, device.warp_size, device.memory_bytes) == (68, 32, 11554586624)
    assert device.peak_gbps is None
    assert "the trace's own: 503 GB/s (1 kernel of aten.add that move 201 MB each)" in file.read_text(encoding="utf-8")
    # AND with a bandwidth filled in, an audit uses it
    file.write_text(
        file.read_text(encoding="utf-8").replace("# peak_gbps: 1000  ", "peak_gbps: 616  "), encoding="utf-8"
    )
    code, out, _ = fusion_audit(
        "import", str(trace()), "--device", str(file), "--db", str(tmp_path / "db"), "--format", "json"
    )
    assert code == 0
    assert json.loads(out)["run"]["device"] == {
        "name": "NVIDIA GeForce RTX 2080 Ti", "kind": "cuda", "peak_gbps": 616.0,
        "described_as": "NVIDIA GeForce RTX 2080 Ti",
    }  # fmt: skip


def test_an_audit_of_an_unknown_device_says_what_its_kernels_reached(fusion_audit: Cli, trace, tmp_path: Path) -> None:
    code, out, _ = fusion_audit("import", str(trace()), "--db", str(tmp_path / "db"), "--format", "json")
    run = json.loads(out)["run"]
    assert (code, run["device"]["peak_gbps"], run["device"]["described_as"]) == (0, 0.0, "")
    note = next(note for note in run["notes"] if "No description" in note)
    assert "'NVIDIA GeForce RTX 2080 Ti' (cuda, 68 multiprocessors, 10.8 GiB)" in note
    assert "at best 503 GB/s (1 kernel of aten.add that move 201 MB each)" in note


def test_a_known_device_can_be_named(fusion_audit: Cli, trace, tmp_path: Path) -> None:
    code, out, _ = fusion_audit(
        "import", str(trace()), "--device", "t4", "--db", str(tmp_path / "db"), "--format", "json"
    )
    assert (code, json.loads(out)["run"]["device"]["described_as"]) == (0, "NVIDIA T4 16GB")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("show", "h1000"), "no device 'h1000' and no file of this name; nearest: "),
        (("match", "absent.json"), "absent.json: cannot be read"),
        (("new", "x.txt"), "x.txt: a description is a .yaml file; name it x.yaml"),
        (("new", "x.yaml", "--from", "absent.json"), "absent.json: cannot be read"),
        (("new", "/proc/no/x.yaml"), "/proc/no/x.yaml: can't be written"),
    ],
)
def test_bad_input_is_one_clear_sentence(fusion_audit: Cli, args: tuple[str, ...], said: str) -> None:
    code, out, err = fusion_audit("devices", *args)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not Path("x.yaml").exists()


def test_a_file_is_never_overwritten(fusion_audit: Cli, tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    assert fusion_audit("devices", "new", str(file))[0] == 0
    before = file.read_bytes()
    assert load_device(file).name == "my device"
    code, _, err = fusion_audit("devices", "new", str(file))
    assert (code, err) == (2, f"error: {file}: exists already; choose another name or remove it first\n")
    assert file.read_bytes() == before


def test_a_trace_without_a_device_starts_no_description(fusion_audit: Cli, trace, tmp_path: Path) -> None:
    code, _, err = fusion_audit("devices", "new", str(tmp_path / "x.yaml"), "--from", str(trace(events=(OP,))))
    assert code == 2
    assert "no kernel of an accelerator in it" in err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(
    "name",
    [
        "*", "a [b] c?", 'with "quotes" and \\', "line\nbreak: x\ttab", "\x1b[31m\x00\x07", "✓ 😀 é", "\udcff", "- a",
        "x: {y", "'" * 3, "#c", "y" * 100_000,
    ],
)  # fmt: skip
def test_a_hostile_name_is_data_in_the_file(tmp_path: Path, name: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(skeleton(name, "cuda", DeviceProperties(), source=name, achieved=name), encoding="utf-8")
    device = load_device(file)
    assert device.name == name.encode("utf-8", errors="replace").decode()
    assert len(device.match) == 1
    if name.isprintable() and " " not in name:
        (tmp_path / "config" / "devices").mkdir(parents=True)
        file.rename(tmp_path / "config" / "devices" / "x.yaml")
        assert describe.find_device(name, "cuda") == device
        assert describe.find_device("another", "cuda") is None


@pytest.mark.parametrize(
    ("name", "units", "state", "finding"),
    [
        ("NVIDIA H100 80GB HBM3", 132, "ok", "NVIDIA H100 80GB HBM3 (cuda), described: 3350 GB/s"),
        ("NVIDIA H100 80GB HBM3", 16, "optional", "NVIDIA H100 80GB HBM3 (cuda), no description"),
        ("NVIDIA H20", 78, "optional", "NVIDIA H20 (cuda), no description"),
    ],
)
def test_the_doctor_knows_a_device_by_more_than_its_name(monkeypatch, name: str, units: int, state, finding) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _index: name)
    shown = SimpleNamespace(total_memory=85018279936, multi_processor_count=units, warp_size=32, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: shown)
    check = list(doctor.devices())[-1]
    assert (check.subject, check.state, check.finding) == ("gpu", state, finding)
    assert ("fusion-audit devices new" in check.advice) == (state == "optional")


# --- bandwidth that a trace shows ----------------------------------------------------------------


def graph(*durations: float, text: str = "x: f32[1024, 1024]\na = aten.add(x, 1.0)\nb = aten.mul(a, 2.0)") -> OpGraph:
    made = parse(text)
    for op, dur in zip(made.ops, durations, strict=True):
        op.kernels = (Kernel(op.name, 0.0, dur),)
    return made


def test_the_best_large_streaming_kernel_tells_the_bandwidth() -> None:
    assert achieved_bandwidth(graph(20.0, 10.0)) == Achieved(pytest.approx(838.86, abs=0.01), "aten.mul", 8388608, 1)


def test_kernels_that_tell_nothing_are_left_out() -> None:
    assert achieved_bandwidth(graph(0.0, 0.0)) is None
    assert achieved_bandwidth(graph(5.0, text="x: f32[1024, 1024]\na = aten.mm(x, x)")) is None
    small = "x: f32[1024, 1024]\ns: f32[16]\na = aten.add(x, 1.0)\nb = aten.add(s, 1.0)"
    found = achieved_bandwidth(graph(20.0, 1e-6, text=small))
    assert found is not None
    assert found.bytes == 8388608
    assert str(found) == "419 GB/s (1 kernel of aten.add that move 8.4 MB each, too little to tell)"
