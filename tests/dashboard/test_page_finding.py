"""The page of a finding: what it says, what it applies, what it measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from audited import finding_of, save, save_fix
from memory_jobs import MemoryJobs
from shown import by_id, links, page, text

from auditor.document import Saving
from auditor.fix_document import NOT_SELECTED
from auditor.store import Store
from auditor.store.rule_settings import RuleSetting
from dashboard.components.applying import _follow, _submit
from dashboard.context import Context, install
from dashboard.jobs.model import Options

pytestmark = pytest.mark.usefixtures("browsing")


def test_a_finding_says_what_why_and_how_much(store: Store) -> None:
    run = save(store)

    said = text(page("finding").layout(run_id=run, fingerprint=finding_of(store, run)))

    assert "94.4 µs" in said
    assert "7 → 1" in said
    assert "7 kernels move 1.3 MB, 1 would move 0.5 MB: 161 µs now, 66.6 µs after" in said
    assert "likely, of 161 µs; ideal 161 µs" in said
    assert "Finds a residual add whose sum goes into an RMS norm" in said
    assert "add_rms_norm" in said


def test_a_finding_is_drawn_with_its_kernels_and_why_it_is_legal(store: Store) -> None:
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}

    drawn, facts = page("finding")._draw(None, which)

    assert "Now: 7 kernels, 1.31 MB moved" in text(drawn)
    assert "Fused: 1 kernel" in text(drawn)
    said = text(facts)
    assert "aten.rsqrt_kernel" in said
    assert "7 kernels, 161 µs together" in said
    assert "5 intermediates" in said
    assert "is written: it is read outside" in said


def test_sites_by_name_have_nothing_to_draw_and_the_page_says_so(store: Store) -> None:
    # Kernels of a trace without ops: neither ops, nor bytes, nor a saving
    recorded = store.load(save(store))
    finding = recorded.document.findings[0]
    finding.provenance, finding.bytes_now, finding.bytes_fused, finding.saving = "inferred", 0, 0, Saving()
    for place in finding.places:
        place.ops, place.bytes_now, place.bytes_fused, place.saving = [], 0, 0, Saving()
        place.formula = "found by the names of its kernels, as at 2 linked sites"
    run = store.save(recorded.document, dict(recorded.tables))

    said = text(page("finding").layout(run_id=run, fingerprint=finding.fingerprint))
    drawn, _facts = page("finding")._draw(None, {"run": run, "fingerprint": finding.fingerprint})

    assert "unknown" in said
    assert "found by the names of its kernels, as at 2 linked sites" in said
    assert "0 B" not in said
    assert text(drawn)


def test_every_site_is_offered_once(store: Store) -> None:
    recorded = store.load(save(store))
    recorded.document.findings[0].places *= 2
    run = store.save(recorded.document, dict(recorded.tables))

    field = by_id(page("finding").layout(run_id=run, fingerprint=finding_of(store, run)), "finding-site")

    assert [each["value"].partition(".")[0] for each in field.options] == ["1", "2"]
    assert field.value == field.options[0]["value"]


def test_a_finding_that_a_run_does_not_have(store: Store) -> None:
    said = text(page("finding").layout(run_id=save(store), fingerprint="feedface"))

    assert "has no finding 'feedface'" in said


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"jobs": None}, "No worker runs here; start one with `fusion-audit serve`."),
        ({"may_change": lambda: False}, "Read only: open the link that `fusion-audit serve` printed"),
    ],
)
def test_what_can_not_be_applied_says_why(store: Store, browsing: Context, change: dict[str, Any], reason: str) -> None:
    run = save(store)
    install(replace(browsing, **change))

    shown = page("finding").layout(run_id=run, fingerprint=finding_of(store, run))

    assert by_id(shown, "finding-apply").disabled
    assert text(by_id(shown, "finding-why")).startswith(reason)
    assert f"fusion-audit fix {run} --select FUS202" in text(shown)


def test_a_trace_can_not_be_applied(store: Store) -> None:
    recorded = store.load(save(store))
    recorded.document.run.source = "trace"
    run = store.save(recorded.document, dict(recorded.tables))

    shown = page("finding").layout(run_id=run, fingerprint=finding_of(store, run))

    assert by_id(shown, "finding-apply").disabled
    assert "there is no script to run again" in text(by_id(shown, "finding-why"))
    assert "fusion-audit run script.py" in text(shown)
    assert "fusion-audit fix" not in text(by_id(shown, "finding-why"))


def test_applying_queues_a_job_for_this_rule_and_nothing_else(store: Store, memory_jobs: MemoryJobs) -> None:
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}

    panel, problem = _submit(1, which)

    assert problem is None
    assert [(j.kind, j.run, j.options) for j in memory_jobs.list()] == [("fix", run, Options(select=["FUS202"]))]
    assert "queued" in text(panel)
    assert "queued" in text(page("finding").layout(run_id=run, fingerprint=which["fingerprint"]))


def test_a_rule_that_is_switched_off_can_not_be_applied(store: Store, memory_jobs: MemoryJobs) -> None:
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}
    store.rule_settings.put(RuleSetting("FUS202", enabled=False))

    shown = page("finding").layout(run_id=run, fingerprint=which["fingerprint"])

    assert by_id(shown, "finding-apply").disabled
    assert text(by_id(shown, "finding-why")).startswith("FUS202 is switched off here")
    _, problem = _submit(1, which)
    assert "FUS202 is switched off here" in text(problem)
    assert memory_jobs.list() == []


@pytest.mark.parametrize("select", [["FUS202"], []])
def test_a_job_at_work_holds_the_button_until_it_ends(store: Store, memory_jobs: MemoryJobs, select: list[str]) -> None:
    # GIVEN a job for this rule that runs, and a newer one of it that was cancelled
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}
    job = memory_jobs.submit("fix", run, Options(select=select))
    memory_jobs.move(job.id, state="running", progress="patching")
    newer = memory_jobs.submit("fix", run, Options(select=["FUS202"], limit=1))
    memory_jobs.move(newer.id, state="cancelled", reason="cancelled by the user")

    # WHEN the page is shown, and when the button is clicked in a window that was open before
    shown = page("finding").layout(run_id=run, fingerprint=which["fingerprint"])
    panel, problem = _submit(1, which)

    # THEN the running one is shown, and nothing is queued
    assert by_id(shown, "finding-apply").disabled
    assert f"Job {job.id} applies it already: it is running" in text(by_id(shown, "finding-why"))
    assert "patching" in text(by_id(shown, "finding-job"))
    assert "patching" in text(panel)
    assert problem is None
    assert len(memory_jobs.list()) == 2
    assert _follow(["running"], which)[0]
    memory_jobs.move(job.id, state="failed", reason="the worker was killed")
    assert not _follow(["failed"], which)[0]


def test_applying_without_a_login_does_nothing(store: Store, browsing: Context, memory_jobs: MemoryJobs) -> None:
    run = save(store)
    install(replace(browsing, may_change=lambda: False))

    _, problem = _submit(1, {"run": run, "fingerprint": finding_of(store, run)})

    assert "Read only" in text(problem)
    assert memory_jobs.list() == []


def test_a_refused_job_is_a_sentence(store: Store, memory_jobs: MemoryJobs) -> None:
    run = save(store)
    memory_jobs.refuse = "The script has changed since the run; run it again with: fusion-audit run train.py"

    _, problem = _submit(1, {"run": run, "fingerprint": finding_of(store, run)})

    assert "The script has changed since the run" in text(problem)


def test_a_fix_that_was_asked_for_other_rules_measured_nothing_of_this_one(store: Store) -> None:
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}
    fix = save_fix(store, run)
    for site in fix.sites:
        site.state, site.reason, site.replacement = "refused", NOT_SELECTED, ""
    store.save_fix(fix)
    stored_as_first = page("finding")._measured("light", [], which)
    assert "Not measured yet" not in text(stored_as_first)  # the older fix tried it

    other = save(store)
    fix.run = other
    store.save_fix(fix)
    said = text(page("finding")._measured("light", [], {"run": other, "fingerprint": finding_of(store, other)}))
    assert said.startswith("Not measured yet for FUS202. The fixes of this run so far tried other rules.")
    assert said.index("What the newest of them measured") < said.index("Nothing was kept")


def test_what_was_measured(store: Store) -> None:
    run = save(store)
    which = {"run": run, "fingerprint": finding_of(store, run)}

    assert "Not measured yet." in text(page("finding")._measured("light", [], which))
    fix = save_fix(store, run)
    shown = page("finding")._measured("light", [], which)

    said = text(shown)
    assert "×2.50 (2.40 to 2.60)" in said
    assert "×1.33 (1.30 to 1.36)" in said
    assert "2.0e-07 / 3.0e-07" in said
    assert "1.00 MB" in said
    assert "+10 %" in said
    assert links(shown)["The audit after it"] == f"/run/{fix.after_run}"
    assert links(shown)["Gate"] == f"/gate?model=llama-patched&baseline={run}"
