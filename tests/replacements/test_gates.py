"""The static gates: a kernel with one fault fails one gate, its healthy twin none, and every kernel passes them all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fused_replacements.gates.__main__ import main
from fused_replacements.gates.accesses import Access, accesses
from fused_replacements.gates.check import failures, judge
from fused_replacements.gates.facts import Expected, Facts
from fused_replacements.gates.ir import parse
from fused_replacements.gates.machine import Machine, read_amdgcn, read_ptx
from fused_replacements.gates.occupancy import Occupancy, estimate
from fused_replacements.gates.offsets import narrow_offsets
from fused_replacements.gates.report import HEAD, as_json, markdown, summary, text
from fused_replacements.gates.run import ALL_TARGETS, Result, Task, kernel_modules, representative, run, tasks
from fused_replacements.gates.targets import TARGETS, named
from fused_replacements.gates.usage import Usage, read_amd_metadata

pytest.importorskip("triton", reason="Triton has no build here")

QUICK = ((16384, "bf16"), (4095, "fp32"))
"""The most registers that a row takes, and rows that start at any address."""

FAULTS = {
    "reads_twice": "bytes",
    "writes_twice": "bytes",
    "says too much": "bytes",
    "apart": "width",
    "unknown alignment": "width",
    "oversized tile": "spills",
    "fp64 eps": "fp64",
    "narrow_rows": "offsets",
    "narrow_rows_in_a_loop": "offsets",
    "flat in 32 bits": "offsets",
    "columns, of a bias as long as rows": "offsets",
    "no matrix instructions": "tensor cores",
    "forgets a parameter": "compiles",
}
HEALTHY = (
    "healthy", "apart, and says so", "tile that fits", "row_statistic", "flat in 64 bits", "columns", "multiply",
)  # fmt: skip


@pytest.fixture(scope="module")
def examples() -> dict[tuple[str, str], Result]:
    """The kernels of ``gate_kernels``, compiled for every target: by label and target."""
    found = run(tasks(["gate_kernels"], [1024], ["bf16"]))
    return {(result.facts.expected.label, result.target): result for result in found}


@pytest.mark.parametrize("target", ALL_TARGETS)
@pytest.mark.parametrize(("label", "gate"), FAULTS.items())
def test_a_fault_fails_its_gate_and_no_other(
    examples: dict[tuple[str, str], Result], label: str, gate: str, target: str
) -> None:
    assert [verdict.gate for verdict in examples[label, target].failed] == [gate]


@pytest.mark.parametrize("target", ALL_TARGETS)
@pytest.mark.parametrize("label", HEALTHY)
def test_a_healthy_kernel_passes(examples: dict[tuple[str, str], Result], label: str, target: str) -> None:
    assert examples[label, target].failed == []


def test_every_example_is_judged(examples: dict[tuple[str, str], Result]) -> None:
    assert {label for label, _ in examples} == {*FAULTS, *HEALTHY}


def test_a_verdict_names_what_is_read_twice(examples: dict[tuple[str, str], Result]) -> None:
    (verdict,) = examples["reads_twice", "sm_90"].failed
    assert verdict.text.startswith("loads 4,096 bytes a program (x 2 × 2,048); the case says 2,048")


def test_what_a_kernel_uses_is_listed(examples: dict[tuple[str, str], Result]) -> None:
    for target in ALL_TARGETS:
        healthy, big = examples["healthy", target], examples["tile that fits", target]
        assert 8 < healthy.facts.usage.registers < big.facts.usage.registers
        assert 0 < big.occupancy.fraction <= healthy.occupancy.fraction <= 1
        assert big.occupancy.programs < healthy.occupancy.programs
        assert examples["multiply", target].facts.usage.shared_bytes >= 64 * 32 * 2
        assert set(healthy.facts.machine.loads + healthy.facts.machine.stores) == {16}


@pytest.fixture(scope="module")
def quick() -> dict[str, list[Result]]:
    """Every kernel at ``QUICK``, for every target: by module."""
    return _by_module([Task(name, *pair, to) for name in kernel_modules() for pair in QUICK for to in ALL_TARGETS])


def _by_module(todo: list[Task]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {task.module: [] for task in todo}
    for result in run(todo):
        found[result.module].append(result)
    return found


@pytest.mark.parametrize("module", kernel_modules())
def test_every_kernel_passes_every_gate(quick: dict[str, list[Result]], module: str) -> None:
    assert {result.target for result in quick[module]} == set(ALL_TARGETS)
    assert not any(result.failed for result in quick[module]), text([r for r in quick[module] if r.failed])


@pytest.fixture(scope="module")
def thorough() -> dict[str, list[Result]]:
    return _by_module(representative(kernel_modules(), ["sm_90"]))


@pytest.mark.thorough
@pytest.mark.parametrize("module", kernel_modules())
def test_every_kernel_passes_every_gate_at_more_widths(thorough: dict[str, list[Result]], module: str) -> None:
    assert not any(result.failed for result in thorough[module]), text([r for r in thorough[module] if r.failed])


PTX = """
	ld.param.b64 	%rd7, [k_param_0];
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	@!%p1 ld.global.L1::evict_last.b16 { %rs1 }, [ %rd1 + 0 ];
	ld.global.nc.v2.b64 { %rd1, %rd2 }, [ %rd1 + 0 ];
	cp.async.cg.shared.global [ %r9 + 0 ], [ %rd4 + 0 ], 0x10, %r11;
	ld.shared.v4.b32 {%r1, %r2, %r3, %r4}, [%r5];
	@%p2 st.global.v2.b32 [ %rd5 + 0 ], { %r17, %r18 };
	st.shared.b32 	[%r84], %r80;
	@%p3 atom.global.gpu.acq_rel.add.f32 %r1, [ %rd1 + 0 ], %r2;
	cvt.rn.f32.f64 	%r1, %fd1;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1}, %rd1, %rd2, 1, 1, 1, 0, 1;
