"""What the audits say of a fix: predictions held against measurements, and what else would help."""

from __future__ import annotations

import pytest
from fix_factory import fixed, norm

from auditor.document import Document, Finding, Run, Saving, Site, Totals, TotalSaving
from auditor.fix.judge import judged, pairs
from auditor.fix.recommend import recommendations
from auditor.fix_document import FixDocument, FixTiming, RatioInfo
from auditor.report.fix_facts import headline, prediction_rows


def audit(**totals: float) -> Document:
    """Norms in layers 0 to 3, one of them twice, and one in the backward pass."""
    saving = Saving(likely_us=150.0, step_us=120.0)
    modules = [*(f"layers.{i}.norm" for i in range(4)), "layers.0.norm"]
    places = [Site(ops=[], module=module, device_us=200.0, saving=saving) for module in modules]
    backward = Finding(rule="FUS201", name="n", family="f", phase="backward", places=places)
    return Document(
        run=Run(id="1m8aaaaaaaaa"),
        totals=Totals(saving=TotalSaving(amdahl_cap=1.3), **totals),  # type: ignore[arg-type]
        findings=[backward, Finding(rule="FUS201", name="n", family="f", sites=5, places=places)],
    )


def test_sites_are_paired_with_places_of_their_module_each_once() -> None:
    sites = [norm(0), norm(0), norm(0), norm(1, before_us=0.0), norm(7)]
    found = pairs(audit(), sites)
    assert [site.module for site, _ in found] == ["layers.0.norm", "layers.0.norm"]


def test_predicted_and_measured_are_summed_by_rule_and_the_step_counts_what_was_kept() -> None:
    fix = FixDocument(sites=[norm(0), norm(1, state="rolled_back", after_us=310.0)])

    judged(fix, audit(), None)

    (rule,) = fix.predictions
    assert (rule.rule, rule.sites, rule.predicted_us, rule.measured_us) == ("FUS201", 2, 300.0, 190.0)
    assert (rule.predicted_share, rule.measured_share) == (0.75, 190 / 600)
    assert (rule.before_us, rule.after_predicted_us, rule.after_us) == (600.0, 150.0, 410.0)
    assert (fix.predicted_us, fix.amdahl_cap, fix.after) == (120.0, 1.3, Totals())
    afters = [site.after_us for site in fix.sites]
    errors = [abs(300.0 * 0.25 - after) / after for after in afters]
    error = fix.prediction_error
    assert (error.sites, error.median, error.worst) == (2, pytest.approx(sum(errors) / 2), pytest.approx(max(errors)))


def test_the_table_and_the_line_of_predictions_say_the_same_of_one_site() -> None:
    fix = FixDocument(sites=[norm(0)])
    judged(fix, audit(), None)
    assert prediction_rows(fix) == [("FUS201", "1", "300 µs", "75.0 µs", "100 µs", "-25 %")]
    facts = {fact.label: fact.value for fact in headline(fix)}
    assert facts["prediction"] == "of a fused site's time off by 25 % in the median and 25 % at worst, 1 site"


def test_the_audit_after_gives_its_totals_and_what_it_says_of_the_plan() -> None:
    fix = FixDocument(notes=["Patched by a plan: twice."])
    notes = ["Patched by a plan: twice.", "Not applied: FUS201 at norm: it was not found.", "Other threads."]

    judged(fix, audit(), Document(run=Run(notes=notes), totals=Totals(kernels=7)))

    assert fix.after.kernels == 7
    assert fix.notes == notes[:2]


def test_an_optimizer_that_steps_one_by_one_is_told_to_fuse() -> None:
    before = audit(kernels=100, device_us=1000.0)
    before.findings = [
        Finding(rule="FUS801", name="n", family="compiler", kernels=20, kernels_after=2, device_us=100.0,
                instead="AdamW(…, fused=True)")
    ]  # fmt: skip

    (one,) = recommendations(before, FixDocument())

    assert one.what.startswith("Write AdamW(…, fused=True), or call `fused_replacements.fused_optimizer`")
    assert one.evidence == (
        "its step is 20 kernels of 100, where 2 would do, and takes 100 µs of 1.00 ms of kernel time (10 %)"
    )


def test_attention_by_parts_is_told_of_sdpa_unless_the_plan_has_it() -> None:
    before = audit()
    before.findings = [Finding(rule="FUS601", name="n", family="f", sites=2, kernels=12, saving=Saving(likely_us=9.0))]
    kept = [norm(i, rule="FUS601") for i in range(2)]

    (one,) = recommendations(before, FixDocument(sites=kept[:1]))

    assert "scaled_dot_product_attention" in one.what
    assert "by parts at 2 sites, 12 kernels" in one.evidence
    assert recommendations(before, FixDocument(sites=kept)) == []


def test_launches_that_a_gpu_waits_for_are_told_to_be_a_graph() -> None:
    before = audit(kernels=900, step_us=1000.0, idle_us=600.0)
    assert recommendations(before, FixDocument()) == []

    saving = Saving(step_us=500.0)
    places = [Site(ops=[0], saving=saving, formula="900 kernels in 0.90 ms")]
    instead = 'torch.compile(model, mode="reduce-overhead")'
    before.findings = [Finding(rule="FUS701", name="n", family="launch", saving=saving, places=places, instead=instead)]
    (one,) = recommendations(before, FixDocument())

    assert 'mode="reduce-overhead"' in one.what
    assert one.evidence == "it would save 500 µs of 1.00 ms (50 %): 900 kernels in 0.90 ms"


def test_the_compiler_is_named_only_where_it_surely_beats_the_plan() -> None:
    fix = fixed()
    assert recommendations(audit(), fix) == []

    fix.timing.compile_vs_eager = RatioInfo(ratio=1.5, low=1.4, high=1.6)
    (one,) = recommendations(audit(), fix)

    assert one.evidence.startswith(
        "torch.compile ×1.50 (1.40 to 1.60) against eager, the plan ×1.20 (1.18 to 1.22); 33 % of the step"
    )


def test_where_nothing_was_kept_the_compiler_has_to_beat_eager() -> None:
    timing = FixTiming(compile_vs_eager=RatioInfo(ratio=1.1, low=1.02, high=1.2))
    (one,) = recommendations(audit(), FixDocument(timing=timing))
    assert one.what == "Use torch.compile(model): here it is faster."
    assert "against eager, and nothing was kept; 9.1 % of the step" in one.evidence
