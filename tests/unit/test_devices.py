"""Device descriptions and the calibration of the machine at hand."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
import torch

from auditor.devices import (
    Bandwidth,
    Device,
    calibrate,
    describe,
    find_device,
    load_device,
    measure,
)
from auditor.devices.device import DTYPES
from auditor.errors import AuditError

FIGURES = (
    "match", "arch", "multiprocessors", "warp_size", "memory_bytes", "peak_gbps", "achievable", "cache_bytes",
    "launch_us", "min_kernel_us", "tflops",
)  # fmt: skip
OPTIONAL = ("cache_gbps", "unnamed")
BUILT_IN = sorted(describe.BUILT_IN.glob("*.yaml"))


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the user's own devices nor their calibration may decide a test."""
    monkeypatch.setattr(describe, "user_config_path", lambda _app: tmp_path / "config")
    monkeypatch.setattr(calibrate, "user_cache_path", lambda _app: tmp_path / "cache")


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str, name: str = "device.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda p: p.stem)
def test_every_built_in_figure_has_a_source(path):
    device = load_device(path)
    for figure in FIGURES:
        assert getattr(device, figure), f"{figure} is missing"
    for figure in (*FIGURES, *(f for f in OPTIONAL if getattr(device, f))):
        assert len(device.sources.get(figure, "")) > 15, f"{figure} has no source"
    assert set(device.sources) <= {*FIGURES, *OPTIONAL}
    assert device.achievable_gbps == pytest.approx(device.peak_gbps * device.achievable)


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda p: p.stem)
def test_the_figures_of_a_device_are_plausible(path):
    device = load_device(path)
    # rates grow as the dtype gets narrower, at most by what tensor units gain over one step
    rates = [device.tflops[dtype] for dtype in DTYPES if dtype in device.tflops]
    assert rates == sorted(rates)
    assert device.tflops.get("bf16", device.tflops["f16"]) == device.tflops["f16"]
    # the ridge point in fp32 and in 16 bits, in operations for each byte: from a V100 to an RTX 5090
    assert 8 <= device.tflops["f32"] * 1e3 / device.peak_gbps <= 120
    assert 70 <= device.tflops["f16"] * 1e3 / device.peak_gbps <= 450
    # dense rates of one SM or CU at a clock of 1 to 3 GHz: a sparse or a doubled figure falls out
    per_clock = device.tflops["f16"] * 1e12 / device.multiprocessors / 2e9
    assert 300 <= per_clock <= 9000
    assert 2**22 <= device.cache_bytes <= 2**28 < device.memory_bytes
    assert device.memory_bytes % 2**30 == 0
    assert device.warp_size == (64 if device.kind == "hip" else 32)
    assert device.arch.startswith("gfx" if device.kind == "hip" else "sm_")
    assert device.cache_gbps is None or device.cache_gbps > device.peak_gbps
    assert 1.0 <= device.min_kernel_us < device.launch_us <= 10.0
    assert 0.75 <= device.achievable <= 0.95


def test_chips_of_one_kind_agree():
    """The same chip in another board or with more memory has the same cache, SMs and dtypes."""
    chips = ("v100_sxm2", "v100_pcie", "a100_sxm", "a100_pcie")
    for chip in chips:
        small, large = (load_device(path) for path in BUILT_IN if path.stem.startswith(chip))
        assert (small.cache_bytes, small.multiprocessors, small.tflops, small.arch) == (
            large.cache_bytes, large.multiprocessors, large.tflops, large.arch,
        )  # fmt: skip
        assert small.memory_bytes * 2 == large.memory_bytes
    die, half = load_device(describe.BUILT_IN / "mi250x.yaml"), load_device(describe.BUILT_IN / "mi210.yaml")
    assert die.peak_gbps == half.peak_gbps  # one GCD, not the card
    assert die.tflops["f16"] / die.multiprocessors == pytest.approx(half.tflops["f16"] / half.multiprocessors, rel=0.01)
    mi300x, mi325x = (load_device(describe.BUILT_IN / f"{name}.yaml") for name in ("mi300x", "mi325x"))
    assert mi300x.tflops == mi325x.tflops


def test_a_users_own_file_wins_and_is_read_again_when_it_changes(written):
    # GIVEN a file in the user's folder for a device that is built in
    path = written("name: mine\nkind: cuda\nmatch: ['*H100*']\npeak_gbps: 3000\n", "config/devices/h100.yaml")
    assert find_device("NVIDIA H100 80GB HBM3", "cuda").peak_gbps == 3000
    # WHEN it changes THEN the new figure counts
    path.write_text("name: mine\nkind: cuda\nmatch: ['*H100*']\npeak_gbps: 3100\n", encoding="utf-8")
    os.utime(path, ns=(1, 1))
    assert find_device("NVIDIA H100 80GB HBM3", "cuda").peak_gbps == 3100


