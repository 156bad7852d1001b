"""Several versions of one computation timed against each other: all in every round, in a new order each time.

Absolute times on a shared machine move by up to 4× between runs; ratios of one round's samples hardly do. Rounds are
added until the ratios are known well enough, or time is up.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import numpy as np

from auditor.frames import with_room
from auditor.graph.garbage import collection_paused
from auditor.measuring.clocks import Call, Clock, clock_of, first_us
from auditor.measuring.ratio import Ratio, without_drift

if TYPE_CHECKING:
    import torch

MIN_ROUNDS: Final = 10
"""Fewer are taken to be an accident, however alike they are."""
MOST_CALLS: Final = 10_000
"""In one sample."""
FEW_CALLS: Final = 4
FEW_CALLS_SHARE: Final = 20
"""So many calls are in a sample at least, unless they last this many times as long as it has to."""
GROWTH: Final = 1.2
"""How many times as many rounds there are at the next look at the intervals."""


class VersionFailedError(Exception):
    """A version raised; ``version`` is its name, ``__cause__`` what it raised."""

    def __init__(self, version: str, cause: Exception) -> None:
        super().__init__(f"{version}: {type(cause).__name__}: {cause}")
        self.version = version


@dataclass(frozen=True)
class Timings:
    """What :func:`interleave` found. All times are microseconds of one call."""

    baseline: str
    samples_us: Mapping[str, tuple[float, ...]]
    """One for each round, as taken."""
    first_us: Mapping[str, float]
    """Wall time of the very first call: compilation, autotuning."""
    calls: Mapping[str, int]
    """How many make up one sample."""
    ended: Literal["tight", "cap"]
    """Whether every interval was tight, or the time (or the rounds) had come to an end before."""
    seconds: float
    """All rounds together."""

    @property
    def rounds(self) -> int:
        return len(self.samples_us[self.baseline])

    @property
    def median_us(self) -> dict[str, float]:
        """The median of each version, all rounds brought to one pace: their quotients agree with :meth:`ratio`."""
        medians = np.median(without_drift(np.array(list(self.samples_us.values()))), axis=1)
        return dict(zip(self.samples_us, map(float, medians), strict=True))

    def ratio(self, version: str, *, against: str | None = None) -> Ratio:
        """How many times faster ``version`` is than ``against`` (the baseline where None). KeyError: no such name."""
        return Ratio.of(self.samples_us[against or self.baseline], self.samples_us[version])

    def within(self, tight: float) -> bool:
        """Whether every version's interval against the baseline lies within ± ``tight`` of its ratio."""
        return all(self.ratio(name).within(tight) for name in self.samples_us if name != self.baseline)


def interleave(
    versions: Mapping[str, Call],
    *,
    baseline: str,
    cap_s: float = 30.0,
    tight: float = 0.01,
    min_rounds: int = MIN_ROUNDS,
    max_rounds: int | None = None,
    sample_us: float = 1000.0,
    device: torch.device | str = "cpu",
    clock: Clock | None = None,
    seed: int = 0,
) -> Timings:
    """Time ``versions`` against each other until each interval against ``baseline`` is within ± ``tight``.

    At most ``cap_s`` seconds (or ``max_rounds``) long, but ``min_rounds`` are always taken. Warming up comes before and
    isn't counted: a version may compile for minutes. A sample is as many calls as last ``sample_us``. On a CPU wrap it
    in :func:`auditor.measuring.kept_memory`.

    Raises:
        ValueError: ``baseline`` is none of the versions, there are no rounds, or the device has no clock.
        VersionFailedError: a version raised an exception.
    """
    if baseline not in versions or min_rounds < 1:
        raise ValueError(f"{baseline!r} has to be one of the versions {list(versions)}, and min_rounds at least 1.")
    take = clock or clock_of(device)

    def timings() -> Timings:
        first, calls = _warm_up(versions, take, sample_us, device)
        samples: dict[str, list[float]] = {name: [] for name in versions}
        order, start, look = random.Random(seed), time.monotonic(), min_rounds
        while True:
            for name in order.sample(list(versions), len(versions)):
                samples[name].append(_sample(name, versions[name], take, calls[name]))
            spent, rounds = time.monotonic() - start, len(samples[baseline])
            at_end = spent * (rounds + 1) / rounds > cap_s or rounds == max_rounds
            if rounds < min_rounds or (rounds < look and not at_end):
                continue
            look = math.ceil(GROWTH * rounds)
            taken = {name: tuple(series) for name, series in samples.items()}
            found = Timings(baseline, taken, first, calls, "cap", spent)
            if found.within(tight):
                return replace(found, ended="tight")
            if at_end:
                return found

    return with_room(timings)


def _warm_up(
    versions: Mapping[str, Call], take: Clock, sample_us: float, device: torch.device | str
) -> tuple[dict[str, float], dict[str, int]]:
    """The first call's microseconds, and the calls of one sample. From the third on a CUDA graph is replayed."""
    first, calls = dict[str, float](), dict[str, int]()
    for name, call in versions.items():
        with _named(name):
            first[name] = first_us(call, device)
            take(call, 1)
            calls[name] = _calls(call, take, sample_us)
    return first, calls


def _calls(call: Call, take: Clock, sample_us: float) -> int:
    """How many calls last ``sample_us``; a few, for the clock to choose from, where they don't last far longer."""
    count, each_us = 1, min(take(call, 1) for _ in range(3))
    while count * each_us < sample_us and count < MOST_CALLS:
        fitting = math.ceil(1.1 * sample_us / max(each_us, sample_us / MOST_CALLS))
        count = min(10 * count, max(count + 1, fitting), MOST_CALLS)
        each_us = take(call, count)
    return max(count, min(FEW_CALLS, int(FEW_CALLS_SHARE * sample_us / max(each_us, 1e-3))))


def _sample(name: str, call: Call, take: Clock, count: int) -> float:
    with _named(name), collection_paused():
        return take(call, count)


@contextmanager
def _named(version: str) -> Iterator[None]:
    """An exception of ``version`` gets its name; Ctrl-C and exits pass."""
    try:
        yield
    except Exception as error:
        raise VersionFailedError(version, error) from error
