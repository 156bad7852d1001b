"""Two runs compared: by finding, by kernel, a step each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from audited import GATES, audited, graph, save
from kernel_tables import table

from auditor.document import CoverageInfo, Document, Finding, Run, Saving, SourceInfo, Totals
from auditor.errors import AuditError
from auditor.graph.tables import to_tables
from auditor.store import Store
from dashboard.context import Context, installed
from dashboard.data.compare import change_of, compare, compare_findings, compare_kernels
from dashboard.data.runs import list_runs, trends


@pytest.fixture(autouse=True)
def _reading(store: Store) -> Iterator[None]:
    with installed(Context(store=store)):
        yield


@pytest.mark.parametrize(
    ("count", "us", "change"),
    [
        ((3, 0), (9.0, 0.0), "gone"), ((0, 3), (0.0, 9.0), "new"), ((3, 3), (10.0, 12.0), "slower"),
        ((3, 3), (10.0, 8.0), "faster"), ((3, 3), (10.0, 10.4), "same"), ((3, 3), (10.0, 9.6), "same"),
        ((3, 9), (10.0, 8.0), "faster"), ((3, 9), (0.0, 0.0), "slower"), ((9, 3), (0.0, 5.0), "faster"),
    ],
)  # fmt: skip
def test_what_became_of_something(count: tuple[float, float], us: tuple[float, float], change: str) -> None:
    assert change_of(count, us, 0.05) == change


def finding(mark: str, us: float, kernels: int = 4, dtype: str = "f32") -> Finding:
    return Finding(
        rule="FUS201", name="unfused-rms-norm", family="reduction", fingerprint=mark, sites=1, kernels=kernels,
        kernels_after=1, device_us=us, saving=Saving(likely_us=us / 2), module_class="Norm", dtype=dtype,
        source=SourceInfo(file="m.py", line=3),
    )  # fmt: skip


def test_findings_are_matched_by_fingerprint() -> None:
    before = Document(findings=[finding("a", 100.0), finding("b", 50.0), finding("c", 10.0)])
    elsewhere = finding("d", 5.0, kernels=2)
    elsewhere.module_class = "Other"
    after = Document(findings=[finding("a", 60.0), finding("c", 10.1), elsewhere])

    found = compare_findings(before, after)

    assert [(each.fingerprint, each.change, each.device_us) for each in found] == [
        ("b", "gone", (50.0, 0.0)), ("a", "faster", (100.0, 60.0)), ("d", "new", (0.0, 5.0)),
        ("c", "same", (10.0, 10.1)),
    ]  # fmt: skip
    gone = found[0]
    assert (gone.kernels, gone.avoidable, gone.likely_us, gone.source) == ((4, 0), (3, 0), (25.0, 0.0), "m.py:3")


def test_findings_of_one_fingerprint_count_together() -> None:
    before = Document(findings=[finding("a", 10.0, dtype="f32"), finding("a", 30.0, dtype="bf16")])
    after = Document(findings=[finding("a", 80.0)])

    (found,) = compare_findings(before, after)

    assert (found.change, found.device_us, found.sites) == ("slower", (40.0, 80.0), (2.0, 1.0))


def test_recordings_of_several_steps_are_compared_a_step_each() -> None:
    before = Document(findings=[finding("a", 100.0)])
    after = Document(findings=[finding("a", 400.0, kernels=16)], coverage=CoverageInfo(steps=4))

    (found,) = compare_findings(before, after)

    assert (found.change, found.device_us, found.kernels) == ("same", (100.0, 100.0), (4.0, 4.0))


def test_kernels_are_matched_by_name() -> None:
    before = table(
        [
            {"start": 0, "dur": 10, "name": "gemm", "kind": "gemm"},
            {"start": 10, "dur": 10, "name": "gemm", "kind": "gemm"},
            {"start": 20, "dur": 5, "name": "add"}, {"start": 30, "dur": 1, "name": "same"},
        ]
    )  # fmt: skip
    after = table(
        [
            {"start": 0, "dur": 60, "name": "gemm", "kind": "gemm"}, {"start": 60, "dur": 1, "name": "same"},
            {"start": 70, "dur": 2, "name": "fused", "kind": "norm"},
        ]
    )  # fmt: skip

    found = compare_kernels(before, after)

    assert [(each.name, each.change, each.kernels, each.dur_us) for each in found] == [
        ("gemm", "slower", (2, 1), (20, 60)), ("add", "gone", (1, 0), (5, 0)), ("fused", "new", (0, 1), (0, 2)),
        ("same", "same", (1, 1), (1, 1)),
    ]  # fmt: skip
    assert [each.kind for each in found] == ["gemm", "pointwise", "norm", "pointwise"]
    assert compare_kernels(before, after, (2, 1))[0].dur_us == (10.0, 60.0)


def test_two_stored_runs(store: Store) -> None:
    before, after = save(store), save(store, GATES)

    found = compare(before, after)

    assert (found.before.id, found.after.id) == (before, after)
    assert (found.before.kernels, found.after.kernels) == (11, 2)
    changes = {each.rule: each.change for each in found.findings}
    assert changes["FUS202"] == "gone"
    assert {each.name for each in found.kernels if each.change == "gone"} >= {"aten.pow_kernel", "aten.rsqrt_kernel"}
    assert found.remarks == []


def test_what_makes_runs_hard_to_compare_is_said(store: Store) -> None:
    made = graph(GATES)
    document = audited(made, name="other")
    document.run.device.name = "MI300X"
    document.coverage.steps = 3
    before, after = save(store), store.save(document, {})

    found = compare(before, after)

    text = " ".join(found.remarks)
    assert "The devices differ: NVIDIA H100 80GB HBM3 before, MI300X after" in text
    assert "The names differ: llama before, other after" in text
    assert "1 step before, 3 steps after; all figures are of one step" in text
    assert "only findings are compared" in text
    assert found.kernels == []
    assert compare(before, before).remarks == ["Both are the same run."]


def test_a_run_that_is_not_there_is_said(store: Store) -> None:
    run = save(store)

    with pytest.raises(AuditError, match="no run 'zzz'"):
        compare(run, "zzz")


def stored(store: Store, name: str, step_us: float, device: str = "H100") -> str:
    document = Document(run=Run(name=name), totals=Totals(step_us=step_us, device_us=50.0, memory_bound_us=20.0))
    document.run.device.name = device
    return store.save(document, to_tables(graph(GATES)))


def test_trends_are_of_one_model_on_one_device_from_the_oldest_on(store: Store) -> None:
    first, other, second = stored(store, "a", 10.0), stored(store, "b", 5.0), stored(store, "a", 20.0)
    elsewhere, unnamed = stored(store, "a", 7.0, "MI300X"), [stored(store, "", 1.0) for _ in range(2)]

    found = trends(list_runs())

    assert [(t.name, t.device, [run.id for run in t.runs]) for t in found] == [("a", "H100", [first, second])]
    assert [t.name for t in trends(list_runs(), least=1)] == ["a", "a", "b"]
    assert {other, elsewhere, *unnamed}.isdisjoint({first, second})


def test_runs_are_filtered_and_know_their_share(store: Store) -> None:
    run, _ = stored(store, "a", 10.0), stored(store, "bravo", 5.0)

    (found,) = list_runs(name="a")

    assert (found.id, found.memory_bound_share) == (run, 0.4)
    assert [each.name for each in list_runs(sort="step_us", descending=False)] == ["bravo", "a"]
    assert [each.name for each in list_runs(text=" BRAVO ")] == ["bravo"]
    assert [each.name for each in list_runs(limit=1, offset=1)] == ["a"]