def test_what_is_not_described_is_none(written):
    device = load_device(written("name: x\nkind: xpu\n"))
    assert (device.peak_gbps, device.achievable_gbps, device.cache_bytes, device.min_kernel_us) == (None,) * 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: cuda\n", "name: required, and missing"),
        ("name: x\n", "kind: required, and missing"),
        ("name: x\nkind: gpu\n", "kind: expected one of cuda, hip, xpu, cpu"),
        ("name: x\nkind: cuda\npeak_gbps: fast\n", "peak_gbps: expected float"),
        ("name: x\nkind: cuda\npeak_gbps: -1\n", "peak_gbps: expected a number above 0, got -1"),
        ("name: x\nkind: cuda\npeak_gbps: .nan\n", "peak_gbps: expected a number above 0, got nan"),
        ("name: x\nkind: cuda\nmin_kernel_us: 0\n", "min_kernel_us: expected a number above 0, got 0"),
        ("name: x\nkind: cuda\nachievable: 88\n", "achievable: expected a fraction above 0 and up to 1, got 88"),
        ("name: x\nkind: cuda\ntflops: {bf16: 0}\n", "tflops.bf16: expected a number above 0, got 0"),
        ("name: x\nkind: cuda\ntflops: {bf16: a}\n", "tflops"),
        ("name: x\nkind: cuda\npeak_gb: 3\n", "peak_gb: no such figure; expected one of name, kind"),
        ("name: ' '\nkind: cuda\n", "name: expected the device's name"),
        ("- a\n- b\n", "expected a mapping of device figures"),
        ("", "expected a mapping of device figures"),
        ("name: x\nkind: [cuda\n", "device.yaml:3: not valid YAML"),
        ("name: x\nkind: cuda\n\npeak_gbps: fast\n", "device.yaml:4: peak_gbps: expected float"),
        ("name: x\nkind: cuda\ntflops:\n  f32: 1\n  bf16: -1\n", "device.yaml:5: tflops.bf16: expected a number above"),
        ("name: x\nkind: cuda\ntflops: {int8: 3}\n", "device.yaml:3: tflops.int8: no such dtype; expected one of f64"),
        ("name: x\nkind: cuda\npeak_gb: 3\n", "device.yaml:3: peak_gb: no such figure"),
        ("name: x\nkind: cuda\nname: y\n", "device.yaml:3: name: given twice, first in line 1; keep one"),
        ("name: x\nkind: cuda\ntflops: {f32: 1, f32: 2}\n", "device.yaml:3: tflops.f32: given twice"),
        ("name: x\nkind: cuda\narch: hopper\n", "device.yaml:3: arch: expected a name such as sm_90 or gfx942"),
        ("name: x\nkind: cuda\nmultiprocessors: 0\n", "device.yaml:3: multiprocessors: expected a number above 0"),
        ("name: x\nkind: cuda\nmultiprocessors: 1.5\n", "device.yaml:3: multiprocessors: expected int"),
        ("name: x\nkind: cuda\nmatch: ['']\n", "device.yaml:3: match: expected names, got an empty text"),
        ("name: x\nkind: cuda\nmatch: '*'\n", "device.yaml:3: match: expected array"),
        ("name: x\nkind: cuda\nunnamed: true\n", "device.yaml:3: unnamed: needs arch, multiprocessors"),
        ("name: 2020-99-99\nkind: cuda\n", "not valid YAML: month must be in 1..12"),
        ("name: " + "9" * 5000 + "\nkind: cuda\n", "not valid YAML: Exceeds the limit"),
        ("? [a]\n: 1\n", "device.yaml:1: expected figures by name"),
        ("name: &a [*a]\nkind: cuda\n", "device.yaml:1: name: expected str"),
        ("- " * 3000 + "1", "nest"),
        ("name: x\nkind: cuda\n# " + "x" * 2**20, "more than 1 MiB"),
    ],
)
def test_a_bad_description_is_one_clear_sentence(written, text, said):
    path = written(text)
    with pytest.raises(AuditError) as caught:
        load_device(path)
    message = str(caught.value)
    assert said in message
    assert message.startswith(str(path))
    assert "\n" not in message


def test_a_description_that_is_absent_or_binary_names_the_file(tmp_path):
    with pytest.raises(AuditError, match=r"absent\.yaml: cannot read the device description"):
        load_device(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AuditError, match=r"binary\.yaml"):
        load_device(tmp_path / "binary.yaml")


