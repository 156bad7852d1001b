"""The gate on stored runs: limits, increases, parts of a run, fused kernels that have to be live."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_factory import FUSED, audited, graph, rules, save

from auditor.errors import AuditError
from auditor.gate.baseline import stored_baseline
from auditor.gate.budget import Demands, file_demands
from auditor.gate.verdict import judge
from auditor.gate_document import Check, GateDocument
from auditor.graph.model import Kernel
from auditor.graph.tables import to_tables
from auditor.store import Store, StoredRun


def gate(store: Store, run: StoredRun, budget: str = "", baseline: str = "") -> GateDocument:
    file = Path("budget.yaml")
    file.write_text(budget or "max_kernels: 1000\n")
    demands = file_demands(file, [(rule.id, rule.name) for rule in rules()])
    against = stored_baseline(baseline, store) if baseline else None
    return judge(run, demands, against, rules(), store=store, root=Path("/repo"))


def checked(store: Store, run: StoredRun, budget: str, baseline: str = "") -> dict[str, str]:
    return {check.id: f"{check.status}: {check.message}" for check in gate(store, run, budget, baseline).checks}


@pytest.fixture(autouse=True)
def _folder(folder: Path) -> None:
    """Budgets are written into a folder of their own."""


def test_limits_on_the_whole_run(store: Store) -> None:
    run = save(store, graph(2))

    assert checked(
        store, run, "max_unfused_kernels: 12\nmax_avoidable_kernels: 9\nmax_kernels: 14\nmax_bytes: 1 GB\n"
        "max_peak_memory: 1 kB\nmax_memory_bound_share: 10 %"
    ) == {
        "max_unfused_kernels": "passed: 12 of at most 12",
        "max_avoidable_kernels": "failed: 10, 1 more than the 9 allowed",
        "max_kernels": "passed: 14 of at most 14",
        "max_bytes": f"passed: {_size(run)} of at most 1.00 GB",
        "max_peak_memory": f"failed: {_peak(run)} than the 1.00 kB allowed",
        "max_memory_bound_share": "warned: 86 % (one run), 75.7 points more than the 10 % allowed",
    }  # fmt: skip


def _size(run: StoredRun) -> str:
    from auditor.report.format import size

    return size(run.document.totals.bytes)


def _peak(run: StoredRun) -> str:
    from auditor.report.format import size

    peak = run.document.totals.peak_bytes
    return f"{size(peak)}, {size(peak - 1000)} more"


def test_times_warn_and_do_not_fail(store: Store) -> None:
    found = gate(store, save(store, graph(1)), "max_memory_bound_share: 0.1")
    assert (found.passed, found.next, [check.status for check in found.checks]) == (True, [], ["warned"])


def test_limits_on_a_part(store: Store) -> None:
    run = save(store, graph(3))

    assert checked(
        store, run,
        "budgets:\n"
        "- {modules: 'layers.1.*', max_unfused_kernels: 6, max_avoidable_kernels: 4, max_bytes: 0}\n"
        "- {rule: unfused-rms-norm, max_unfused_kernels: 17}\n"
        "- {rule: FUS206, max_unfused_kernels: 0}\n"
        "- {model: 'bert*', max_kernels: 0}\n"
        "- {model: 'lla*', max_kernels: 0}\n",
    ) == {
        "budgets[1].max_unfused_kernels": "passed: 6 of at most 6",
        "budgets[1].max_avoidable_kernels": "failed: 5, 1 more than the 4 allowed",
        "budgets[1].max_bytes": f"failed: {_third(run)}, {_third(run)} more than the 0 B allowed",
        "budgets[2].max_unfused_kernels": "failed: 18, 1 more than the 17 allowed",
        "budgets[3].max_unfused_kernels": "passed: 0 of at most 0",
        "budgets[4].max_kernels": "skipped: this run is called llama",
        "budgets[5].max_kernels": "failed: 21, 21 more than the 0 allowed",
    }  # fmt: skip


def _third(run: StoredRun) -> str:
    from auditor.report.format import size

    return size(run.document.findings[0].bytes_now / 3)


def test_a_limit_for_modules_that_there_are_none_of_warns(store: Store) -> None:
    """A renamed module would else never be held again, and nobody would know."""
    run = save(store, graph(6))
    found = gate(store, run, "budgets: [{modules: 'blocks.*', max_unfused_kernels: 0}]")
    (check,) = found.checks
    assert (found.passed, check.status) == (True, "warned")
    assert check.message == (
        "it holds nothing, as no module of this run has such a name; there are: layers.0.norm, layers.1.norm, "
        "layers.2.norm, layers.3.norm and 2 more"
    )


def test_a_limit_for_modules_names_the_module_that_it_is_about(store: Store) -> None:
    found = gate(store, save(store, graph(6)), "budgets: [{modules: 'layers.5.*', max_unfused_kernels: 0}]")
    (check,) = found.checks
    assert [culprit.module for culprit in check.culprits] == ["layers.5.norm"]


def test_against_a_baseline_no_count_may_grow_and_the_message_says_everything(store: Store) -> None:
    before = save(store, graph(1, fused=1), commit="b" * 40)
    after = save(store, graph(2))

    found = gate(store, after, baseline=before.id)

    checks = {check.id: check for check in found.checks}
    assert [each.id for each in found.checks if each.status == "failed"] == [
        "max_increase.unfused_kernels", "max_increase.avoidable_kernels", "max_increase.kernels",
        "max_increase.bytes",
    ]  # fmt: skip
    unfused = checks["max_increase.unfused_kernels"]
    assert unfused.message == "grew from 6 to 12: 6 more (+100 %), no increase is allowed"
    (culprit,) = unfused.culprits
    assert (culprit.rule, culprit.what) == ("FUS201", "more: 1 → 2 sites, 6 → 12 kernels, 5 → 10 avoidable")
    assert (culprit.source and culprit.source.line, culprit.module) == (10, "layers.0.norm")
    assert culprit.step_us > 0
    assert found.comparison is not None
    assert found.comparison.before.commit == "b" * 40
    assert found.next == [
        f"fusion-audit diff {before.id} {after.id}", f"fusion-audit fix {after.id}", f"fusion-audit show {after.id}",
    ]  # fmt: skip
    assert not found.passed


def test_an_equal_and_a_better_run_pass(store: Store) -> None:
    worse, better = save(store, graph(2)), save(store, graph(1, fused=1))
    assert gate(store, worse, baseline=worse.id).passed
    assert gate(store, better, baseline=worse.id).passed


def test_increases_that_are_allowed(store: Store) -> None:
    before, after = save(store, graph(4)), save(store, graph(5))

    assert checked(
        store, after, "max_increase: {unfused_kernels: 6, avoidable_kernels: 20 %, kernels: 25 %}", before.id
    ) == {
        "max_increase.unfused_kernels": "passed: went from 24 to 30",
        "max_increase.avoidable_kernels": "failed: grew from 20 to 25: 5 more (+25 %), 24 would be allowed",
        "max_increase.kernels": "passed: went from 28 to 35",
    }
    assert checked(store, after, "max_increase: {kernels: 1}") == {
        "max_increase.kernels": "skipped: no baseline was given; give one with --baseline"
    }
    assert checked(store, after, "budgets: [{rule: FUS201, max_increase: {bytes: 100 %}}]", before.id)[
        "budgets[1].max_increase.bytes"
    ].startswith("passed: went from")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (16, "passed: stayed 3.68 MB"),
        (30_000, "passed: went from 3.68 MB to 3.71 MB"),
        (40_000, "failed: grew from 3.68 MB to 3.72 MB: 40.0 kB more (+1.1 %), 3.72 MB would be allowed"),
    ],
)
def test_peak_memory_may_grow_by_a_hundredth_where_nobody_said_how_much(store: Store, more: int, said: str) -> None:
    def peak(size: int) -> StoredRun:
        document = audited(graph(1))
        document.totals.peak_bytes = size
        return store.load(store.save(document, to_tables(graph(1))))

    before, after = peak(3_680_000), peak(3_680_000 + more)

    checks = {check.id: check for check in gate(store, after, baseline=before.id).checks}

    check = checks["max_increase.peak_memory"]
    assert f"{check.status}: {check.message}" == said


def test_what_an_older_baseline_does_not_know_is_not_held(store: Store) -> None:
    of = graph(1)
    document = audited(of)
    document.totals.peak_bytes = 0
    before = store.save(document, to_tables(of))

    said = checked(store, save(store, graph(1)), "max_increase: {peak_memory: 0}", before)

    assert said == {"max_increase.peak_memory": "skipped: it is not known of the baseline"}


def test_what_grew_under_another_fingerprint_is_blamed_by_the_one_that_the_run_has(store: Store) -> None:
    of = graph(1)
    before = save(store, of)
    document = audited(of)
    (found,) = document.findings
    assert found.module_class
    found.module_class, found.source, found.fingerprint = "", None, "traced"
    found.sites, found.kernels = 3 * found.sites, 3 * found.kernels
    document.totals.unfused_kernels *= 3

    checks = gate(store, store.load(store.save(document, to_tables(of))), baseline=before.id).checks

    (check,) = (each for each in checks if each.id == "max_increase.unfused_kernels")
    assert check.status == "failed"
    assert [(each.fingerprint, each.what.split(",")[0]) for each in check.culprits] == [("traced", "more: 1 → 3 sites")]


def required(store: Store, run: StoredRun, demand: str) -> Check:
    (check,) = gate(store, run, f"require: [{demand}]").checks
    return check


class TestRequired:
    @pytest.mark.parametrize(
        "demand",
        [
            "{rule: FUS201}", "{rule: unfused-rms-norm, modules: 'layers.1.*'}", "{replacement: rms_norm}",
            "{kernel: 'fused_replacements.rms*', at_least: 2}",
        ],
    )  # fmt: skip
    def test_a_fusion_that_is_live(self, store: Store, demand: str) -> None:
        assert "rms_norm" in FUSED
        assert required(store, save(store, graph(1, fused=2)), demand).status == "passed"

    @pytest.mark.parametrize(
        ("demand", "live"),
        [
            ("{rule: FUS201, modules: 'layers.0.*'}", "no kernel of it ran"),
            ("{replacement: rms_norm, at_least: 2}", "1 kernel of it ran, at least 2 must"),
            ("{replacement: layer_norm}", "no kernel of it ran"), ("{kernel: 'flash*'}", "no kernel of it ran"),
        ],
    )  # fmt: skip
    def test_one_that_is_not_says_what_ran_instead(self, store: Store, demand: str, live: str) -> None:
        check = required(store, save(store, graph(1, fused=1)), demand)

        assert (check.status, check.line) == ("failed", 1)
        assert check.message.startswith(live)
        assert "aten.mul_kernel × 2" in check.message

    def test_a_kernel_by_its_name_says_what_came_since_the_baseline(self, store: Store) -> None:
        before, after = save(store, graph(0, fused=2)), save(store, graph(2))
        demand = "require: [{kernel: '*rms_norm*', modules: 'layers.1.*'}]"

        (check,) = (c for c in gate(store, after, demand, before.id).checks if c.key == "require")

        assert [(each.rule, each.module) for each in check.culprits] == [("FUS201", "layers.1.norm")]
        assert check.culprits[0].what.startswith("new: 2 sites")
        assert required(store, after, "{kernel: '*rms_norm*'}").culprits == []  # without one nobody knows

    def test_the_finding_in_its_place_is_named(self, store: Store) -> None:
        check = required(store, save(store, graph(2)), "{rule: FUS201, modules: 'layers.1.*'}")
        (culprit,) = check.culprits
        assert (culprit.rule, culprit.module) == ("FUS201", "layers.1.norm")

    def test_kernels_are_known_by_the_rules_too_and_copies_are_none(self, store: Store) -> None:
        of = graph(1)
        of.ops[-1].kernels = (Kernel("void vllm::rms_norm_kernel<half>", 900.0, 5.0),)
        of.unlinked = [Kernel("Memcpy HtoD rmsnorm", 0.0, 1.0)]

        check = required(store, save(store, of), "{rule: FUS201, at_least: 2}")

        assert (check.status, check.value) == ("failed", 1)

    def test_where_nothing_ran(self, store: Store) -> None:
        check = required(store, save(store, graph(1)), "{rule: FUS201, modules: 'decoder.*'}")
        assert check.message.endswith("what ran instead: nothing, no op was recorded there")

    def test_a_run_without_tables(self, store: Store) -> None:
        run = store.load(store.save(audited(graph(1)), {}))
        with pytest.raises(AuditError, match="has no table 'ops'"):
            required(store, run, "{rule: FUS201}")


def test_without_budget_and_baseline_it_says_how_to_make_them(store: Store) -> None:
    run = save(store, graph(1))
    with pytest.raises(AuditError) as caught:
        judge(run, Demands(), None, rules(), store=store, root=Path("/repo"))
    assert f"fusion-audit baseline {run.id} -o fusion-baseline.json" in str(caught.value)
    assert "max_unfused_kernels = 0" in str(caught.value)


def test_remarks(store: Store) -> None:
    of = graph(1)
    document = audited(of, exit_code=3)
    document.run.device.kind, document.run.select = "cpu", ["FUS1"]
    run = store.load(store.save(document, to_tables(of)))

    said = " ".join(gate(store, run, "budgets: [{rule: FUS201, max_bytes: 1}]").remarks)

    assert "ended with code 3: it may have been recorded in part" in said
    assert "The run is of a CPU: kernels are its dispatched ops" in said
    assert "Rule FUS201 has a limit, and was not among the rules of this run." in said


def test_the_trend_is_of_the_runs_of_that_name_up_to_this_one(store: Store) -> None:
    first, _, second = save(store, graph(2)), save(store, graph(1), name="bert"), save(store, graph(1))
    later = save(store, graph(3))

    assert [point.id for point in gate(store, second).trend] == [first.id, second.id]
    assert [point.unfused_kernels for point in gate(store, later).trend] == [12, 6, 18]