"""
AMDGCN = """
	s_load_dwordx8 s[4:11], s[0:1], 0x8
	buffer_load_dwordx4 v[26:29], v20, s[4:7], 0 offen
	global_load_ushort v1, v[2:3], off
	buffer_load_short_d16_hi v1, v20, s[4:7], 0 offen
	ds_read_b128 v[0:3], v4
	global_store_dwordx2 v[2:3], v[0:1], off
	buffer_store_byte v1, v20, s[4:7], 0 offen
	global_atomic_add_f32 v[0:1], v2, off
	v_cvt_f64_f32_e32 v[0:1], v2
	v_mfma_f32_32x32x8_bf16 v[0:15], v[16:17], v[18:19], v[0:15]
"""


def test_ptx_is_read() -> None:
    assert read_ptx(PTX) == Machine([16, 16, 2, 16], [8], 1, ["cvt.rn.f32.f64"], 1)


def test_gcn_assembly_is_read() -> None:
    assert read_amdgcn(AMDGCN) == Machine([16, 2, 2], [8, 1], 1, ["v_cvt_f64_f32_e32"], 1)


def test_an_unknown_memory_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown width: tfe"):
        read_amdgcn("\tbuffer_load_tfe v1, v20, s[4:7], 0 offen")


def test_amd_metadata_is_read() -> None:
    metadata = "".join(
        f"    .{name}: {value}\n"
        for name, value in {
            "vgpr_count": 58, "group_segment_fixed_size": 32, "private_segment_fixed_size": 16, "vgpr_spill_count": 4,
            "sgpr_spill_count": 1,
        }.items()
    )  # fmt: skip
    assert read_amd_metadata(metadata, 1024) == Usage(58, 1056, 16, 4)
    with pytest.raises(RuntimeError, match=r"no \.vgpr_spill_count"):
        read_amd_metadata(metadata.replace("vgpr_spill", "spill"), 0)


TTGIR = """
#blocked = #ttg.blocked<{sizePerThread = [8], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>
#blocked1 = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [8, 4], warpsPerCTA = [4, 1], order = [1, 0]}>
#linear = #ttg.linear<{register = [[1], [2], [0]], lane = [[4], [8], [16], [32], [64]], warp = [[128], [0]]}>
  tt.func public @k(%x: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc("x"(#loc)), %s: !tt.ptr<f32> loc("s"(#loc))) {
    %0 = tt.splat %x : !tt.ptr<bf16> -> tensor<TILE> loc(#loc1)
    %1 = tt.addptr %0, %cols : tensor<TILE>, tensor<4xi32> loc(callsite(#loc3 at #loc51))
    %2 = tt.load %1, %mask, %other : tensor<TILE> loc(#loc2)
    %3 = tt.load %s : !tt.ptr<f32> loc(#loc2)
"""


@pytest.mark.parametrize(
    ("tile", "shape", "thread_elements"),
    [
        ("4096x!tt.ptr<bf16>, #blocked", (4096,), 32),
        ("1000x!tt.ptr<bf16>, #blocked", (1000,), 8),  # padded to the 1024 that all threads hold
        ("64x!tt.ptr<bf16>, #blocked", (64,), 8),  # the other threads hold copies
        ("4x!tt.ptr<bf16>, #blocked", (4,), 4),
        ("64x64x!tt.ptr<bf16>, #blocked1", (64, 64), 32),
        ("64x!tt.ptr<bf16>, #ttg.slice<{dim = 1, parent = #blocked1}>", (64,), 2),
        ("64x!tt.ptr<bf16>, #ttg.slice<{dim = 0, parent = #blocked1}>", (64,), 16),
        ("256x!tt.ptr<bf16>, #linear", (256,), 4),
        ("512x!tt.ptr<bf16>, #linear", (512,), 8),
        ("64x64x!tt.ptr<bf16>, #mma", (64, 64), None),
    ],
)
def test_a_thread_s_share_of_a_tile(tile: str, shape: tuple[int, ...], thread_elements: int | None) -> None:
    tensor, scalar = accesses(parse(TTGIR.replace("TILE", tile)))
    assert (tensor.argument, tensor.shape, tensor.element_bytes, tensor.thread_elements) == (
        "x", shape, 2, thread_elements,
    )  # fmt: skip
    assert scalar == Access("load", "s", (), 4, 1, 1)


def test_the_widest_access_is_what_a_thread_has_in_a_run() -> None:
    row = Access("load", "x", (1024,), 2, 8, 1024)
    assert [row.widest(threads) for threads in (64, 128, 256, 512, 2048)] == [16, 16, 8, 4, 2]
    assert replace(row, shape=(256, 4), inner=4).widest(32) == 8


TTIR = """
  tt.func public @k(%x: !tt.ptr<bf16>, %n: i32, %stride: i32) {
    %pid = tt.get_program_id x : i32
    %zero = arith.constant 0 : i32
    %one = arith.constant 1 : i32
    BODY
    tt.return
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("%o = arith.muli %pid, %stride : i32\n%p = tt.addptr %x, %o : !tt.ptr<bf16>, i32", "index × stride"),
        # 64 bits after the product are too late
        (
            "%m = arith.muli %pid, %stride : i32\n%o = arith.extsi %m : i32 to i64\n"
            "%p = tt.addptr %x, %o : !tt.ptr<bf16>, i64",
            "index × stride",
        ),
        # a product in 32 bits that is an index, and multiplied again in 64
        (
            "%c = arith.constant 64 : i32\n%m = arith.muli %pid, %c : i32\n%w = arith.extsi %m : i32 to i64\n"
            "%s = arith.extsi %stride : i32 to i64\n%o = arith.muli %w, %s : i64\n"
            "%p = tt.addptr %x, %o : !tt.ptr<bf16>, i64",
            None,
        ),
        # a constant as stride, shifted
        (
            "%c = arith.constant 12 : i32\n%o = arith.shli %pid, %c : i32\n%p = tt.addptr %x, %o : !tt.ptr<bf16>, i32",
            "program × constant",
        ),
        # a row that was looked up
        (
            "%i = tt.load %x : !tt.ptr<i32>\n%o = arith.muli %i, %stride : i32\n"
            "%p = tt.addptr %x, %o : !tt.ptr<bf16>, i32",
            "index × stride",
        ),
        # a pointer that a loop moves on by a product
        (
            "%p:2 = scf.for %i = %zero to %n step %one iter_args(%q = %x, %r = %zero) -> "
            "(!tt.ptr<bf16>, i32)  : i32 {\n"
            "%o = arith.muli %i, %stride : i32\n%t = tt.addptr %q, %o : !tt.ptr<bf16>, i32\n"
            "scf.yield %t, %r : !tt.ptr<bf16>, i32\n}\n%u = tt.bitcast %p#0 : !tt.ptr<bf16> -> !tt.ptr<bf16>",
            "index × stride",
        ),
        # either branch
        (
            "%p = scf.if %cond -> (!tt.ptr<bf16>) {\n"
            "scf.yield %x : !tt.ptr<bf16>\n} else {\n%o = arith.muli %pid, %stride : i32\n"
            "%t = tt.addptr %x, %o : !tt.ptr<bf16>, i32\nscf.yield %t : !tt.ptr<bf16>\n}",
            "index × stride",
        ),
        # a product that no address depends on
        ("%m = arith.muli %pid, %stride : i32\n%p = tt.addptr %x, %pid : !tt.ptr<bf16>, i32", None),
        # the number of columns is bounded
        (
            "%c = arith.constant 64 : i32\n%o = arith.muli %one, %c : i32\n%p = tt.addptr %x, %o : !tt.ptr<bf16>, i32",
            None,
        ),
    ],
)
def test_offsets_in_32_bits_are_found(body: str, expected: str | None) -> None:
    last = "%u" if "%u = " in body else "%p"
    module = parse(TTIR.replace("BODY", f"{body}\n%v = tt.load {last} : !tt.ptr<bf16>"))
    assert narrow_offsets(module) == ([] if expected is None else [f"x: {expected} is computed in 32 bits"])


FACTS = Facts(
    Expected("k", 4, 2048, 2048, False),
    accesses=[Access("load", "x", (1024,), 2, 8, 1024), Access("store", "y", (1024,), 2, 8, 1024)],
    machine=Machine([16], [16]),
    usage=Usage(32, 0, 0),
)


def test_code_that_moves_more_than_its_tiles_fails() -> None:
    again = replace(FACTS, machine=Machine([16, 16], [16]))
    assert failures(judge(FACTS, 1024, TARGETS[0])) == []
    assert [verdict.gate for verdict in failures(judge(again, 1024, TARGETS[0]))] == ["bytes", "width"]


@pytest.mark.parametrize(("width", "passes"), [(1024, True), (1000, True), (513, True), (512, False), (1025, False)])
def test_tiles_are_padded_to_the_next_power_of_two_and_no_further(width: int, passes: bool) -> None:
    facts = replace(FACTS, expected=replace(FACTS.expected, loads=2 * width, stores=2 * width))
    assert ("bytes" not in [verdict.gate for verdict in failures(judge(facts, width, TARGETS[0]))]) == passes


def test_one_register_in_memory_is_a_spill() -> None:
    for usage in (Usage(255, 0, 8), Usage(512, 0, 0, spilled_registers=1)):
        assert [v.gate for v in failures(judge(replace(FACTS, usage=usage), 1024, TARGETS[0]))] == ["spills"]


@pytest.mark.parametrize(
    ("target", "registers", "shared", "warps", "expected"),
    [
        ("sm_80", 64, 0, 8, Occupancy(4, 0.5, "registers")),  # 65,536 registers / 64 are 1,024 threads of 2,048
        ("sm_80", 32, 0, 32, Occupancy(2, 1.0, "warps")),
        ("sm_80", 32, 0, 1, Occupancy(32, 0.5, "programs")),
        ("sm_80", 32, 80 * 1024, 4, Occupancy(2, 0.125, "shared memory")),
        ("sm_90", 32, 80 * 1024, 4, Occupancy(2, 0.125, "shared memory")),
        ("sm_90", 32, 228 * 1024, 4, Occupancy(0, 0.0, "shared memory")),  # more than a program may have
        ("sm_100", 33, 0, 16, Occupancy(3, 0.75, "registers")),  # rounded up to 40
        ("gfx942", 64, 0, 4, Occupancy(8, 1.0, "warps")),
        ("gfx942", 65, 0, 4, Occupancy(7, 0.875, "registers")),  # 512 / 72
        ("gfx942", 512, 0, 4, Occupancy(1, 0.125, "registers")),
        ("gfx942", 64, 33 * 1024, 4, Occupancy(1, 0.125, "shared memory")),
    ],
)
def test_occupancy(target: str, registers: int, shared: int, warps: int, expected: Occupancy) -> None:
    assert estimate(named(target), registers, shared, warps) == expected


def test_a_target_has_its_short_name_too() -> None:
    assert named("90") is named("sm_90")
    with pytest.raises(ValueError, match="no target 'sm_70'; there are sm_80, sm_90, sm_100, gfx942"):
        named("sm_70")


@pytest.fixture
def folder_of_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable folder, for worker processes too."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_module_that_fails_is_reported_and_the_others_judged(folder_of_kernels: Path) -> None:
    (folder_of_kernels / "broken_kernels.py").write_text("raise RuntimeError('no such\\ndevice')\n")
    (folder_of_kernels / "empty_kernels.py").write_text("def cases(width, dtype):\n    return iter(())\n")
    (folder_of_kernels / "deadly_kernels.py").write_text("import os\nos._exit(3)\n")
    names = ["broken_kernels", "empty_kernels", "deadly_kernels"]
    results = list(run(tasks(names, [64], ["fp16"], ["sm_90"]), jobs=1))
    assert {result.module: [verdict.text for verdict in result.failed] for result in results} == {
        "broken_kernels": ["RuntimeError: device"],
        "deadly_kernels": ["the compiler ended its process"],
        "empty_kernels": ["no case at width 64 in fp16"],
    }


def test_tables(examples: dict[tuple[str, str], Result]) -> None:
    results = [examples[label, "sm_90"] for label in ("healthy", "reads_twice", "forgets a parameter")]
    lines = text(results).splitlines()
    assert lines[0].split() == " ".join(HEAD).split()
    assert lines[1].startswith("gate_kernels  forgets a parameter  sm_90   0 of 1")
    assert [line.rpartition("  ")[2] for line in lines[1:4]] == ["FAILS compiles", "ok", "FAILS bytes"]
    assert lines[5].startswith("gate_kernels, reads_twice, 1024 × bf16, sm_90: bytes: loads 4,096 bytes a program")
    assert lines[-1] == summary(results) == "3 kernels compiled, 2 fail a gate."
    assert markdown(results).splitlines()[1] == "|---" * 9 + "|"
    first, second, third = json.loads(as_json(results))
    assert (first["load_bytes"], first["thread_loads_bytes"], second["load_bytes"]) == (2048, [16, 16], 4096)
    assert third["occupancy"] is None


def test_the_command_writes_json_and_says_whether_all_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--kernel", "rms_norm", "--target", "90", "--width", "1024", "--dtype", "bf16", "--jobs", "1"]
    assert main([*arguments, "--json", str(tmp_path / "gates.json")]) == 0
    assert "none fails a gate." in capsys.readouterr().out
    entries = json.loads((tmp_path / "gates.json").read_text())
    assert {entry["kernel"] for entry in entries} == {"rms_norm"}
    assert all(not verdict["failed"] for entry in entries for verdict in entry["verdicts"])


def test_the_command_knows_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--kernel", "nothing"]) == 2
    assert "no kernels of that name; there are " in capsys.readouterr().err
