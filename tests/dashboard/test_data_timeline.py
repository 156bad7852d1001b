"""What is drawn of a timeline: by kernel or by pixel, against a plain sum over all kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tables import random_table, table

from dashboard.data import timeline as module
from dashboard.data.kernel_table import KernelTable
from dashboard.data.kinds import KINDS, code
from dashboard.data.timeline import EXACT_LIMIT, MAX_LANES, Timeline


def busy_by_hand(known: KernelTable, device: int, stream: int, kind: int, t0: float, t1: float) -> float:
    """The time that kernels of a kind run on a stream between two times."""
    total = 0.0
    for row in range(len(known)):
        if (known.device[row], known.stream[row], known.kind.codes[row]) == (device, stream, kind):
            start, end = known.start_us[row], known.start_us[row] + known.dur_us[row]
            total += max(0.0, min(end, t1) - max(start, t0))
    return total


@pytest.fixture
def by_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_LIMIT", 0)


@pytest.mark.usefixtures("by_pixel")
@pytest.mark.parametrize("overlapping", [False, True])
def test_pixels_hold_the_time_that_kernels_run_in_them(overlapping: bool) -> None:
    known = random_table(200, seed=1, overlapping=overlapping)
    lanes = Timeline(known)

    view = lanes.view(100.0, 400.0, columns=16)

    assert view.bins is not None
    assert view.bins.by_kind.shape == (3, len(KINDS), 16)
    edges = np.linspace(100.0, 400.0, 17)
    for i, lane in enumerate(view.lanes):
        for kind in range(len(KINDS)):
            for column in range(16):
                expected = busy_by_hand(known, lane.device, lane.stream, kind, edges[column], edges[column + 1])
                assert view.bins.by_kind[i, kind, column] * (300 / 16) == pytest.approx(expected, abs=1e-6)
        total = view.bins.by_kind[i].sum(axis=0)
        assert view.bins.busy[i] == pytest.approx(np.minimum(total, 1.0))
        most = np.where(total > 1e-6, view.bins.by_kind[i].argmax(axis=0), -1)
        assert view.bins.kind[i].tolist() == most.tolist()


@pytest.mark.usefixtures("by_pixel")
def test_pixels_count_the_kernels_that_start_in_them() -> None:
    known = random_table(200, seed=2)

    view = Timeline(known).view(columns=10)

    assert view.bins is not None
    assert view.bins.kernels.sum() == 200
    expected, _ = np.histogram(known.start_us[known.stream == view.lanes[0].stream], 10, (0.0, view.end_us))
    assert view.bins.kernels[0].tolist() == expected.tolist()


@given(st.integers(0, 10_000), st.floats(0, 600), st.floats(0, 600), st.booleans())
@settings(max_examples=40)
def test_the_kernels_in_view_are_those_that_run_then(seed: int, a: float, b: float, overlapping: bool) -> None:
    known = random_table(60, seed=seed, overlapping=overlapping)
    lanes = Timeline(known)

    view = lanes.view(a, b)

    assert view.rows is not None
    assert view.lane_of is not None
    end = known.start_us + known.dur_us
    expected = np.flatnonzero((known.start_us < view.t1_us) & (end > view.t0_us))
    assert sorted(view.rows.tolist()) == expected.tolist()
    assert view.kernels == len(expected)
    for row, lane in zip(view.rows.tolist(), view.lane_of.tolist(), strict=True):
        assert view.lanes[lane].stream == known.stream[row]


def test_few_kernels_are_drawn_each_and_many_by_pixel() -> None:
    def of(kernels: int) -> Timeline:
        return Timeline(table([{"start": i, "dur": 0.5} for i in range(kernels)]))

    assert of(EXACT_LIMIT).view().bins is None
    assert of(EXACT_LIMIT + 1).view().rows is None
    assert of(EXACT_LIMIT + 1).view(0.0, 100.0).rows is not None


def test_the_time_in_view_by_kind() -> None:
    known = table(
        [
            {"start": 0, "dur": 10, "kind": "gemm", "stream": 1},
            {"start": 4, "dur": 4, "kind": "copy", "stream": 2},
            {"start": 12, "dur": 8, "kind": "gemm", "stream": 2},
        ]
    )

    view = Timeline(known).view(5.0, 16.0)

    assert view.kind_us[code("gemm")] == pytest.approx(5.0 + 4.0)
    assert view.kind_us[code("copy")] == pytest.approx(3.0)
    assert view.kind_us.sum() == pytest.approx(12.0)


def test_a_kind_that_takes_no_time_in_view_is_not_told() -> None:
    # GIVEN one that reaches into the view by less than is told, as rounding of long sums does, and one of no time
    known = table(
        [
            {"start": 900, "dur": 50.002, "kind": "transfer"}, {"start": 1000, "dur": 10, "kind": "gemm"},
            {"start": 1002, "dur": 0, "kind": "copy"},
        ]
    )  # fmt: skip

    view = Timeline(known).view(950.0, 1010.0)

    assert [kind for kind, us in zip(KINDS, view.kind_us, strict=True) if us > 0] == ["gemm"]


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ((None, None), (0.0, 20.0)), ((5.0, None), (5.0, 20.0)), ((None, 5.0), (0.0, 5.0)), ((9.0, 3.0), (3.0, 9.0)),
        ((-50.0, 500.0), (0.0, 20.0)), ((math.nan, math.inf), (0.0, 20.0)), ((30.0, 40.0), (19.9, 20.0)),
        ((4.0, 4.0), (4.0, 4.1)),
    ],
)  # fmt: skip
def test_times_are_brought_into_the_run(asked: tuple[float, float], shown: tuple[float, float]) -> None:
    view = Timeline(table([{"start": 0, "dur": 10}, {"start": 12, "dur": 8}])).view(*asked)

    assert (view.t0_us, view.t1_us) == pytest.approx(shown)


def test_lanes_are_streams_by_device_and_the_busiest_where_there_are_many() -> None:
    rows = [{"start": i, "dur": 1 + i, "stream": i, "device": i % 2} for i in range(MAX_LANES + 6)]

    found = Timeline(table(rows))

    assert len(found.lanes) == MAX_LANES
    assert found.left_out == 6
    assert {lane.stream for lane in found.lanes} == set(range(6, MAX_LANES + 6))
    assert [(lane.device, lane.stream) for lane in found.lanes] == sorted((x.device, x.stream) for x in found.lanes)
    assert found.lanes[0].label == "device 0 · stream 6"


def test_the_longest_kernels_in_view_come_first() -> None:
    known = random_table(300, seed=5)
    lanes = Timeline(known)

    view = lanes.view(50.0, 300.0)

    assert view.rows is not None
    expected = sorted(view.rows.tolist(), key=lambda row: -known.dur_us[row])[:7]
    assert lanes.longest(view, 7).tolist() == expected
    assert len(lanes.longest(view, 10_000)) == view.kernels


def test_the_kernels_beside_one_on_its_stream() -> None:
    lanes = Timeline(table([{"start": s, "dur": 1, "stream": s % 2} for s in range(5)]))

    assert lanes.beside(2) == (0, 4)
    assert lanes.beside(0) == (None, 2)
    assert lanes.beside(3) == (1, None)
    assert lanes.beside(99) == (None, None)


def test_a_run_of_one_moment_can_be_looked_at() -> None:
    view = Timeline(table([{"start": 0, "dur": 0.0}, {"start": 0, "dur": 0.0}])).view()

    assert view.t1_us > view.t0_us
