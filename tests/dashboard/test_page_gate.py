"""The gate: a run held to its project's budget and to the run before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import GATES, save
from shown import by_id, links, page, parts, text

from auditor.gate.baseline import stored_baseline
from auditor.store import Store
from auditor.store.registering import register
from dashboard.context import Context, installed
from dashboard.data.gate import judged

pytestmark = pytest.mark.usefixtures("browsing")


def verdicts(shown: Any) -> dict[str, str]:
    rows = [part for part in parts(shown) if type(part).__name__ == "Tr"]
    cells = [[text(cell) for cell in row.children] for row in rows]
    return {row[0]: row[4] for row in cells if len(row) == 5 and row[4] in ("worse", "better", "same", "unknown")}


def judged_limits(shown: Any) -> dict[str, list[str]]:
    rows = [part for part in parts(shown) if type(part).__name__ == "Tr"]
    cells = [[text(cell) for cell in row.children] for row in rows]
    return {row[0]: row[1:] for row in cells if len(row) == 6 and row[1] in ("failed", "warned", "passed", "not held")}


@pytest.fixture
def budget(browsing: Context, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Writes the budget of the project that the service was started in."""
    folder = tmp_path / "project"
    folder.mkdir()

    def write(text: str) -> None:
        settings = f'[project]\nname = "llamas"\n[tool.fusion-audit]\n{text}\n'
        (folder / "pyproject.toml").write_text(settings, encoding="utf-8")

    write("")
    with installed(replace(browsing, folder=folder)):
        yield write


def test_the_gate_of_a_run_that_got_worse(store: Store) -> None:
    save(store, GATES)
    save(store)

    shown = page("gate").layout(model="llama")

    said = text(shown)
    assert "Over budget: 5 of 5 limits broken. 1 finding is new or larger." in said
    assert judged_limits(shown)["kernels against the baseline"][:3] == ["failed", "11", "2"]
    assert "new" in said
    assert verdicts(shown)["avoidable kernels"] == "worse"
    assert "+6 (+600 %)" in said
    assert "fusion-audit show" in said


def test_a_finding_that_grew_leads_to_where_the_run_has_it(store: Store) -> None:
    before = store.load(save(store))
    document = before.document
    found = document.findings[0]
    assert found.module_class
    found.module_class, found.source, found.fingerprint = "", None, "0123456789abcdef"
    found.sites, found.kernels = 3 * found.sites, 3 * found.kernels
    document.totals.unfused_kernels += found.kernels
    after = store.save(document, dict(before.tables))

    shown = page("gate").layout(model="llama")

    assert judged_limits(shown)["unfused kernels against the baseline"][0] == "failed"
    assert links(shown)[found.name] == f"/run/{after}/finding/0123456789abcdef"
    compared = page("compare")._compare(before.id, after)
    assert f"/run/{after}/finding/0123456789abcdef" in links(compared).values()


def test_the_gate_of_a_run_that_got_better_and_of_an_equal_one(store: Store) -> None:
    save(store)
    save(store, GATES)
    shown = page("gate").layout(model="llama")
    assert "Within budget: 5 limits kept." in text(shown)
    assert verdicts(shown)["avoidable kernels"] == "better"

    save(store, GATES)
    shown = page("gate").layout(model="llama")
    assert "Within budget: 5 limits kept." in text(shown)
    assert set(verdicts(shown).values()) == {"same"}


def test_the_run_and_the_baseline_are_those_that_the_address_names(store: Store) -> None:
    first = save(store)
    second = save(store, GATES)
    save(store, GATES)

    shown = page("gate").layout(model="llama", baseline=first)
    assert verdicts(shown)["avoidable kernels"] == "better"
    assert by_id(shown, "gate-baseline").value.endswith(first)

    shown = page("gate").layout(model="llama", run=second)
    assert by_id(shown, "gate-run").value.endswith(second)
    assert verdicts(shown)["avoidable kernels"] == "better"  # against the run before that one
    for query in ({"baseline": "nowhere"}, {"run": "nowhere"}):
        assert "no run 'nowhere'" in text(page("gate").layout(model="llama", **query))


def test_the_budget_of_the_project_is_held(store: Store, budget: Callable[[str], None]) -> None:
    budget("max_unfused_kernels = 8\nmax_kernels = 11\n[[tool.fusion-audit.require]]\nrule = 'FUS206'")
    run = save(store)

    shown = page("gate").layout(model="llama")

    held = judged_limits(shown)
    assert held["unfused kernels"][:3] == ["failed", "9", "8"]
    assert held["kernels"][:3] == ["passed", "11", "11"]
    assert held["the fusion of FUS206 is live"][:3] == ["failed", "0", "at least 1"]
    assert held["unfused kernels"][-1].endswith("pyproject.toml:4")
    assert links(shown)["unfused-add-rms-norm"].startswith(f"/run/{run}/finding/")
    said = text(shown)
    assert "Over budget: 2 of 3 limits broken." in said
    assert "unfused, at most 8" in said
    assert "9 over" in " ".join(said.split())
    assert f"fusion-audit fix {run}" in said

    budget("max_unfused_kernels = 9")  # who edits the file and looks again sees the edit
    assert "Within budget: 1 limit kept." in text(page("gate").layout(model="llama"))


