"""The page of a run: figures, findings, what they stand on."""

from __future__ import annotations

import pytest
from audited import GATES, HOSTILE, finding_of, save, save_fix
from shown import labels, links, page, text

from auditor.document import FamilyTotal, LiveFusion, Rank, StepFigures, Steps, Unplaced
from auditor.store import Store
from auditor.store.rule_settings import RuleSetting

pytestmark = pytest.mark.usefixtures("browsing")


def test_the_overview_states_figures_findings_and_what_they_stand_on(store: Store) -> None:
    run = save(store)

    shown = page("overview").layout(run_id=run)

    said = text(shown)
    assert "400 µs" in said
    assert "edges" in said
    assert links(shown)["unfused-add-rms-norm"] == f"/run/{run}/finding/{finding_of(store, run)}"
    assert links(shown)["Timeline"] == f"/run/{run}/timeline"
    assert said.index("unfused-add-rms-norm") < said.index("unfused-gated-activation")


def test_latest_is_the_newest_run(store: Store) -> None:
    save(store)
    newest = save(store, GATES)

    assert newest in text(page("overview").layout(run_id="latest"))


def test_a_run_of_several_ranks_has_a_row_for_each(store: Store) -> None:
    document = store.load(save(store)).document
    document.run.world_size = 2
    document.ranks = [
        Rank(rank=0, totals=document.totals),
        Rank(rank=1, status="missing", recorded=False, reason="it did not come"),
    ]
    said = text(page("overview").layout(run_id=store.save(document, {})))
    assert "2 ranks, details of rank 0" in said
    assert "Steps were recorded of 1 of 2 ranks." in said


def test_a_trace_of_several_steps_has_a_row_for_each(store: Store) -> None:
    document = store.load(save(store)).document
    each = [StepFigures(name=f"ProfilerStep#{n} {HOSTILE}", kernels=12, step_us=900.0 + n) for n in range(2)]
    document.steps = Steps(by="profiler", marker="ProfilerStep", each=each, median=each[0])
    said = text(page("overview").layout(run_id=store.save(document, {})))
    assert "2 steps" in said
    assert "ProfilerStep#1" in said
    assert "901 µs" in said
    assert "\x1b" not in said


def test_fusions_that_are_live_and_kernels_that_nobody_knows_are_listed(store: Store) -> None:
    document = store.load(save(store)).document
    document.live = [LiveFusion(library="vLLM", what="residual add + RMS norm", kernels=48, device_us=90.0)]
    document.families = [FamilyTotal(family="other", kernels=3, device_us=12.0)]
    document.unplaced = [Unplaced(name=f"k {HOSTILE}", kernels=3, device_us=12.0)]

    said = text(page("overview").layout(run_id=store.save(document, {})))

    assert "Fusion is live here: 48 kernels, 90.0 µs" in said
    assert "vLLM residual add + RMS norm 48 90.0 µs" in " ".join(said.split())
    assert "3 kernels of no known family, 12.0 µs" in said
    assert "\x1b" not in said


@pytest.mark.parametrize("name", ["overview", "finding"])
def test_a_run_that_is_not_there_is_one_sentence(store: Store, name: str) -> None:
    save(store)

    shown = text(page(name).layout(run_id="nowhere", fingerprint="x"))

    assert "no run 'nowhere'" in shown
    assert "Traceback" not in shown


def test_an_unforeseen_error_is_a_number_for_the_log(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dashboard.data.stored.head", lambda _: 1 / 0)

    shown = text(page("overview").layout(run_id=save(store)))

    assert "division" not in shown
    number = shown.split("under error ")[1][:8]
    assert number in caplog.text


def test_names_from_a_run_are_text_with_what_steers_made_visible(store: Store) -> None:
    run = save(store, module=HOSTILE, name=HOSTILE, notes=[HOSTILE])

    shown = text(page("overview").layout(run_id=run))

    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "<img src=x onerror=alert(1)>\\x1b[31m" in shown


def test_a_rule_that_is_switched_off_is_folded_away_and_severity_is_as_set(store: Store) -> None:
    run = save(store)
    store.rule_settings.put(RuleSetting("FUS206", enabled=False))
    store.rule_settings.put(RuleSetting("FUS202", severity="error"))

    shown = text(page("overview").layout(run_id=run))

    assert "1 finding of rules that are switched off here" in shown
    assert "error FUS202" in " ".join(shown.split())


def test_a_fix_is_told_on_both_runs(store: Store) -> None:
    run = save(store)
    fix = save_fix(store, run)

    before, after = page("overview").layout(run_id=run), page("overview").layout(run_id=fix.after_run)

    assert "1 site kept: the step takes 25 % less time" in text(before)
    assert "This is the audit after a fix of" in text(after)
    compared = f"/compare?a={run}&b={fix.after_run}"
    assert links(before)["Compare before and after"] == links(after)["Compare before and after"] == compared


def test_figures_are_drawn_and_told_in_words(store: Store) -> None:
    run = save(store)

    time, roof = page("overview")._draw_time("dark", run), page("overview")._draw_roofline("light", run)

    named = labels([time, roof])
    assert any(name.startswith("Where the time goes. step: 400 µs") for name in named)
    assert any(name.startswith("Roofline of ") for name in named)
    assert "aten.silu_kernel" in text(roof)
