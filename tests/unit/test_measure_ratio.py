"""How much faster: the interval holds the truth as often as it says, whatever the machine does meanwhile."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditor.measuring import Ratio
from auditor.measuring.ratio import rank_below, without_drift

TRUE = 1.3
SERIES = 400
ENOUGH = 0.95 - 3 * math.sqrt(0.95 * 0.05 / SERIES)
"""A correct 95 % interval holds the truth in fewer of ``SERIES`` series once in 700 tries, and the seeds are fixed."""


def drift(kind: str, rounds: int, pick: np.random.Generator) -> np.ndarray:
    """What both versions of a round see."""
    if kind == "slow":
        return 1 + 3 * np.arange(rounds) / rounds
    if kind == "step":
        return np.where(np.arange(rounds) < pick.integers(1, rounds), 1.0, 4.0)
    return np.exp(np.cumsum(pick.normal(0, 0.05, rounds))) if kind == "walk" else np.ones(rounds)


def series(kind: str, rounds: int, pick: np.random.Generator, true: float = TRUE) -> tuple[list[float], list[float]]:
    """Two versions with 3 % noise; with outliers one sample in five takes up to ten times as long."""
    both = []
    common = drift(kind.split("+")[0], rounds, pick)
    for us in (100.0 * true, 100.0):
        noise = np.exp(pick.normal(0, 0.03, rounds))
        hit = np.where(pick.random(rounds) < 0.2, pick.uniform(1.5, 10, rounds), 1.0) if "outliers" in kind else 1.0
        both.append((us * common * noise * hit).tolist())
    return both[0], both[1]


@pytest.mark.parametrize("rounds", [2, 3, 5, 6, 9, 15, 40, 150])
@pytest.mark.parametrize("kind", ["steady", "slow", "step", "walk", "steady+outliers", "slow+outliers"])
def test_interval_holds_the_truth_in_95_of_100_series(kind: str, rounds: int) -> None:
    pick = np.random.default_rng(rounds)
    found = [Ratio.of(*series(kind, rounds, pick)) for _ in range(SERIES)]
    assert sum(r.low <= TRUE <= r.high for r in found) / SERIES >= ENOUGH


@pytest.mark.parametrize("kind", ["steady", "walk"])
def test_no_difference_is_claimed_between_a_version_and_itself(kind: str) -> None:
    pick = np.random.default_rng(7)
    found = [Ratio.of(*series(kind, 25, pick, true=1.0)) for _ in range(1000)]
    claimed = sum(r.is_faster for r in found), sum(r.high < 1 for r in found)
    assert max(claimed) <= 40  # 25 of 1000 for each side at a level of 95 %, and three standard errors
    assert sum(claimed) >= 15  # not wider than it has to be


def test_interval_is_no_wider_for_a_machine_that_drifts() -> None:
    pick = np.random.default_rng(3)
    widths = {}
    for kind in ("steady", "slow", "step", "walk"):
        found = [Ratio.of(*series(kind, 50, pick)) for _ in range(100)]
        widths[kind] = np.median([r.high / r.low - 1 for r in found])
    assert max(widths.values()) < 1.15 * min(widths.values())
    assert widths["steady"] < 0.05


@given(st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=40), st.floats(0.01, 100))
def test_properties(rounds: list[tuple[float, float]], factor: float) -> None:
    baseline, new = map(list, zip(*rounds, strict=True))
    found, swapped = Ratio.of(baseline, new), Ratio.of(new, baseline)
    scaled = Ratio.of([factor * us for us in baseline], new)
    assert found.low <= found.ratio <= found.high
    assert swapped.ratio == pytest.approx(1 / found.ratio)
    assert scaled.ratio == pytest.approx(factor * found.ratio)
    if len(rounds) > 1:
        assert (swapped.low, swapped.high) == pytest.approx((1 / found.high, 1 / found.low))


def test_one_round_tells_nothing_of_its_error() -> None:
    assert Ratio.of([2.0], [1.0]) == Ratio(2.0, 0.0, math.inf)


def test_equal_rounds_leave_no_doubt() -> None:
    found = Ratio.of([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    assert found == Ratio(2.0, 2.0, 2.0) or found.within(1e-12)
    assert found.is_faster


@pytest.mark.parametrize(
    ("ratio", "tight"), [(Ratio(2.0, 1.98, 2.02), True), (Ratio(2.0, 1.9, 2.02), False), (Ratio(2.0, 1.98, 2.1), False)]
)
def test_within(ratio: Ratio, tight: bool) -> None:
    assert ratio.within(0.01 + 1e-9) is tight


@pytest.mark.parametrize(
    ("baseline", "new"), [([], []), ([1.0], []), ([1.0, 2.0], [1.0]), ([0.0], [1.0]), ([1.0], [math.nan])]
)
def test_what_is_no_pair_of_series_is_refused(baseline: list[float], new: list[float]) -> None:
    with pytest.raises(ValueError, match=r"Two series of the same rounds|has to be a time above 0"):
        Ratio.of(baseline, new)


def test_ranks_are_those_of_the_binomial_distribution() -> None:
    def tail(rank: int, rounds: int) -> float:
        return sum(math.comb(rounds, k) for k in range(rank)) / 2**rounds

    for rounds in range(6, 400):
        rank = rank_below(rounds)
        assert rank >= 1
        assert tail(rank, rounds) <= 0.025 < tail(rank + 2, rounds)


def test_without_drift_all_rounds_run_at_one_pace() -> None:
    steady = np.array([[100.0] * 9, [50.0] * 9, [70.0] * 9])
    common = np.array([1, 1, 4, 1, 4, 4, 2, 1, 4.0])
    assert without_drift(steady * common) == pytest.approx(steady * np.median(common))
    spoilt = steady * common
    spoilt[1, 3] *= 10  # of one version in one round: the others' figures stay
    assert without_drift(spoilt)[[0, 2]] == pytest.approx((steady * np.median(common))[[0, 2]])