def test_a_limit_on_modules_counts_their_sites(store: Store, budget: Callable[[str], None]) -> None:
    budget("[[tool.fusion-audit.budgets]]\nmodules = 'layers.0.*'\nmax_unfused_kernels = 1")
    save(store)
    assert judged_limits(page("gate").layout(model="llama"))["unfused kernels in layers.0.*"][:3] == [
        "failed",
        "9",
        "1",
    ]


def test_a_budget_is_of_its_project_only(store: Store, budget: Callable[[str], None]) -> None:
    budget("max_unfused_kernels = 0")
    save(store, project="berts")
    save(store, project="berts")

    said = text(page("gate").layout(model="llama"))

    assert "No settings of the project berts are on this machine" in said
    assert "Within budget: 5 limits kept." in said


def test_a_run_that_was_recorded_here_has_the_budget_of_its_folder(
    store: Store, budget: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget("max_unfused_kernels = 0")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "pyproject.toml").write_text("[tool.fusion-audit]\nmax_kernels = 10\n", encoding="utf-8")
    (elsewhere / "train.py").write_text("", encoding="utf-8")
    run = save(store)
    monkeypatch.chdir(elsewhere)
    register(store, run, "train.py", [], "a" * 64)

    assert judged_limits(page("gate").layout(model="llama")).keys() == {"kernels"}


def test_a_wrong_budget_is_told_with_its_line_and_the_rest_is_shown(
    store: Store, budget: Callable[[str], None]
) -> None:
    budget("max_unfused_kernels = 'many'")
    save(store)
    save(store)

    said = text(page("gate").layout(model="llama"))

    assert "pyproject.toml:4" in said, said
    assert "Within budget: 5 limits kept." in said


def test_a_run_of_another_torch_is_no_baseline(store: Store, budget: Callable[[str], None]) -> None:
    save(store, torch="2.6.0")
    save(store)
    said = text(page("gate").layout(model="llama"))
    assert "is of torch 2.6 and the run of torch 2.13" in said
    assert "Counts" not in said

    budget("max_kernels = 10")
    assert "Over budget: 1 of 1 limit broken." in text(page("gate").layout(model="llama"))


def test_counts_of_a_trace_of_several_steps_are_a_step_each(store: Store) -> None:
    one = save(store)
    loaded = store.load(one)
    of_three = loaded.document
    of_three.run.source, of_three.coverage.steps = "trace", 3
    for field in ("kernels", "unfused_kernels", "avoidable_kernels", "bytes", "step_us"):
        setattr(of_three.totals, field, 3 * getattr(of_three.totals, field))
    three = store.save(of_three, dict(loaded.tables))

    gate = judged(store.summary(three), one).gate

    assert gate is not None
    assert gate.comparison is not None
    assert {m.label: m.verdict for m in gate.comparison.measures} == {
        "unfused kernels": "same", "avoidable kernels": "same", "kernels": "same", "bytes moved by kernels": "same",
        "peak memory": "same",
        "memory-bound share of kernel time": "same", "step time": "same",
    }  # fmt: skip


@pytest.mark.usefixtures("budget")
def test_the_gate_of_one_run_and_of_none(store: Store) -> None:
    assert "No audits yet." in text(page("gate").layout())
    save(store)
    said = text(page("gate").layout())
    assert "Nothing to hold this run to." in said
    assert "pyproject.toml  sets no limit" in said, said
    assert "No run is called bert." in text(page("gate").layout(model="bert"))


def test_times_are_medians_over_the_runs_of_one_program_as_for_the_command(store: Store) -> None:
    def timed(commit: str, step_us: float) -> str:
        loaded = store.load(save(store, commit=commit))
        loaded.document.totals.step_us = step_us
        run = store.save(loaded.document, dict(loaded.tables))
        store.delete(loaded.id)
        return run

    runs = [timed("a" * 40, step_us) for step_us in (1000.0, 1010.0, 5000.0)]
    after = timed("b" * 40, 3000.0)

    found = judged(store.summary(after), runs[-1]).gate
    told = stored_baseline(runs[-1], store)

    assert found is not None
    assert found.comparison is not None
    step = next(m for m in found.comparison.measures if m.key == "step_us")
    assert step.before == told.snapshot.figures.step_us == pytest.approx(1010.0)
    assert step.after == pytest.approx(3000.0)
