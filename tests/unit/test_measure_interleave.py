"""Rounds of all versions: what is called when, until when, and what a version may do wrong. No clock is asked here
but one that is made up: a version returns the microseconds that it takes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from auditor.measuring import DeviceClock, Timings, VersionFailedError, clock_of, interleave, wall_clock

Version = Callable[[], Any]


def made_up(call: Version, count: int) -> float:
    return float(np.mean([call() for _ in range(count)]))


def noisy(us: float, seed: int, noise: float = 0.02) -> Version:
    pick = np.random.default_rng(seed)
    return lambda: us * float(np.exp(pick.normal(0, noise)))


def test_ends_when_every_interval_is_tight() -> None:
    versions = {"eager": noisy(3000, 1), "patched": noisy(2000, 2), "compile": noisy(2500, 3)}
    timings = interleave(versions, baseline="eager", clock=made_up)
    assert timings.ended == "tight"
    assert timings.within(0.01)
    assert timings.rounds >= 10
    assert timings.ratio("patched").ratio == pytest.approx(1.5, rel=0.02)
    assert timings.ratio("patched", against="compile").ratio == pytest.approx(1.25, rel=0.02)
    assert timings.median_us == pytest.approx({"eager": 3000, "patched": 2000, "compile": 2500}, rel=0.02)


def test_loud_noise_takes_more_rounds() -> None:
    def rounds(noise: float) -> int:
        versions = {"a": noisy(3000, 1, noise), "b": noisy(2000, 2, noise)}
        return interleave(versions, baseline="a", clock=made_up, max_rounds=5000).rounds

    assert rounds(0.001) == 10 < rounds(0.05) < rounds(0.1) < 5000


@pytest.mark.parametrize(
    ("cap", "rounds"), [({"cap_s": 0.0}, 10), ({"cap_s": 0.0, "min_rounds": 3}, 3), ({"max_rounds": 12}, 12)]
)
def test_ends_at_the_cap_but_not_before_the_fewest_rounds(cap: dict[str, Any], rounds: int) -> None:
    timings = interleave({"a": noisy(3000, 1, 0.3), "b": noisy(2000, 2, 0.3)}, baseline="a", clock=made_up, **cap)
    assert (timings.ended, timings.rounds) == ("cap", rounds)


def test_a_version_against_itself_is_no_faster_though_rounds_end_by_what_was_found() -> None:
    claimed = 0
    for seed in range(200):
        versions = {"a": noisy(3000, 2 * seed), "b": noisy(3000, 2 * seed + 1)}
        found = interleave(versions, baseline="a", clock=made_up).ratio("b")
        claimed += not found.low <= 1 <= found.high
    assert claimed <= 20  # 10 of 200, and three standard errors


def test_every_version_runs_once_in_a_round_in_changing_order() -> None:
    ran: list[str] = []

    def version(name: str) -> Version:
        return lambda: ran.append(name) or 30_000.0

    def order(seed: int) -> list[tuple[str, ...]]:
        ran.clear()
        names = ("a", "b", "c")
        interleave({n: version(n) for n in names}, baseline="a", clock=made_up, min_rounds=8, cap_s=0, seed=seed)
        return [tuple(ran[i : i + 3]) for i in range(len(ran) - 24, len(ran), 3)]

    rounds = order(0)
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 2
    assert rounds == order(0) != order(1)


@pytest.mark.parametrize(
    ("us", "least", "most"),
    [(30_000.0, 1, 1), (7000.0, 2, 2), (400.0, 4, 4), (3.0, 334, 400), (0.0001, 10_000, 10_000)],
)
def test_a_sample_is_as_many_calls_as_last_a_millisecond(us: float, least: int, most: int) -> None:
    timings = interleave({"a": lambda: us}, baseline="a", clock=made_up, min_rounds=2)
    assert least <= timings.calls["a"] <= most
    assert timings.samples_us["a"] == pytest.approx((us, us))


def test_first_calls_are_apart_and_before_any_round() -> None:
    calls = 0

    def compiles() -> float:
        nonlocal calls
        calls += 1
        return 1e6 if calls == 1 else 2000.0

    timings = interleave({"a": compiles, "b": lambda: 2000.0}, baseline="b", clock=made_up)
    assert set(timings.first_us) == {"a", "b"}
    assert all(us > 0 for us in timings.first_us.values())
    assert set(timings.samples_us["a"]) == {2000.0}


@pytest.mark.parametrize("at", [1, 2, 3, 7])
def test_a_version_that_raises_is_named(at: int) -> None:
    calls = 0

    def breaks() -> float:
        nonlocal calls
        calls += 1
        if calls == at:
            raise RuntimeError("no such shape")
        return 2000.0

    with pytest.raises(VersionFailedError, match="patched: RuntimeError: no such shape") as failed:
        interleave({"eager": lambda: 2000.0, "patched": breaks}, baseline="eager", clock=made_up)
    assert failed.value.version == "patched"
    assert isinstance(failed.value.__cause__, RuntimeError)
    assert gc.isenabled()


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_passes(stop: type[BaseException]) -> None:
    def stops() -> float:
        raise stop

    with pytest.raises(stop):
        interleave({"a": stops}, baseline="a", clock=made_up)
    assert gc.isenabled()


def test_the_garbage_collector_rests_during_samples_only() -> None:
    on: list[bool] = []

    def clock(call: Version, _: int) -> float:
        on.append(gc.isenabled())
        return float(call())

    interleave({"a": lambda: 2000.0}, baseline="a", clock=clock, min_rounds=4)
    assert not any(on[-4:])
    assert gc.isenabled()


@pytest.mark.parametrize("wrong", [{"baseline": "none"}, {"baseline": "a", "min_rounds": 0}])
def test_a_baseline_and_rounds_are_needed(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has to be one of the versions"):
        interleave({"a": lambda: None}, **wrong)


def test_medians_agree_with_ratios_on_a_drifting_machine() -> None:
    common = [1.0, 1.0, 1.0, 4.0, 4.0, 4.0]
    samples = {"a": tuple(30 * c for c in common), "b": tuple(20 * c for c in (1.0, 1.0, 1.02, 3.9, 4.0, 4.0))}
    timings = Timings("a", samples, {}, {}, "cap", 1.0)
    assert timings.median_us["a"] / timings.median_us["b"] == pytest.approx(timings.ratio("b").ratio, rel=1e-3)
    assert replace(timings, baseline="b").ratio("a").ratio == pytest.approx(1 / timings.ratio("b").ratio)


def test_wall_time_on_a_cpu() -> None:
    small, large = torch.ones(64, 64), torch.ones(1024, 1024)
    timings = interleave({"large": lambda: large @ large, "small": lambda: small @ small}, baseline="large", cap_s=0.2)
    assert clock_of("cpu") is wall_clock
    assert timings.ratio("small").is_faster  # of 4,096 times as much work, not a bound on either


def test_a_call_that_was_disturbed_is_not_the_samples() -> None:
    calls = 0

    def disturbed() -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            time.sleep(0.05)

    assert wall_clock(disturbed, 8) < 50_000 < sum(wall_clock(disturbed, 1) for _ in range(4))


def test_a_device_without_events_has_no_clock() -> None:
    with pytest.raises(ValueError, match="meta: no such device"):
        interleave({"a": lambda: None}, baseline="a", device="meta")


class Event:
    """Of a device that is always idle: the events tell the time by what ran before them."""

    ran: list[str] = []

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.ran.append("event")
        self.at = len(self.ran)

    def elapsed_time(self, end: Event) -> float:
        return float(end.at - self.at)


def test_a_device_flushes_its_cache_before_every_call_and_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        Event = Event

        @staticmethod
        def get_device_properties(_: torch.device) -> Any:
            return type("Properties", (), {"L2_cache_size": 2**10})

        @staticmethod
        def synchronize() -> None:
            Event.ran.append("synchronize")

    class Flush:
        def zero_(self) -> None:
            Event.ran.append("flush")

    monkeypatch.setattr(Event, "ran", [])
    monkeypatch.setattr(torch, "cpu", Runtime)
    monkeypatch.setattr("auditor.measuring.clocks.FLUSH_BYTES", 64)
    clock = DeviceClock(torch.device("cpu"))
    assert clock._flush.nbytes == 2 * 2**10
    clock._flush = Flush()  # type: ignore[assignment]
    us = clock(lambda: Event.ran.append("call"), 2)
    assert Event.ran == ["flush", "event", "call", "event"] * 2 + ["synchronize"]
    assert us == 2 * 1000  # elapsed_time is in milliseconds
