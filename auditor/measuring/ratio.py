"""How much faster one version is than another, from samples that were taken in the same rounds.

On a shared machine absolute times drift by integer factors, and the versions of one round drift together. So a round's
common factor is taken out first; the medians of what is left are compared. Medians of raw samples may fall into
different rounds: with a drift of 4× over 100 rounds their bootstrap interval is four times as wide.

What is left is one ratio a round, of which the median is sought. Its interval lies between two of them, whose ranks
need no assumption but that rounds are alike (H. A. David, H. N. Nagaraja: Order Statistics, 2003, section 7.1). It is
what a bootstrap over whole rounds tends to, without its draws: 10,000 rounds take milliseconds, not seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float64]

STUDENT: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""The 97.5 % quantile of Student's t for so many rounds, which are too few for ranks."""
MEDIAN_ERROR: Final = math.sqrt(math.pi / 2)
"""The standard error of a median, in those of a mean."""


@dataclass(frozen=True)
class Ratio:
    """Time of the baseline / time of the new version (above 1: the new one is faster), with a 95 % interval."""

    ratio: float
    low: float
    high: float

    @classmethod
    def of(cls, baseline: Sequence[float], new: Sequence[float]) -> Ratio:
        """The ratio of two series; ``baseline[i]`` and ``new[i]`` come from round ``i``, in one unit of time.

        Of fewer than six rounds the interval is Student's, of their log ratios. One round tells nothing of its error:
        from 0 to infinity.

        Raises:
            ValueError: the series are empty or of unequal length, or hold a sample that is no time above 0.
        """
        logs = np.sort(_log_ratios(baseline, new))
        ratio, rounds = float(np.median(logs)), len(logs)
        if rounds == 1:
            return cls(_exp(ratio), 0.0, math.inf)
        low, high = _student(logs, ratio) if rounds in STUDENT else _between_ranks(logs)
        return cls(_exp(ratio), _exp(low), _exp(high))

    @property
    def is_faster(self) -> bool:
        """Whether the new version is faster for certain: its whole interval lies above 1."""
        return self.low > 1

    def within(self, tight: float) -> bool:
        """Whether both ends of the interval lie within ± ``tight`` (0.01 is 1 %) of the ratio."""
        return self.high <= self.ratio * (1 + tight) and self.low >= self.ratio * (1 - tight)


def _exp(log: float) -> float:
    """Infinity beyond the numbers that there are: few samples, far apart, have such an interval."""
    try:
        return math.exp(log)
    except OverflowError:
        return math.inf


def without_drift(samples: Samples) -> Samples:
    """``samples`` (a row for each version, a column for each round) as if all rounds had run at the median pace.

    A round's pace is the median over versions of how far each is from its own median.
    """
    logs = np.log(samples)
    pace = np.median(logs - np.median(logs, axis=1, keepdims=True), axis=0)
    return np.asarray(np.exp(logs - pace + np.median(pace)), dtype=np.float64)


def rank_below(rounds: int) -> int:
    """Rank from below, 1 for the lowest, at or above which the median lies in 97.5 % of all series of ``rounds`` ≥ 6.

    By the normal approximation of the binomial distribution: never above the exact rank, at most one below.
    """
    return math.floor((rounds + 1) / 2 - NormalDist().inv_cdf(0.975) * math.sqrt(rounds) / 2)


def _log_ratios(baseline: Sequence[float], new: Sequence[float]) -> Samples:
    """One for each round; what is common to a round has no part in it."""
    if len(baseline) != len(new) or not len(baseline):
        raise ValueError(f"Two series of the same rounds are needed, not of {len(baseline)} and {len(new)} samples.")
    pairs = np.array([baseline, new], dtype=np.float64)
    if not (np.isfinite(pairs) & (pairs > 0)).all():
        raise ValueError("Every sample has to be a time above 0.")
    return np.asarray(np.log(pairs[0]) - np.log(pairs[1]), dtype=np.float64)


def _student(logs: Samples, middle: float) -> tuple[float, float]:
    error = STUDENT[len(logs)] * MEDIAN_ERROR * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return middle - error, middle + error


def _between_ranks(ordered: Samples) -> tuple[float, float]:
    rank = rank_below(len(ordered))
    return float(ordered[rank - 1]), float(ordered[-rank])
