"""Two runs compared: findings by fingerprint, figures a step, and what can't be compared at all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gate_factory import audited, graph

from auditor.document import CoverageInfo, Document, Finding, Run, SourceInfo, Totals
from auditor.errors import AuditError
from auditor.gate.comparable import check_comparable
from auditor.gate.compare import compare
from auditor.gate.snapshot import snapshot_of
from auditor.gate_document import Head
from auditor.graph.model import OpGraph, Source


def finding(mark: str, *, sites: int = 1, kernels: int = 6, after: int = 1, dtype: str = "f32") -> Finding:
    return Finding(
        rule="FUS201", name="unfused-rms-norm", family="reduction", fingerprint=mark, sites=sites, kernels=kernels,
        kernels_after=after, dtype=dtype, modules=["a", "", "b", "c", "d"],
    )  # fmt: skip


def changes(before: list[Finding], after: list[Finding]) -> dict[str, str]:
    found = compare(snapshot_of(Document(findings=before)), snapshot_of(Document(findings=after)))
    return {change.fingerprint: change.change for change in found.findings}


def test_findings_are_new_fixed_larger_smaller_or_the_same() -> None:
    before = [finding("same"), finding("fixed"), finding("fewer", sites=2, kernels=12, after=2), finding("more")]
    after = [finding("more", sites=2, kernels=12, after=2), finding("new"), finding("fewer"), finding("same")]

    found = changes(before, after)

    assert found == {"new": "new", "more": "more", "fewer": "fewer", "fixed": "fixed", "same": "same"}
    assert list(found) == ["new", "more", "fewer", "fixed", "same"]


def test_a_finding_that_lost_its_place_is_the_one_of_its_kind_that_is_gone() -> None:
    """Under a plan, or a compiler, the step is traced: what is left there names neither module nor line."""

    def linear(mark: str, module_class: str, ops: list[str], sites: int = 4) -> Finding:
        return Finding(
            rule="FUS501", name="unfused-sibling-gemms", family="horizontal", fingerprint=mark, sites=sites,
            kernels=2 * sites, kernels_after=sites, module_class=module_class, ops=ops,
        )  # fmt: skip

    gemms, other = ["aten.addmm", "aten.addmm"], ["aten.mm", "aten.mm"]
    placed, lost = linear("a", "Linear", gemms), linear("b", "", gemms)
    assert changes([placed], [lost]) == {"a": "same"}
    assert changes([lost], [placed]) == {"a": "same"}
    assert changes([placed], [linear("b", "", gemms, sites=5)]) == {"a": "more"}
    (change,) = compare(snapshot_of(Document(findings=[placed])), snapshot_of(Document(findings=[lost]))).findings
    assert change.module_class == "Linear"
    # AND where two could be meant, or none is of its kind, nothing is guessed
    assert changes([placed, linear("c", "Other", gemms)], [lost]) == {"a": "fixed", "c": "fixed", "b": "new"}
    assert changes([linear("a", "Linear", other)], [lost]) == {"a": "fixed", "b": "new"}


def test_of_several_that_lost_their_place_each_is_the_one_of_its_size_whatever_their_order() -> None:
    def linear(mark: str, module_class: str, sites: int) -> Finding:
        return Finding(
            rule="FUS501", name="unfused-sibling-gemms", family="horizontal", fingerprint=mark, sites=sites,
            kernels=2 * sites, kernels_after=sites, module_class=module_class, ops=["aten.mm"],
        )  # fmt: skip

    placed = [linear("small", "Linear", 2), linear("large", "Other", 6)]
    lost = [linear("x", "", 6), linear("y", "", 2)]
    for now in (lost, lost[::-1]):
        assert changes(placed, now) == {"small": "same", "large": "same"}
        assert changes(now, placed) == {"small": "same", "large": "same"}
    # AND where sizes don't tell, the first in order is not better than the others
    for now in (lost, lost[::-1]):
        assert changes([linear("small", "Linear", 3)], now) == {"small": "fixed", "x": "new", "y": "new"}
    twins = [linear("x", "", 2), linear("y", "", 2)]
    assert changes(placed, twins) == {"large": "fixed", "small": "fixed", "x": "new", "y": "new"}


def norm(
    mark: str, module_class: str, *, sites: int = 2, variant: str = "weight", file: str = "/repo/model.py"
) -> Finding:
    found = finding(mark, sites=sites, kernels=6 * sites, after=sites)
    found.module_class, found.ops, found.variant = module_class, ["aten.pow", "aten.mul"], {"cast": variant}
    found.source = SourceInfo(file=file, line=3, function="forward")
    return found


def test_a_finding_whose_class_has_another_name_is_the_same_where_that_is_certain() -> None:

    assert changes([norm("a", "Norm")], [norm("b", "RootNorm")]) == {"a": "same"}
    # AND another size, another casting mode, or one of two is another computation
    assert changes([norm("a", "Norm")], [norm("b", "RootNorm", sites=3)]) == {"a": "fixed", "b": "new"}
    assert changes([norm("a", "Norm")], [norm("b", "RootNorm", variant="input")]) == {"a": "fixed", "b": "new"}
    assert changes([norm("a", "Norm")], [norm("b", "One"), norm("c", "Two")]) == {"a": "fixed", "b": "new", "c": "new"}


def test_a_finding_that_is_fixed_here_and_an_equal_one_that_came_elsewhere_are_two() -> None:
    gone, came = norm("a", "Norm", file="/repo/a.py"), norm("b", "RootNorm", file="/repo/b.py")
    assert changes([gone], [came]) == {"a": "fixed", "b": "new"}
    # AND a class that moved is one, as is one of a file that a baseline names from the repository's root on
    assert changes([gone], [norm("b", "Norm", file="/repo/b.py")]) == {"a": "same"}
    assert changes([norm("a", "Norm", file="pkg/b.py")], [norm("b", "Root", file="/repo/pkg/b.py")]) == {"a": "same"}
    assert changes([norm("a", "Norm", file="po/b.py")], [came]) == {"a": "fixed", "b": "new"}
    nameless = [norm(mark, "") for mark in "ab"]
    for found in nameless:
        found.source = None
    assert changes(nameless[:1], nameless[1:]) == {"a": "fixed", "b": "new"}


def test_a_finding_whose_ops_changed_at_its_place_is_the_one_that_is_gone_from_it() -> None:
    base = norm("a", "Norm")
    assert changes([base], [norm("b", "Norm", sites=3, variant="input")]) == {"a": "more"}
    assert changes([base], [norm("b", "Norm", sites=1, variant="input")]) == {"a": "fewer"}
    moved = norm("b", "Norm", sites=3, variant="input", file="model.py")
    moved.source.line = 30
    assert changes([base], [moved]) == {"a": "more"}
    # AND of two that went or came it is not certain, and another function, phase, rule or file is another place
    pair = [norm("b", "Norm", sites=3, variant="x"), norm("c", "Norm", sites=4, variant="y")]
    assert changes([base], pair) == {"a": "fixed", "b": "new", "c": "new"}
    assert changes(pair, [base]) == {"b": "fixed", "c": "fixed", "a": "new"}
    for key, value in (("rule", "FUS202"), ("phase", "backward"), ("source", SourceInfo(file="/repo/model.py"))):
        other = norm("b", "Norm", sites=3, variant="input")
        setattr(other, key, value)
        assert changes([base], [other]) == {"a": "fixed", "b": "new"}
    assert changes([base], [norm("b", "Norm", sites=3, file="/repo/b.py")]) == {"a": "fixed", "b": "new"}


def test_a_finding_under_another_fingerprint_says_which_the_run_after_has() -> None:
    before, after = (snapshot_of(Document(findings=[norm(m, name)])) for m, name in (("a", "Norm"), ("b", "RootNorm")))
    (change,) = compare(before, after).findings
    assert (change.fingerprint, change.after) == ("a", "b")
    (fixed,) = compare(before, snapshot_of(Document())).findings
    assert (fixed.fingerprint, fixed.after) == ("a", "")


def test_as_many_kernels_at_more_sites_is_a_change() -> None:
    before, after = finding("a", sites=1, kernels=8, after=2), finding("a", sites=2, kernels=8, after=2)
    assert changes([before], [after]) == {"a": "more"}


def test_findings_of_one_fingerprint_are_taken_together() -> None:
    parts = [finding("a", kernels=4, dtype="f32"), finding("a", kernels=8, dtype="bf16")]
    whole = [finding("a", sites=2, kernels=12, after=2)]

    assert changes(parts, whole) == {"a": "same"}
    (found,) = snapshot_of(Document(findings=parts)).findings
    assert (found.sites, found.kernels, found.avoidable, found.modules) == (2, 12, 10, ["a", "b", "c"])


def test_a_trace_of_several_steps_compares_a_step_each() -> None:
    one = Document(totals=Totals(kernels=10, bytes=100, step_us=50.0), findings=[finding("a")])
    four = Document(
        run=Run(source="trace"), coverage=CoverageInfo(steps=4),
        totals=Totals(kernels=40, bytes=400, step_us=200.0), findings=[finding("a", sites=4, kernels=24, after=4)],
    )  # fmt: skip

    found = compare(snapshot_of(one), snapshot_of(four))

    assert [change.change for change in found.findings] == ["same"]
    assert {m.key: m.verdict for m in found.measures if m.before} == {
        "kernels": "same",
        "bytes": "same",
        "step_us": "same",
    }
    assert "1 step before, 4 steps after; all figures are of one step" in found.remarks[-1]


def test_counts_get_worse_by_one_and_times_only_beyond_their_noise() -> None:
    def run(kernels: int, step_us: float, bound_us: float) -> Document:
        return Document(
            totals=Totals(kernels=kernels, step_us=step_us, device_us=100.0, memory_bound_us=bound_us, peak_bytes=8)
        )

    def verdicts(before: Document, after: Document) -> dict[str, str]:
        found = compare(snapshot_of(before), snapshot_of(after))
        return {m.key: m.verdict for m in found.measures if m.key in ("kernels", "step_us", "memory_bound_share")}

    base = run(10, 100.0, 50.0)
    assert verdicts(base, run(11, 104.0, 51.0)) == {"kernels": "worse", "memory_bound_share": "same", "step_us": "same"}
    assert verdicts(base, run(9, 106.0, 53.0)) == {
        "kernels": "better",
        "memory_bound_share": "worse",
        "step_us": "worse",
    }
    assert verdicts(base, Document())["step_us"] == "unknown"


def fingerprints(of: OpGraph) -> dict[str, tuple[float, float]]:
    return {found.fingerprint: (found.sites, found.kernels) for found in snapshot_of(audited(of)).findings}


@pytest.mark.parametrize(
    "changed",
    [
        {"first": 7},  # layers with other numbers
        {"line": 400},  # moved lines
        {"source": "/repo/renamed.py"},
        {"source": "/elsewhere/checkout/model.py"},
        {},  # another run
    ],
)
def test_fingerprints_survive_what_changes_no_computation(changed: dict[str, Any]) -> None:
    assert fingerprints(graph(2, **changed)) == fingerprints(graph(2))


def test_fingerprints_survive_another_order_of_findings() -> None:
    document = audited(graph(2, fused=1))
    turned = msgspec.json.decode(msgspec.json.encode(document), type=Document)
    turned.findings.reverse()
    assert snapshot_of(turned) == snapshot_of(document)


def test_fingerprints_survive_a_forward_that_is_cut_into_functions() -> None:
    cut = graph(2)
    for op in cut.ops:
        op.source = Source("/repo/model.py", 12, f"part_{op.index}")
    assert fingerprints(cut) == fingerprints(graph(2))


def test_another_computation_is_another_finding() -> None:
    other = graph(1)
    for op in other.ops:
        op.module_class = "OtherNorm"
    assert not fingerprints(other).keys() & fingerprints(graph(1)).keys()


RUN = Head(id="1m8", kind="cuda", device="H100", torch="2.13.0+cu128", select=["FUS2"], edges="observed")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"kind": "cpu"}, "base.json is of a cpu and the run of a cuda: kernels are counted differently there; record"),
        ({"torch": "2.12.1"}, "base.json is of torch 2.12 and the run of torch 2.13, which dispatch other kernels"),
        ({"select": []}, "audited with every rule and the run with only FUS2; run again with the same --select and"),
        ({"ignore": ["FUS1"]}, "audited with only FUS2 but FUS1 and the run with only FUS2; run again"),
        ({"edges": "inferred"}, "base.json has inferred edges and the run observed ones, so that findings differ"),
    ],
)
def test_what_can_not_be_compared_is_refused_with_what_to_do(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AuditError) as caught:
        check_comparable(msgspec.structs.replace(RUN, **changed), RUN, "base.json")

    assert sentence in str(caught.value)
    assert str(caught.value).endswith("make a baseline anew with: fusion-audit baseline 1m8 -o FILE")


@pytest.mark.parametrize(
    "changed", [{"device": "A100"}, {"torch": "2.13.9"}, {"torch": ""}, {"select": ["fus2"]}, {"edges": "traced"}]
)
def test_what_can_be_compared(changed: dict[str, Any]) -> None:
    check_comparable(msgspec.structs.replace(RUN, **changed), RUN, "base.json")


def test_another_device_of_the_kind_only_warns() -> None:
    before, after = (snapshot_of(audited(graph(1))) for _ in range(2))
    other = msgspec.structs.replace(before, run=msgspec.structs.replace(before.run, device="A100", name="bert"))

    assert compare(other, after).remarks == [
        "The devices differ: A100 before, NVIDIA H100 80GB HBM3 after: counts compare, times do not.",
        "The names differ: bert before, llama after.",
    ]
