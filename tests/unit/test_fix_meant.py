"""What a reference means for fixes: never a run under a plan, and always the fix that belongs to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from auditor.document import Document, Run
from auditor.errors import AuditError
from auditor.fix.meant import fix_of, fixable
from auditor.fix_document import FixDocument
from auditor.store import Store

Cli = Callable[..., Any]  # gives (code, out, err)
PLAN = "/p/plan.yaml"


@pytest.fixture
def save(store: Store, folder: Path) -> Callable[..., str]:
    """Stores a run of m.py, which is there."""
    (folder / "m.py").touch()
    return lambda name="m", **facts: store.save(Document(run=Run(name=name, script=["m.py"], **facts)), {})


@pytest.mark.parametrize("ref", ["latest", "m"])
def test_latest_and_a_name_mean_the_newest_run_without_a_plan(store: Store, save: Callable[..., str], ref: str) -> None:
    # GIVEN a run, and later ones of that name that were recorded under a plan
    save()
    run = save()
    save(plan=PLAN)
    save(plan=PLAN, patched_from=run)

    assert fixable(store, ref).id == run


def test_an_id_of_a_run_under_a_plan_is_refused_and_the_run_to_fix_named(
    fusion_audit: Cli, save: Callable[..., str]
) -> None:
    run = save()
    patched = save("m-patched", plan=PLAN, patched_from=run)
    for ref in (patched, patched[:-1], "m-patched"):
        assert fusion_audit("fix", ref) == (
            2, "",
            f"error: run {patched} was recorded under the plan {PLAN}; fix the run that it is made for: "
            f"fusion-audit fix {run}\n",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"plan": PLAN}, "under the plan /p/plan.yaml; fix the run of the script without it"),
        ({"patched_from": "1m8aaaaaaaaa"}, "under a plan; the run to fix is 1m8aaaaaaaaa, which is not stored here"),
    ],
    ids=["unknown", "elsewhere"],
)
def test_where_the_run_to_fix_is_not_here_that_is_said(
    store: Store, save: Callable[..., str], facts: dict[str, str], sentence: str
) -> None:
    save(**facts)
    with pytest.raises(AuditError, match=sentence):
        fixable(store, "latest")


def fix(run: str, plan: str, us: float, created: str = "2026-01-02T03:04:05+00:00") -> FixDocument:
    return FixDocument(run=run, plan=plan, measured_us=us, created=created)


def test_a_run_under_a_plan_leads_to_the_fix_that_wrote_the_plan(store: Store, save: Callable[..., str]) -> None:
    # GIVEN fixes of a run: of another plan, of this one, and of this one after it was applied
    run = save()
    for made in (
        fix(run, "plan.yaml", 1.0), fix(run, "plan.yaml", 2.0), fix(run, "other.yaml", 3.0), fix(run, "", 4.0),
        fix(run, "plan.yaml", 5.0, "2026-03-01T00:00:00+00:00"),
    ):  # fmt: skip
        store.save_fix(made)
    patched = save("m-patched", plan=PLAN, patched_from=run, created="2026-02-01T00:00:00+00:00")

    assert fix_of(store, patched).measured_us == 2.0
    assert fix_of(store, run).measured_us == 5.0


@pytest.mark.parametrize("known", ["", "1m8aaaaaaaaa"], ids=["unknown", "elsewhere"])
def test_a_plan_of_an_unknown_fix_is_one_sentence(fusion_audit: Cli, save: Callable[..., str], known: str) -> None:
    patched = save("m-patched", plan=PLAN, patched_from=known)
    assert fusion_audit("show", "--fix") == (
        2, "",
        f"error: run {patched} was recorded under the plan {PLAN}, and the fix that wrote it is not stored here\n",
    )  # fmt: skip


def test_the_list_of_runs_says_which_are_patched(fusion_audit: Cli, save: Callable[..., str]) -> None:
    run = save()
    save("m-patched", plan=PLAN, patched_from=run)
    head, patched, plain = fusion_audit("runs").out.splitlines()
    at = head.index("PATCHED FROM")
    assert patched[at:].startswith(f"{run} ")
    assert plain[at:].startswith("- ")
