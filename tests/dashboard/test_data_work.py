"""Bytes and arithmetic from columns, where a step's time goes, and the roofline of both."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from audited import NORMS, audited, graph, save
from kernel_tables import table

from auditor.document import DeviceInfo
from auditor.errors import AuditError
from auditor.graph.model import Kernel
from auditor.graph.ssa import parse
from auditor.graph.tables import to_tables
from auditor.graph.traffic import traffic_of
from auditor.report.waterfall import split
from auditor.store import Store
from dashboard.context import Context, installed
from dashboard.data.op_work import OpWork, op_work
from dashboard.data.roofline import place, roofline
from dashboard.data.step import step_time
from dashboard.data.stored import document
from dashboard.data.words import from_texts

GATHERS = """
t: f32[1000, 64]
i: i64[32]
x: bf16[4, 8, 64]
m: bool[4, 8, 64]
e = aten.embedding(t, i)
v = aten.view(x, [32, 64])
a = aten.add(v, v)
w = aten.transpose(v, 0, 1)
b = aten.mul(w, w)
s = aten.slice(x, 0, 0, 2)
c = aten.exp(s)
d = aten.cat([a, a, v], 0)
n = aten.native_layer_norm(x, [64], None, None, 1e-05)
f = aten.masked_fill(x, m, 0.0)
z = aten.zeros_like(x)
return e
"""


@pytest.fixture(autouse=True)
def _reading(store: Store) -> Iterator[None]:
    with installed(Context(store=store)):
        yield


@pytest.mark.parametrize("text", [NORMS, GATHERS], ids=["norms", "views and gathers"])
def test_bytes_are_those_of_the_op_graph(store: Store, text: str) -> None:
    run = save(store, text)

    found = op_work(run)

    assert found.bytes.tolist() == [traffic_of(op).total for op in graph(text).ops]


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("a: f32[8, 32]\nb: f32[32, 16]\ny = aten.mm(a, b)", 2 * 8 * 16 * 32),
        ("c: f32[16]\na: f32[8, 32]\nb: f32[32, 16]\ny = aten.addmm(c, a, b)", 2 * 8 * 16 * 32),
        ("a: f32[4, 8, 32]\nb: f32[4, 32, 16]\ny = aten.bmm(a, b)", 2 * 4 * 8 * 16 * 32),
        ("a: f32[8, 32]\ny = aten.silu(a)", 8 * 32),
        ("a: f32[8, 32]\ny = aten.sum(a, [-1], True)", 8 * 32),
        ("a: f32[8, 32]\ny = aten._softmax(a, -1, False)", 5 * 8 * 32),
        ("a: f32[8, 32]\ny = aten.clone(a)", 0),
        (
            "q: f32[2, 4, 16, 8]\nk: f32[2, 4, 32, 8]\nv: f32[2, 4, 32, 8]\n"
            "y = aten.scaled_dot_product_attention(q, k, v)",
            4 * 2 * 4 * 16 * 32 * 8,
        ),
    ],
)
def test_arithmetic_is_counted_from_shapes(store: Store, text: str, flops: float) -> None:
    run = save(store, f"{text}\nreturn y")

    assert op_work(run).flops.tolist() == [flops]


def test_arithmetic_of_a_convolution(store: Store) -> None:
    text = (
        "x: f32[2, 3, 8, 8]\nw: f32[16, 3, 3, 3]\n"
        "y = aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)\nreturn y"
    )
    made = parse(text)
    results = made.ops[0].outputs[0].numel
    made.ops[0].kernels = (Kernel("conv", 0.0, 1.0),)
    run = store.save(audited(made), to_tables(made))

    assert op_work(run).flops.tolist() == [2 * results * 3 * 3 * 3]


def test_a_run_without_values_has_no_work(store: Store) -> None:
    made = graph(NORMS)
    tables = to_tables(made)
    del tables["values"]
    run = store.save(audited(made), tables)

    with pytest.raises(AuditError, match="has no table 'values'"):
        op_work(run)
    found = roofline(run)
    assert (found.points, len(found.remarks)) == ((), 1)
    assert "Shapes are not at hand" in found.remarks[0]


def test_the_step_is_split_as_the_report_splits_it(store: Store) -> None:
    run = save(store)

    found, expected = step_time(run), split(document(run), graph(NORMS))

    assert found == expected


def test_collectives_and_kernels_of_no_op_are_parts_of_their_own(store: Store) -> None:
    made = graph(NORMS)
    made.step_us = 1000.0
    made.unlinked = [Kernel("ncclDevKernel_AllReduce", 900.0, 40.0, 3), Kernel("mystery", 950.0, 25.0, 3)]
    run = store.save(audited(made), to_tables(made))
    before = split(document(run), made)
    assert before is not None

    found = step_time(run)

    assert found is not None
    us = {part.css: part.us for part in found.parts}
    assert us["collective"] == pytest.approx(40.0)
    assert us["unlinked"] == pytest.approx(25.0)
    compute = next(part.us for part in before.parts if part.css == "compute")
    assert us["compute"] == pytest.approx((compute or 0.0) - 25.0)  # the report tells collectives apart itself
    inner = [part for part in found.parts if part.css not in ("whole", "after")]
    assert sum(part.us or 0.0 for part in inner) == pytest.approx(1000.0)
    assert [part.start_us for part in inner] == pytest.approx(np.cumsum([0.0, *(p.us or 0.0 for p in inner[:-1])]))


def test_a_run_that_was_not_timed_has_no_split(store: Store) -> None:
    made = parse(NORMS)
    run = store.save(audited(made), to_tables(made))

    assert step_time(run) is None


H100 = DeviceInfo(name="NVIDIA H100 80GB HBM3", kind="cuda", peak_gbps=1.0)


def work(flops: list[float], bytes_: list[float], dtype: str = "bf16") -> OpWork:
    return OpWork(np.array(bytes_), np.array(flops), from_texts(np.zeros(len(flops), np.int32), [dtype]))


def test_kernels_of_one_name_are_one_point() -> None:
    known = table(
        [
            {"start": 0, "dur": 10, "name": "gemm", "kind": "gemm", "op": 0},
            {"start": 20, "dur": 30, "name": "gemm", "kind": "gemm", "op": 1},
            {"start": 60, "dur": 5, "name": "add", "kind": "pointwise", "op": 2},
        ]
    )

    found = place(known, work([4e9, 6e9, 1e6], [1e6, 3e6, 12e6]), H100)

    assert [(p.name, p.kernels, p.dur_us) for p in found.points] == [("gemm", 2, 40.0), ("add", 1, 5.0)]
    gemm, add = found.points
    assert gemm.intensity == pytest.approx(10e9 / 4e6)
    assert gemm.gflops == pytest.approx(10e9 / 40e-6 / 1e9)
    assert add.gbps == pytest.approx(12e6 / 5e-6 / 1e9)
    assert (found.peak_gbps, found.left_out) == (3350.0, 0)
    assert found.tflops == {"bf16": 989.4}


def test_an_op_of_two_kernels_shares_its_work_by_their_time() -> None:
    known = table(
        [
            {"start": 0, "dur": 30, "name": "main", "kind": "gemm", "op": 0},
            {"start": 30, "dur": 10, "name": "reduce", "kind": "gemm", "op": 0},
        ]
    )

    found = place(known, work([8e9], [4e6]), H100)

    assert {p.name: p.flops for p in found.points} == pytest.approx({"main": 6e9, "reduce": 2e9})


def test_kernels_without_a_place_are_counted_and_said() -> None:
    known = table(
        [
            {"start": 0, "dur": 5, "name": "copy", "kind": "copy", "op": 0},
            {"start": 5, "dur": 5, "name": "loose", "kind": "unlinked", "op": -1},
            {"start": 10, "dur": 10, "name": "add", "op": 1},
            {"start": 20, "dur": 0, "name": "untimed", "op": 2},
        ]
    )

    found = place(known, work([0, 5, 5], [8, 8, 8]), DeviceInfo(name="who knows", kind="cuda"))

    assert [p.name for p in found.points] == ["add"]
    assert found.left_out == 3
    assert "3 kernels (50 % of the kernel time) have no place here" in " ".join(found.remarks)
    assert "memory bandwidth is not known" in " ".join(found.remarks)
    assert (found.peak_gbps, found.tflops) == (0.0, {})


def test_single_precision_has_the_ceiling_of_tensor_cores_too() -> None:
    known = table([{"start": 0, "dur": 10, "name": "gemm", "kind": "gemm", "op": 0}])

    assert place(known, work([4e9], [1e6], "f32"), H100).tflops == {"f32": 67, "tf32": 494.7}


def test_both_8_bit_floats_have_the_ceiling_of_tensor_cores() -> None:
    known = table([{"start": 0, "dur": 10, "name": "gemm", "kind": "gemm", "op": 0}])

    assert place(known, work([4e9], [1e6], "f8e4m3"), H100).tflops == {"f8e4m3": 1978.9}


def test_a_run_whose_audit_knew_no_bandwidth_gets_no_ceilings_from_its_name() -> None:
    known = table([{"start": 0, "dur": 10, "name": "gemm", "kind": "gemm", "op": 0}])
    slice_ = DeviceInfo(name="NVIDIA H100 80GB HBM3", kind="cuda")

    found = place(known, work([4e9], [1e6]), slice_)

    assert (found.peak_gbps, found.tflops) == (0.0, {})


def test_the_ceilings_are_of_the_description_that_the_audit_used() -> None:
    known = table([{"start": 0, "dur": 10, "name": "gemm", "kind": "gemm", "op": 0}])
    gcd = DeviceInfo(
        name="AMD Instinct MI250X / MI250", kind="hip", peak_gbps=1638.4, described_as="AMD Instinct MI250X (one GCD)"
    )

    assert place(known, work([4e9], [1e6], "bf16"), gcd).tflops == {"bf16": 191.5}


def test_the_roofline_of_a_stored_run(store: Store) -> None:
    found = roofline(save(store))

    assert {p.op for p in found.points} >= {"aten.matmul", "aten.pow", "aten.mean"}
    assert found.peak_gbps == 3350.0
    assert set(found.tflops) == {"f32", "tf32"}
