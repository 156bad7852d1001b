"""Times of several runs of one program: the gate takes their median, shows its interval, and only ever warns."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gate_factory import graph, save

from auditor.gate.spread import spread, spreads_of
from auditor.gate_document import Spread
from auditor.store import Store

COMMIT, OTHER = "c" * 40, "d" * 40
Cli = Callable[..., Any]


def runs(store: Store, *times_us: float, norms: int = 1, **facts: object) -> list[str]:
    """A stored run for each step time."""
    ids = []
    for time_us in times_us:
        of = graph(norms)
        of.step_us = time_us
        ids.append(save(store, of, **{"commit": COMMIT, **facts}).id)
    return ids


def test_a_median_has_an_interval_from_two_values_on() -> None:
    assert spread([]) is None
    assert spread([None, 0.0]) is None
    assert spread([5.0]) == Spread(runs=1, median=pytest.approx(5.0))
    two = spread([4.0, 4.41])
    assert two is not None
    assert (two.runs, two.median) == (2, pytest.approx(4.2))  # of ratios: 4 to 4.2 is as far as 4.2 to 4.41
    assert two.low is not None
    assert two.high is not None
    assert two.low < 4 < 4.41 < two.high  # two values are few


def test_an_interval_that_says_nothing_is_none() -> None:
    assert spread([4.0, 9.0]) == Spread(runs=2, median=pytest.approx(6.0))  # 0.01 to 3,700
    assert spread([1e-300, 1e300]) == Spread(runs=2, median=pytest.approx(1.0))


def test_what_is_no_time_is_not_known() -> None:
    assert spread([-1.0, math.nan, math.inf, None, 0.0]) is None
    assert spread([-1.0, 5.0, math.inf]) == Spread(runs=1, median=pytest.approx(5.0))


def test_nine_equal_values_are_certain() -> None:
    nine = spread([3.0] * 9)
    assert nine is not None
    assert (nine.runs, nine.low, nine.high) == (9, pytest.approx(3.0), pytest.approx(3.0))


def test_only_runs_of_the_same_program_count(store: Store) -> None:
    (first, *_) = runs(store, 1000.0, 1100.0, 1200.0)
    runs(store, 9000.0, commit=OTHER)
    runs(store, 9000.0, name="bert")
    runs(store, 9000.0, torch="2.12.0")
    runs(store, 9000.0, plan="/a/plan.yaml")
    runs(store, 9000.0, norms=2)
    runs(store, 9000.0, world_size=2)
    runs(store, 9000.0, rank=1)

    found = spreads_of(store.load(first), store)["step_us"]

    assert (found.runs, found.median) == (3, pytest.approx(1100.0))


def test_stored_runs_that_can_not_be_read_or_hold_no_time_break_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, gone, newer, damaged = runs(store, 1000.0, 1010.0, 1020.0, 1030.0)
    forged = store.load(first)
    forged.document.totals.step_us, forged.document.totals.memory_bound_us = -5.0, -1.0
    store.save(forged.document, dict(forged.tables))
    found = store.list_runs()
    store.delete(gone)  # after it was listed
    monkeypatch.setattr(store, "list_runs", lambda *_, **__: found)
    for run, document in ((newer, '{"schema": "fusion-audit/9"}'), (damaged, "{")):
        with closing(sqlite3.connect(store.location.file)) as database, database:  # type: ignore[arg-type]
            assert database.execute("update runs set document = ? where id = ?", (document, run)).rowcount == 1

    known = spreads_of(store.load(first), store)
    assert known["step_us"] == Spread(runs=1, median=pytest.approx(1000.0))
    assert known["memory_bound_share"].runs == 1


@pytest.mark.parametrize("commit", ["", f"{COMMIT}-dirty"])
def test_a_program_that_is_not_known_is_of_one_run(store: Store, commit: str) -> None:
    first, _ = runs(store, 100.0, 110.0, commit=commit)
    assert spreads_of(store.load(first), store)["step_us"].runs == 1


def test_so_many_runs_are_read_and_no_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auditor.gate.spread._MOST", 3)
    first = runs(store, *[1000.0] * 5)[0]
    assert spreads_of(store.load(first), store)["step_us"].runs == 3


class TestThroughTheCommandLine:
    @pytest.fixture(autouse=True)
    def _folder(self, folder: Path) -> None:
        """Budgets are written into a folder of their own."""

    def gate(self, fusion_audit: Cli, budget: str, *words: str) -> str:
        Path("budget.yaml").write_text(budget)
        done = fusion_audit("gate", "--budget", "budget.yaml", *words)
        assert (done.code, done.err) == (0, "")  # a time never fails a build
        return " ".join(done.out.split())

    def test_one_run_says_that_it_is_one(self, fusion_audit: Cli, store: Store) -> None:
        runs(store, 1200.0)
        out = self.gate(fusion_audit, "max_step_us: 1 ms")
        assert "warning[max_step_us] step time: 1.20 ms (one run), 200 µs more than the 1.00 ms allowed" in out
        assert "within budget: 1 limit kept, 1 warning" in out

    def test_a_median_above_its_limit_warns_with_its_interval(self, fusion_audit: Cli, store: Store) -> None:
        runs(store, 1180.0, 1190.0, 1200.0, 1210.0, 1220.0, 5000.0, 1205.0)
        out = self.gate(fusion_audit, "max_step_us: 1000")
        said = "step time: 1.20 ms (median of 7 runs, 1.18 ms to 5.00 ms), 205 µs more than the 1.00 ms allowed"
        assert f"warning[max_step_us] {said}" in out

    def test_one_that_may_have_been_kept_does_not(self, fusion_audit: Cli, store: Store) -> None:
        runs(store, 900.0, 1100.0, 1200.0)
        out = self.gate(fusion_audit, "max_step_us: 1000")
        assert "passed step time: 1.10 ms (median of 3 runs, " in out
        assert "not above the 1.00 ms allowed for certain" in out

    def test_an_increase_is_of_medians_on_both_sides(self, fusion_audit: Cli, store: Store) -> None:
        before = runs(store, 1000.0, 1010.0, 990.0)[0]
        runs(store, 1500.0, 1510.0, 1505.0, commit=OTHER)
        increase = "max_increase: {step_us: 10 %, kernels: 0}"

        out = self.gate(fusion_audit, increase, "--baseline", before)

        assert "step time against the baseline: grew from 1.00 ms to 1.50 ms (median of 3 runs, " in out or (
            "step time against the baseline: grew from 1.00 ms to 1.51 ms (median of 3 runs, " in out
        )
        assert "1.10 ms would be allowed" in out
        shown = fusion_audit("gate", "--budget", "budget.yaml", "--baseline", before, "--format", "markdown").out
        assert "median of 3 runs, 1.4" in shown  # in the table of figures, too

    def test_units_of_time(self, fusion_audit: Cli, store: Store) -> None:
        runs(store, 1000.0)
        for limit in ("2000", "2 ms", "2000us", "2000 µs", "0.002 s"):
            assert "of at most 2.00 ms" in self.gate(fusion_audit, f"max_step_us: {limit}")
        Path("budget.yaml").write_text("max_step_us: 2 minutes\n")
        done = fusion_audit("gate", "--budget", "budget.yaml")
        assert (done.code, done.out) == (2, "")
        assert "max_step_us: must be a number of microseconds, or text such as \"12 ms\", not '2 minutes'" in done.err
