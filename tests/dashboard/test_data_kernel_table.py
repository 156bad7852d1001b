"""The kernels of a stored run as columns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from audited import HOSTILE, NORMS, audited, graph, save

from auditor.document import Finding, Site
from auditor.errors import AuditError
from auditor.graph.model import Kernel
from auditor.graph.tables import to_tables
from auditor.report import facts
from auditor.store import Store
from dashboard.components.site_view import site_views
from dashboard.context import Context, installed
from dashboard.data.cache import CACHE
from dashboard.data.findings import find_finding
from dashboard.data.kernel_table import kernel_table
from dashboard.data.kinds import KINDS, kind_codes
from dashboard.data.site_graph import unlinked_kernels
from dashboard.data.stored import document, stored
from dashboard.data.words import from_arrow, from_texts


@pytest.fixture(autouse=True)
def _reading(store: Store) -> Iterator[None]:
    with installed(Context(store=store)):
        yield


def test_kernels_carry_what_their_ops_and_findings_are(store: Store) -> None:
    run = save(store)
    ops = graph(NORMS).ops

    found = kernel_table(run)

    assert len(found) == sum(len(op.kernels) for op in ops)
    assert found.start_us.tolist() == [30.0 * i for i in range(len(ops))]
    assert found.dur_us.tolist() == [op.dur_us for op in ops]
    assert found.op_name.take(np.arange(len(ops))) == [op.name for op in ops]
    assert (found.module.at(0), found.module_class.at(0), found.source.at(3)) == (
        "layers.0.norm", "Norm", "/models/llama.py:13",
    )  # fmt: skip
    kinds = found.kind.take(np.arange(len(ops)))
    assert kinds[1:4] == ["pointwise", "reduction", "pointwise"]
    assert kinds[[op.name for op in ops].index("aten.matmul")] == "gemm"


def test_each_kernel_of_a_finding_names_it_and_no_other_does(store: Store) -> None:
    run = save(store)
    expected = [""] * 11
    for finding in document(run).findings:
        for site in finding.places:
            for op in site.ops:
                expected[op] = finding.fingerprint

    found = kernel_table(run)

    assert any(expected)
    assert not all(expected)
    assert [found.fingerprint.at(row) for row in range(len(found))] == [expected[op] for op in found.op]
    assert {found.rule.at(row)[:6] for row in range(len(found)) if expected[row]} <= {"FUS202", "FUS206", "FUS301"}


def test_kernels_that_are_a_site_by_their_names_name_its_finding(store: Store) -> None:
    # GIVEN a trace whose unlinked kernels have a finding, stored in another order than they ran
    made = graph(NORMS)
    made.unlinked = [Kernel("mul_k", 5.0, 2.0), Kernel("gemm_k", 3.0, 1.0), Kernel("silu_k", 1.0, 4.0)]
    document_ = audited(made, source="trace")
    site = Site(ops=[], unlinked=[2, 0], kernels=2, device_us=6.0)
    document_.findings.append(
        Finding(rule="FUS206", name="unfused-gated-activation", family="elementwise", fingerprint="byname",
                provenance="inferred", sites=1, kernels=2, device_us=6.0, places=[site])
    )  # fmt: skip
    run = store.save(document_, to_tables(made))

    found = kernel_table(run)

    # THEN its own kernels are marked and no other, and the page of the site lists them in order
    loose = {found.name.at(r): found.fingerprint.at(r) for r in range(len(found)) if found.op[r] < 0}
    assert loose == {"mul_k": "byname", "gemm_k": "", "silu_k": "byname"}
    linked = [row for row in range(len(found)) if found.op[row] >= 0]
    assert any(found.fingerprint.at(row) for row in linked)
    assert "byname" not in {found.fingerprint.at(row) for row in linked}
    assert [k.name for k in unlinked_kernels(stored(run), site)] == ["silu_k", "mul_k"]
    drawn, listed = site_views(run, find_finding(document(run), "byname"), 0)
    assert facts.NO_OPS in str(drawn)
    assert "silu_k" in str(listed)


def test_kernels_of_no_op_transfers_and_collectives_are_kinds_of_their_own(store: Store) -> None:
    made = graph(NORMS)
    made.unlinked = [
        Kernel("ncclDevKernel_AllReduce", 5.0, 1.0, 3), Kernel("Memcpy DtoH", 6.0, 1.0, 3),
        Kernel("mystery", 7.0, 1.0, 3),
    ]  # fmt: skip
    run = store.save(audited(made), to_tables(made))

    found = kernel_table(run)

    loose = [row for row in range(len(found)) if found.op[row] < 0]
    assert [(found.name.at(r), found.kind.at(r)) for r in loose] == [
        ("ncclDevKernel_AllReduce", "collective"), ("Memcpy DtoH", "transfer"), ("mystery", "unlinked"),
    ]  # fmt: skip
    assert {found.module.at(r) + found.op_name.at(r) + found.rule.at(r) for r in loose} == {""}
    assert (np.diff(found.start_us) >= 0).all()


def test_names_tell_the_kind_where_the_op_does_not() -> None:
    ops = ["aten.mul", "aten.bernoulli", "sgl_kernel.fused_add_rmsnorm", "mine.op"]
    names = ["nvjet_tst_256x96_64x5_2x1_2cta_v_bz_TNT", "void flashinfer::norm::RMSNormKernel<8u>(int)", "mystery"]
    launched = [(0, 0), (1, 1), (2, 1), (3, 0), (3, 2), (-1, 1), (-1, 2)]
    op, name = (np.array(column, np.int32) for column in zip(*launched, strict=True))
    kinds = [KINDS[code] for code in kind_codes(ops, op, names, name)]
    assert kinds == ["pointwise", "other", "norm", "gemm", "other", "norm", "unlinked"]
    assert kind_codes([], op[:0], [], name[:0]).tolist() == []


def test_names_of_a_trace_are_made_visible(store: Store) -> None:
    made = graph(NORMS)
    made.ops[0].kernels = (Kernel(HOSTILE, 0.0, 1.0),)
    run = store.save(audited(made), to_tables(made))

    name = kernel_table(run).name.at(0)

    assert "\x1b" not in name
    assert "\u202e" not in name
    assert r"\x1b[31m" in name


def test_a_run_is_loaded_once_until_the_cache_is_cleared(store: Store) -> None:
    run = save(store)

    first = kernel_table(run)

    assert kernel_table("latest") is first
    assert stored(run) is stored("latest")
    CACHE.clear()
    assert kernel_table(run) is not first


def test_two_stores_do_not_share_runs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> None:
    run = save(store)
    here = kernel_table(run)

    with (
        Store.open(tmp_path_factory.mktemp("other")) as other,
        installed(Context(store=other)),
        pytest.raises(AuditError, match="no audits"),
    ):
        kernel_table(run)

    assert kernel_table(run) is here


def test_a_run_without_tables_says_so(store: Store) -> None:
    made = graph(NORMS)
    run = store.save(audited(made), {})

    with pytest.raises(AuditError, match=f"run {run} has no table 'kernels'"):
        kernel_table(run)


def test_a_run_without_kernels_is_an_empty_table(store: Store) -> None:
    made = graph(NORMS)
    for op in made.ops:
        op.kernels = ()
    run = store.save(audited(made), to_tables(made))

    found = kernel_table(run)

    assert len(found) == 0
    assert found.name.words in ((), ("",))


def test_the_memory_of_a_table_is_counted(store: Store) -> None:
    found = kernel_table(save(store))

    arrays = [found.start_us, found.dur_us, found.stream, found.device, found.op, found.name.codes, found.kind.codes]
    assert found.nbytes > sum(array.nbytes for array in arrays)


def test_words_sort_as_their_codes_and_null_is_empty() -> None:
    column = pa.chunked_array([pa.array(["b", None]), pa.array(["a", "b"])])

    found = from_arrow(column)

    assert found.words == ("", "a", "b")
    assert found.codes.tolist() == [2, 0, 1, 2]
    assert from_arrow(column.dictionary_encode()).codes.tolist() == [2, 0, 1, 2]


def test_words_in_another_order_know_rows_without_text() -> None:
    found = from_texts(np.array([0, 1], np.int32), ["y", "x"])

    again = found.reordered(np.array([1, -1, 0]))

    assert [again.at(i) for i in range(3)] == ["x", "", "y"]
    assert again.words == ("", "x", "y")