# --- calibration ---------------------------------------------------------------------------------

CALIBRATED = Device(
    name="a CPU", kind="cpu", peak_gbps=20.0, curve=(Bandwidth(bytes=2**20, gbps=20.0),), op_ns={"aten.exp": 0.3},
)  # fmt: skip


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch):
    """Stands in for the measurement: its calls, and the device that it gives."""
    calls: list[str] = []
    result = [CALIBRATED]

    def fake(name, _cache, progress):
        calls.append(name)
        progress("measuring")
        return result[0]

    monkeypatch.setattr(measure, "measure_machine", fake)
    return calls, result


def test_the_machine_is_measured_once(measured):
    calls, _ = measured
    lines: list[str] = []
    assert calibrate.this_machine(on_progress=lines.append) == CALIBRATED
    assert calibrate.this_machine() == CALIBRATED
    assert (len(calls), lines) == (1, ["measuring"])
    calibrate.this_machine(refresh=True)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"name": "x"}', b"\xff\x00", msgspec.json.encode(Device(name="x", kind="cpu"))]
)
def test_a_damaged_cache_is_measured_again(measured, content):
    calls, _ = measured
    path = calibrate.cache_path()
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert calibrate.this_machine() == CALIBRATED
    assert len(calls) == 1
    assert msgspec.json.decode(path.read_bytes(), type=Device) == CALIBRATED


@pytest.mark.usefixtures("measured")
def test_no_temporary_file_stays_behind():
    calibrate.this_machine()
    assert [p.name for p in calibrate.cache_path().parent.iterdir()] == [calibrate.cache_path().name]


@pytest.mark.usefixtures("measured")
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "cache").write_text("a file where a folder should be", encoding="utf-8")
    assert calibrate.this_machine() == CALIBRATED


def test_a_rough_measurement_is_used_and_not_kept(measured):
    calls, device = measured
    device[0] = msgspec.structs.replace(CALIBRATED, sources={"rough": "times did not settle"})
    lines: list[str] = []
    assert calibrate.this_machine(on_progress=lines.append).peak_gbps == 20.0
    assert not calibrate.cache_path().exists()
    assert "busy" in lines[-1]
    calibrate.this_machine()
    assert len(calls) == 2


def test_another_allocator_or_thread_count_is_another_calibration(monkeypatch):
    plain = calibrate.cache_path()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "4294967296")
    assert calibrate.cache_path() != plain
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_")
    assert calibrate.cache_path() == plain
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert calibrate.cache_path() != plain


def test_the_measurement_gives_plausible_figures_in_time(monkeypatch):
    # GIVEN less time and smaller arrays than a real calibration takes
    monkeypatch.setattr(measure, "SIZES", (2**18, 2**20))
    monkeypatch.setattr(measure, "FAR", 2**18)
    stopwatch = measure.Stopwatch(limit_s=1.5)
    monkeypatch.setattr(measure, "Stopwatch", lambda: stopwatch)
    threads = torch.get_num_threads()
    # WHEN this machine is measured
    lines: list[str] = []
    device = measure.measure_machine("here", 2**20, lines.append)
    # THEN every figure that the model needs is there, with its source, and torch is as it was
    assert torch.get_num_threads() == threads
    assert len(lines) == 3
    assert device.kind == "cpu"
    assert 0 < device.min_kernel_us < 1e4
    assert 0 < device.launch_us < 1e4
    assert 0.0 <= device.overlap <= 1.0
    assert [p.bytes for p in device.curve] == sorted(p.bytes for p in device.curve)
    assert all(p.gbps > 0 and p.fresh_ns_per_kb >= 0 for p in device.curve)
    assert {"aten.exp", "aten.tanh", "aten.gelu", "aten.silu", "aten.sum", "cast", "cheap"} <= device.op_ns.keys()
    assert all(ns >= 0 for ns in device.op_ns.values())
    assert device.op_ns["aten.pow:general"] > device.op_ns["aten.sqrt"]
    assert {"peak_gbps", "curve", "op_ns"} <= device.sources.keys()


def test_a_stopwatch_ignores_calls_that_were_disturbed():
    waits = iter([0.0] + [0.002, 0.02] * 500)
    assert measure.Stopwatch().seconds(lambda: time.sleep(next(waits))) < 0.006


def test_a_stopwatch_that_never_settles_says_so():
    waits = iter([0.0] + [0.001 * 1.6**n for n in range(30)])
    watch = measure.Stopwatch()
    watch.seconds(lambda: time.sleep(next(waits)))
    assert watch.is_rough
