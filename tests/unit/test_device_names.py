"""Which device a trace is of: names and properties as profilers write them, and what must not be taken for another."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditor.collect.kineto import load_trace
from auditor.collect.trace_devices import decode_devices
from auditor.devices import describe, device_called, find_device, load_device, unknown_device_note
from auditor.devices.device import compute_of
from auditor.devices.match import MEMORY_SHOWN
from auditor.errors import AuditError
from auditor.graph.model import DeviceProperties

GIB = 2**30
BUILT_IN = sorted(describe.BUILT_IN.glob("*.yaml"))
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "traces"


@pytest.fixture(autouse=True)
def _no_own_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "user_config_path", lambda _app: tmp_path / "config")


def props(units: int, gib: float, compute: tuple[int, int], warp: int = 32) -> DeviceProperties:
    return DeviceProperties(int(gib * GIB), units, warp, compute)


def stem(name: str, kind: str, properties: DeviceProperties = describe.NOTHING_KNOWN) -> str | None:
    """The file of the device that is found."""
    found = find_device(name, kind, properties)
    return next((path.stem for path in BUILT_IN if load_device(path) == found), None) if found else None


WHOLE = [
    ("Tesla V100-SXM2-16GB", props(80, 15.78, (7, 0)), "v100_sxm2_16gb"),
    ("Tesla V100-SXM2-32GB", props(80, 31.74, (7, 0)), "v100_sxm2_32gb"),
    ("Tesla V100-PCIE-16GB", props(80, 15.78, (7, 0)), "v100_pcie_16gb"),
    ("Tesla V100-PCIE-32GB", props(80, 31.74, (7, 0)), "v100_pcie_32gb"),
    ("Tesla V100-DGXS-32GB", props(80, 31.74, (7, 0)), "v100_dgxs_32gb"),
    ("Tesla T4", props(40, 14.56, (7, 5)), "t4"),
    ("NVIDIA A10G", props(80, 22.06, (8, 6)), "a10g"),
    ("NVIDIA L4", props(58, 22.03, (8, 9)), "l4"),
    ("NVIDIA L40S", props(142, 44.39, (8, 9)), "l40s"),
    ("NVIDIA A100-SXM4-40GB", props(108, 39.39, (8, 0)), "a100_sxm_40gb"),
    ("A100-SXM4-40GB", props(108, 39.59, (8, 0)), "a100_sxm_40gb"),
    ("NVIDIA A100-PG509-200", props(108, 39.39, (8, 0)), "a100_sxm_40gb"),
    ("NVIDIA A100-SXM4-80GB", props(108, 79.15, (8, 0)), "a100_sxm_80gb"),
    ("NVIDIA A100-PCIE-40GB", props(108, 39.39, (8, 0)), "a100_pcie_40gb"),
    ("NVIDIA A100 80GB PCIe", props(108, 79.15, (8, 0)), "a100_pcie_80gb"),
    ("NVIDIA H100 80GB HBM3", props(132, 79.18, (9, 0)), "h100_sxm"),
    ("nvidia h100  80gb hbm3 ", props(132, 79.18, (9, 0)), "h100_sxm"),
    ("NVIDIA H100 PCIe", props(114, 79.18, (9, 0)), "h100_pcie"),
    ("NVIDIA H100 NVL", props(132, 93.11, (9, 0)), "h100_nvl"),
    ("NVIDIA H200", props(132, 139.8, (9, 0)), "h200"),
    ("NVIDIA B200", props(148, 178.35, (10, 0)), "b200"),
    ("NVIDIA GB200", props(152, 184.3, (10, 0)), "gb200"),
    ("NVIDIA GeForce RTX 3090", props(82, 23.69, (8, 6)), "rtx_3090"),
    ("GeForce RTX 3090", props(82, 23.69, (8, 6)), "rtx_3090"),
    ("NVIDIA GeForce RTX 4090", props(128, 23.64, (8, 9)), "rtx_4090"),
    ("NVIDIA GeForce RTX 5090", props(170, 31.36, (12, 0)), "rtx_5090"),
    ("AMD Instinct MI210", props(104, 63.98, (9, 0), 64), "mi210"),
    ("AMD Instinct MI250X", props(110, 63.98, (9, 0), 64), "mi250x"),
    ("AMD Instinct MI250X/MI250", props(110, 63.98, (9, 0), 64), "mi250x"),
    ("AMD Instinct MI250X / MI250", props(110, 63.98, (9, 0), 64), "mi250x"),
    ("AMD Instinct MI250X / MI250", props(104, 63.98, (9, 0), 64), "mi250"),
    ("AMD INSTINCT MI250 (MCM) OAM AC MBA", props(104, 63.98, (9, 0), 64), "mi250"),
    ("AMD Instinct MI300X", props(304, 191.98, (9, 4), 64), "mi300x"),
    ("AMD Instinct MI300X VF", props(304, 191.98, (9, 4), 64), "mi300x"),
    ("AMD Instinct MI325X", props(304, 255.98, (9, 4), 64), "mi325x"),
    ("AMD Instinct MI355X", props(256, 287.98, (9, 5), 64), "mi355x"),
    ("AMD Instinct MI355X VF", props(256, 287.98, (9, 5), 64), "mi355x"),
]
"""Name, properties as the runtime shows them, and the file whose figures they are."""

NAMELESS = [
    ("", props(304, 191.98, (9, 4), 64), "mi300x"),  # a public vLLM trace
    ("AMD Radeon Graphics", props(304, 191.98, (9, 4), 64), "mi300x"),
    ("gfx942:sramecc+:xnack-", props(304, 191.98, (9, 4), 64), "mi300x"),
    ("gfx942", props(304, 255.98, (9, 4), 64), "mi325x"),
    ("gfx90a:sramecc+:xnack-", props(110, 63.98, (9, 0), 64), "mi250x"),
    ("", props(104, 63.98, (9, 0), 64), None),  # MI210 and MI250 show the same
    ("gfx950", props(256, 287.98, (9, 5), 64), None),  # MI350X and MI355X too
    ("", props(228, 127.5, (9, 4), 64), None),  # MI300A
    ("", props(80, 191.98, (9, 4), 64), None),  # MI308X
    ("", props(38, 23.9, (9, 4), 64), None),  # one partition (CPX, NPS4)
    ("", props(120, 31.98, (9, 0), 64), None),  # MI100
    ("gfx90a", props(304, 191.98, (9, 4), 64), None),  # the name contradicts
    ("gfx942", describe.NOTHING_KNOWN, None),
    ("", DeviceProperties(multiprocessors=304), None),
    ("", describe.NOTHING_KNOWN, None),
]

OTHERS = [
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "cuda", props(14, 4.75, (8, 0))),
    ("NVIDIA A100-SXM4-40GB", "cuda", props(14, 4.75, (8, 0))),  # a MIG slice with the board's name
    ("NVIDIA A100-SXM4-40GB", "cuda", props(42, 19.6, (8, 0))),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cuda", props(16, 9.75, (9, 0))),
    ("NVIDIA H200 MIG 1g.18gb", "cuda", props(16, 16.0, (9, 0))),
    ("GRID A100-40C", "cuda", props(108, 39.0, (8, 0))),
    ("NVIDIA A100X", "cuda", props(108, 79.15, (8, 0))),
    ("NVIDIA A100-SXM-64GB", "cuda", props(124, 63.4, (8, 0))),  # the board of one supercomputer
    ("NVIDIA A800-SXM4-80GB", "cuda", props(108, 79.15, (8, 0))),
    ("NVIDIA A800 80GB PCIe", "cuda", props(108, 79.15, (8, 0))),
    ("NVIDIA A30", "cuda", props(56, 23.6, (8, 0))),
    ("NVIDIA A10", "cuda", props(72, 22.06, (8, 6))),
    ("NVIDIA A40", "cuda", props(84, 44.4, (8, 6))),
    ("NVIDIA L40", "cuda", props(142, 44.4, (8, 9))),
    ("NVIDIA L20", "cuda", props(92, 44.4, (8, 9))),
    ("NVIDIA H20", "cuda", props(78, 95.0, (9, 0))),
    ("NVIDIA H800", "cuda", props(132, 79.1, (9, 0))),
    ("NVIDIA H800 PCIe", "cuda", props(114, 79.1, (9, 0))),
    ("NVIDIA H100 64GB HBM2", "cuda", props(132, 63.4, (9, 0))),
    ("NVIDIA H100", "cuda", props(132, 93.0, (9, 0))),
    ("NVIDIA H200 NVL", "cuda", props(132, 139.8, (9, 0))),
    ("NVIDIA GH200 480GB", "cuda", props(132, 94.5, (9, 0))),
    ("NVIDIA GH200 144G HBM3e", "cuda", props(132, 139.0, (9, 0))),
    ("NVIDIA B100", "cuda", props(148, 178.0, (10, 0))),
    ("NVIDIA B300 SXM6 AC", "cuda", props(148, 267.0, (10, 3))),
    ("NVIDIA GB300", "cuda", props(152, 276.0, (10, 3))),
    ("NVIDIA GB10", "cuda", props(48, 119.6, (12, 1))),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "cuda", props(76, 15.6, (8, 9))),
    ("NVIDIA GeForce RTX 4090 D", "cuda", props(114, 23.6, (8, 9))),
    ("NVIDIA GeForce RTX 4090", "cuda", props(128, 47.4, (8, 9))),  # a rebuilt board of 48 GB
    ("NVIDIA GeForce RTX 5090 D", "cuda", props(170, 31.4, (12, 0))),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", "cuda", props(82, 23.4, (12, 0))),
    ("NVIDIA GeForce RTX 3090 Ti", "cuda", props(84, 23.6, (8, 6))),
    ("NVIDIA GeForce RTX 3080", "cuda", props(68, 9.8, (8, 6))),
    ("NVIDIA GeForce RTX 2080 Ti", "cuda", props(68, 10.76, (7, 5))),
    ("NVIDIA T400 4GB", "cuda", props(6, 3.8, (7, 5))),
    ("NVIDIA T4G", "cuda", props(40, 14.6, (7, 5))),
    ("Tesla V100-SXM3-32GB", "cuda", props(80, 31.7, (7, 0))),
    ("Tesla V100S-PCIE-32GB", "cuda", props(80, 31.7, (7, 0))),
    ("Tesla V100-FHHL-16GB", "cuda", props(80, 15.8, (7, 0))),
    ("Tesla P100-SXM2-16GB", "cuda", props(56, 15.9, (6, 0))),
    ("AMD Instinct MI300X", "hip", props(38, 23.9, (9, 4), 64)),  # one partition (CPX, NPS4)
    ("AMD Instinct MI300X HF", "hip", props(304, 191.98, (9, 4), 64)),
    ("AMD Instinct MI300A", "hip", props(228, 127.5, (9, 4), 64)),
    ("AMD Instinct MI308X", "hip", props(80, 191.98, (9, 4), 64)),
    ("AMD Instinct MI350X", "hip", props(256, 287.98, (9, 5), 64)),
    ("AMD Instinct MI100", "hip", props(120, 31.98, (9, 0), 64)),
    ("AMD Instinct MI250X / MI250", "hip", describe.NOTHING_KNOWN),  # either
    ("AMD Instinct MI300X", "cuda", props(304, 191.98, (9, 4), 64)),
    ("NVIDIA H100 80GB HBM3", "hip", props(132, 79.18, (9, 0))),
    ("NVIDIA H100 80GB HBM3 and more", "cuda", props(132, 79.18, (9, 0))),
    ("not an NVIDIA L4", "cuda", props(58, 22.0, (8, 9))),
    ("*", "cuda", props(58, 22.0, (8, 9))),
    ("NVIDIA [L]4", "cuda", props(58, 22.0, (8, 9))),
    ("", "cuda", props(132, 79.18, (9, 0))),
    ("", "", describe.NOTHING_KNOWN),
]


def kind_of(properties: DeviceProperties) -> str:
    return "hip" if properties.warp_size == 64 else "cuda"


@pytest.mark.parametrize(("name", "properties", "expected"), WHOLE)
def test_a_device_is_found_by_its_name(name, properties, expected):
    assert stem(name, kind_of(properties), properties) == expected


@pytest.mark.parametrize(("name", "properties", "expected"), [row for row in WHOLE if " / " not in row[0]])
def test_an_old_trace_without_properties_is_found_by_its_name(name, properties, expected):
    if "/" in name:  # shared by two cards
        expected = None
    assert stem(name, kind_of(properties)) == expected


@pytest.mark.parametrize(("name", "properties", "expected"), NAMELESS)
def test_a_device_without_a_name_is_found_by_all_its_properties_or_not_at_all(name, properties, expected):
    assert stem(name, "hip", properties) == expected


@pytest.mark.parametrize(("name", "kind", "properties"), OTHERS)
def test_another_device_is_never_taken_for_one(name, kind, properties):
    assert stem(name, kind, properties) is None
    assert "--device FILE" in unknown_device_note(name, kind, properties)


def test_every_description_is_in_the_table():
    assert {expected for *_, expected in WHOLE} == {path.stem for path in BUILT_IN}


@pytest.mark.parametrize("path", BUILT_IN, ids=lambda p: p.stem)
def test_every_listed_name_is_of_exactly_one_device(path):
    device = load_device(path)
    shown = DeviceProperties(
        int(device.memory_bytes * 0.98), device.multiprocessors, device.warp_size, compute_of(device.arch)
    )
    for name in (*device.match, device.name):
        assert not set("*?[") & set(name), "a wildcard could take in another device"
        assert find_device(name, device.kind, shown) == device
    assert device_called(path.stem) == device_called(device.name) == device


@pytest.mark.parametrize(("properties", "expected"), [row[1:] for row in WHOLE])
def test_the_memory_that_runtimes_show_is_well_inside_what_is_allowed(properties, expected):
    share = properties.memory_bytes / load_device(describe.BUILT_IN / f"{expected}.yaml").memory_bytes
    assert MEMORY_SHOWN[0] + 0.04 < share < MEMORY_SHOWN[1] - 0.02


def test_the_note_says_what_contradicts_a_name():
    slice_ = unknown_device_note("NVIDIA A100-SXM4-40GB", "cuda", props(14, 4.75, (8, 0)))
    assert "which has the name of NVIDIA A100 SXM4 40GB but 14 multiprocessors where that has 108" in slice_
    rebuilt = unknown_device_note("NVIDIA GeForce RTX 4090", "cuda", props(128, 47.4, (8, 9)))
    assert "but 47.4 GiB of memory where that has 24 GiB" in rebuilt
    either = unknown_device_note("AMD Instinct MI250X / MI250", "hip")
    assert "may be AMD Instinct MI250 (one GCD) or AMD Instinct MI250X (one GCD) (name it with --device)" in either


def test_the_note_has_the_name_as_the_trace_has_it_and_what_its_kernels_reached():
    note = unknown_device_note("NVIDIA GeForce RTX 2080 Ti", "cuda", props(68, 10.76, (7, 5)), "512 GB/s (9 kernels)")
    assert note.startswith("No description of 'NVIDIA GeForce RTX 2080 Ti' (cuda, 68 multiprocessors, 10.8 GiB): ")
    assert "reached, at best 512 GB/s (9 kernels). Describe it in one file (fusion-audit devices new)" in note
    assert str(describe.user_folder()) in note
    assert "this hip device" in unknown_device_note("", "hip", props(110, 64.0, (9, 4), 64))
    nothing = unknown_device_note("", "hip", achieved="1.2 TB/s (9 kernels)")
    assert nothing.startswith("The trace does not say which hip device it ran on: ")
    assert "reached, at best 1.2 TB/s (9 kernels). Pass --device NAME" in nothing


def test_a_users_own_wildcard_stops_at_what_it_says_of_the_device(tmp_path):
    own = tmp_path / "config" / "devices" / "slice.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("name: mine\nkind: cuda\nmatch: ['*A100*']\nmultiprocessors: 14\n", encoding="utf-8")
    assert find_device("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "cuda", props(14, 4.75, (8, 0))).name == "mine"
    assert stem("NVIDIA A100-SXM4-40GB", "cuda", props(108, 39.4, (8, 0))) == "a100_sxm_40gb"


def test_a_device_is_called_by_file_by_stem_or_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert device_called("H100_SXM").name == device_called("nvidia h100 sxm5 80gb").name == "NVIDIA H100 SXM5 80GB"
    Path("l4").write_text("name: a file\nkind: cuda\n", encoding="utf-8")
    assert device_called("l4").name == "a file"  # a file that is there wins


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (
            "h100",
            "no device 'h100' and no file of this name; nearest: h100_nvl, h100_pcie, h100_sxm; see: fusion-audit",
        ),
        ("zzz", "no device 'zzz' and no file of this name; see: fusion-audit devices list"),
        ("", "cannot read the device description"),
        ("absent.yaml", "absent.yaml: cannot read the device description"),
        ("no/where", "no/where: cannot read the device description"),
    ],
)
def test_a_device_that_is_not_there_is_one_clear_sentence(place, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AuditError) as caught:
        device_called(place)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "numbers"),
    [
        ("sm_70", (7, 0)), ("sm_90a", (9, 0)), ("sm_100", (10, 0)), ("sm_120", (12, 0)),
        ("gfx90a", (9, 0)), ("gfx942", (9, 4)), ("gfx950", (9, 5)), ("gfx1100", (11, 0)), ("hopper", None),
        ("sm_9", None),
    ],
)  # fmt: skip
def test_the_numbers_that_a_runtime_reports_of_an_architecture(arch, numbers):
    assert compute_of(arch) == numbers


# --- deviceProperties ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [b"null", b"3", b"{}", b"[]", b"[null, 3, []]", b"[" * 5000 + b"]" * 5000, b"{", b"\xff"],
)
def test_device_properties_of_another_form_are_unknown(raw):
    assert decode_devices(raw) == []


def test_odd_values_of_device_properties_are_unknown():
    raw = b"""[{"id": "x", "name": null, "totalGlobalMem": -1, "numSms": true, "warpSize": "32", "computeMajor": 1e400},
               {"id": 1, "name": " NVIDIA L4 ", "totalGlobalMem": 2.36e10, "numSms": 99999999999999999999,
                "computeMajor": 8, "computeMinor": 9, "warpSize": 32}]"""
    first, second = decode_devices(raw.replace(b"1e400", b"-3"))
    assert (first.id, first.name, first.properties) == (0, "", DeviceProperties())
    assert (second.id, second.name) == (1, "NVIDIA L4")
    assert second.properties == DeviceProperties(23_600_000_000, 0, 32, (8, 9))


def test_a_name_that_is_not_utf8_or_too_long_leaves_the_rest_known():
    (found,) = decode_devices(b'[{"name": "L\xff4", "numSms": 58}]')
    assert (found.name, found.properties.multiprocessors) == ("L\ufffd4", 58)
    (found,) = decode_devices(b'[{"name": "' + b"x" * 2**20 + b'"}]')
    assert len(found.name) == 256


KERNEL = '{"ph": "X", "cat": "kernel", "name": "k", "ts": %d, "dur": 1, "args": {"device": %d, "correlation": 1}}'


def test_the_device_is_the_one_that_ran_most_kernels(tmp_path):
    events = ", ".join(KERNEL % (ts, device) for ts, device in enumerate((0, 1, 1)))
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"deviceProperties": [{"id": 0, "name": "NVIDIA L4", "numSms": 58}, {"id": 1, "name": "NVIDIA L40S", '
        f'"numSms": 142}}], "traceEvents": [{events}]}}',
        encoding="utf-8",
    )
    assert load_trace(trace).device_name == "NVIDIA L40S"


def test_a_nameless_device_of_replayed_graphs_is_told_by_its_warps(tmp_path):
    trace = tmp_path / "t.json"
    trace.write_text(
        '{"deviceProperties": [{"id": 0, "name": "", "numSms": 304, "warpSize": 64, "computeMajor": 9, "computeMinor": '
        f'4, "totalGlobalMem": 206141652992}}], "traceEvents": [{KERNEL % (0, 0)}]}}',
        encoding="utf-8",
    )
    loaded = load_trace(trace)
    assert stem(loaded.device_name, loaded.device_kind, loaded.device.properties) == "mi300x"


def test_a_link_to_nothing_among_the_users_own_is_one_clear_sentence(tmp_path):
    folder = tmp_path / "config" / "devices"
    folder.mkdir(parents=True)
    (folder / "gone.yaml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(AuditError, match=r"gone\.yaml: cannot read the device description: No such file"):
        find_device("NVIDIA L4", "cuda")


@pytest.mark.parametrize("properties", ["null", "[]", '"x"', '[{"name": 3}]', "[[[]]]"])
def test_a_trace_with_odd_device_properties_is_read(tmp_path, properties):
    trace = tmp_path / "t.json"
    trace.write_text(f'{{"deviceProperties": {properties}, "traceEvents": [{KERNEL % (0, 0)}]}}', encoding="utf-8")
    loaded = load_trace(trace)
    assert (len(loaded.kernels), loaded.device_name) == (1, "")


@pytest.mark.skipif(not TRACES.is_dir(), reason="the folder of shared traces is not beside this checkout")
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("a100_simple_add.json.gz", "a100_sxm_40gb"),
        ("h100_small_transformer_training.json.gz", "h100_sxm"),
        ("vllm_decode_graph_replay.json.gz", "mi300x"),
        ("dlrm_8_ranks/rank0.json.gz", "v100_sxm2_32gb"),
        ("cpu_only.json.gz", None),
    ],
)
def test_the_device_of_a_real_trace(file, expected):
    trace = load_trace(TRACES / file)
    assert stem(trace.device_name, trace.device_kind, trace.device.properties) == expected
