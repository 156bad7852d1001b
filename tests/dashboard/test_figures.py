"""The figures: what they hold, that their colours can be read, and that names in them are only text."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from audited import HOSTILE
from kernel_tables import random_table, table

from auditor.fix_document import FixTiming, RatioInfo
from auditor.report.waterfall import Part, Waterfall
from dashboard.data.kinds import KINDS, MEANING
from dashboard.data.roofline import Point, Roofline
from dashboard.data.runs import RunLine, Trend
from dashboard.data.timeline import Timeline
from dashboard.figures import bars, roofline, timeline, trend, waterfall
from dashboard.figures.theme import PATTERNS, SYMBOLS, escaped, palette, template

SCHEMES = ("light", "dark")


def contrast(a: str, b: str) -> float:
    """Of two colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_and_marks_can_be_told_from_the_ground(scheme: str) -> None:
    colours = palette(scheme)

    assert contrast(colours.text, colours.background) >= 7
    assert contrast(colours.dim, colours.background) >= 4.5
    for name, colour in (*colours.kinds.items(), *colours.parts.items(), ("accent", colours.accent)):
        assert contrast(colour, colours.background) >= 3, name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_kind_has_a_colour_of_its_own_and_more_than_a_colour(scheme: str) -> None:
    colours = palette(scheme).kinds

    assert set(colours) == set(PATTERNS) == set(SYMBOLS) == set(MEANING) == set(KINDS)
    assert len(set(colours.values())) == len(set(SYMBOLS.values())) == len(KINDS)
    assert template(scheme)["layout"]["font"]["color"] == palette(scheme).text


def test_anything_but_dark_is_light() -> None:
    assert palette("") is palette("light")
    assert palette("dark") is not palette("light")


def test_names_are_text_in_labels() -> None:
    shown = escaped(f"%{{x}}{HOSTILE}")

    assert "<img" not in shown
    assert "&lt;img" in shown
    assert "%{" not in shown
    assert "\x1b" not in shown


WATERFALL = Waterfall(
    (
        Part("step", "whole", 1000.0), Part("compute-bound kernels", "compute", 400.0),
        Part("memory-bound, in findings", "fusible", 350.0, 400.0),
        Part("idle, waiting for launches", "idle", None, 750.0),
        Part("step once fused, likely", "after", 800.0),
    ),
    1000.0,
)  # fmt: skip


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_waterfall_has_a_bar_a_part_where_the_part_is(scheme: str) -> None:
    found = waterfall.draw(WATERFALL, scheme).to_dict()

    (bar,) = found["data"]
    assert bar["y"] == [part.label for part in WATERFALL.parts]
    assert bar["base"] == [0, 0, 400, 750, 0]
    assert bar["x"] == [1000, 400, 350, 0, 800]
    assert bar["customdata"] == ["1.00 ms", "400 µs · 40 %", "350 µs · 35 %", "not known", "800 µs · 80 %"]
    assert [note["text"].strip() for note in found["layout"]["annotations"]] == bar["customdata"]


POINT = Point("gemm", "gemm", "aten.mm", 2, 40.0, 4e9, 1e7)


def test_a_roofline_has_the_kernels_and_the_ceilings() -> None:
    add = replace(POINT, name="add", kind="pointwise", dur_us=10.0, flops=1e6, bytes=12e6)
    found = roofline.draw(Roofline((POINT, add), 3350.0, {"bf16": 989.4, "f32": 67.0}, 0), "light").to_dict()

    gemm, pointwise, memory, bf16, f32 = found["data"]
    assert (gemm["name"], gemm["x"], gemm["y"]) == ("gemm", [pytest.approx(400.0)], [pytest.approx(1e5)])
    assert gemm["marker"]["symbol"] != pointwise["marker"]["symbol"]
    assert gemm["marker"]["size"][0] == pytest.approx(2 * pointwise["marker"]["size"][0])  # the area is the time
    assert memory["name"] == "memory, 3,350 GB/s"
    assert [y / x for x, y in zip(memory["x"], memory["y"], strict=True)] == pytest.approx([3350.0, 3350.0])
    assert (bf16["name"], bf16["y"]) == ("bf16, 989 TFLOP/s", [989400.0, 989400.0])
    assert bf16["x"][0] == pytest.approx(989.4e3 / 3350)  # the ridge point
    assert (f32["y"][0], f32["line"]["dash"]) == (67e3, "dash")
    assert found["layout"]["xaxis"]["type"] == found["layout"]["yaxis"]["type"] == "log"


def test_a_roofline_without_ceilings_or_points_is_drawn_too() -> None:
    assert len(roofline.draw(Roofline((POINT,), 0.0, {}, 0)).data) == 1
    assert len(roofline.draw(Roofline((), 3350.0, {}, 0)).data) == 0
    assert len(roofline.draw(Roofline((POINT,), 0.0, {"bf16": 900.0}, 0)).data) == 2


def test_names_in_a_roofline_are_only_text() -> None:
    found = roofline.draw(Roofline((replace(POINT, name=HOSTILE, op=HOSTILE),), 0.0, {}, 0)).to_json()

    assert "<img" not in found
    assert "\\u001b" not in found


TIMING = FixTiming(
    eager_us=400.0, patched_us=300.0, compile_us=320.0, patched_vs_eager=RatioInfo(ratio=1.33, low=1.25, high=1.4),
    compile_vs_eager=RatioInfo(),
)  # fmt: skip


def test_bars_have_the_interval_of_their_time() -> None:
    eager, patched, compiled = bars.bars_of(TIMING)

    assert (eager.us, eager.low_us, eager.high_us) == (400.0, 400.0, 400.0)
    assert (patched.low_us, patched.high_us) == pytest.approx((300 * 1.33 / 1.4, 300 * 1.33 / 1.25))
    assert patched.low_us < patched.us < patched.high_us
    assert (compiled.low_us, compiled.high_us, compiled.words) == (320.0, 320.0, "320 µs")
    error = bars.draw(TIMING, "dark").to_dict()["data"][0]["error_x"]
    assert error["array"] == pytest.approx([0.0, patched.high_us - 300.0, 0.0])
    assert error["arrayminus"] == pytest.approx([0.0, 300.0 - patched.low_us, 0.0])


def test_only_what_was_measured_has_a_bar() -> None:
    assert bars.bars_of(FixTiming()) == []
    assert [bar.label for bar in bars.bars_of(FixTiming(eager_us=4.0, compile_us=3.0))] == ["as it is", "torch.compile"]
    assert len(bars.draw(FixTiming()).data) == 1


def line(number: int, **facts: Any) -> RunLine:
    given: dict[str, Any] = {
        "id": f"r{number}", "name": "llama", "source": "profile", "created": f"2026-01-0{number}T00:00:00+00:00",
        "script": [], "device": "H100", "exit_code": 0, "findings": 1, "kernels": 10, "unfused_kernels": 5,
        "avoidable_kernels": 4, "step_us": 2e6, "step_saving_us": 1e5, "memory_bound_us": 30.0, "device_us": 40.0,
    } | facts  # fmt: skip
    return RunLine(**given)


@pytest.mark.parametrize(
    ("measure", "values"),
    [
        ("step_us", [2.0, 3.0]),
        ("memory_bound", [0.75, 0.75]),
        ("avoidable_kernels", [4, 4]),
        ("step_saving_us", [0.1, 0.1]),
    ],
)
def test_a_trend_is_a_line_over_the_runs(measure: str, values: list[float]) -> None:
    runs = (line(1), line(2, step_us=3e6))

    (found,) = trend.draw([Trend("llama", "H100", "", runs)], measure, "light").to_dict()["data"]

    assert found["x"] == [run.created for run in runs]
    assert found["y"] == pytest.approx(values)


def test_runs_that_were_not_timed_are_no_points() -> None:
    (found,) = trend.draw([Trend("m", "H100", "", (line(1, step_us=0.0), line(2)))], "step_us").to_dict()["data"]

    assert found["y"] == [2.0]


def decoded(spec: dict[str, str]) -> np.ndarray[Any, Any]:
    array = np.frombuffer(base64.b64decode(spec["bdata"]), spec["dtype"])
    return array.reshape([int(n) for n in spec["shape"].split(",")]) if "shape" in spec else array


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_kernel_in_view_is_a_bar_of_its_kind_and_lane(scheme: str) -> None:
    known = random_table(120, seed=4)
    view = Timeline(known).view(20.0, 150.0)

    found = timeline.draw(view, known, scheme)

    seen = set()
    for trace in found["data"]:
        for row, base, width, lane in zip(
            trace["customdata"], *(decoded(trace[key]).tolist() for key in ("base", "x", "y")), strict=True
        ):
            assert KINDS[known.kind.codes[row]] == trace["name"]
            assert (base, width) == pytest.approx((known.start_us[row] / 1e6, known.dur_us[row] / 1e6))
            assert view.lanes[lane].stream == known.stream[row]
            seen.add(row)
        assert trace["marker"]["color"] == palette(scheme).kinds[trace["name"]]
        assert trace["marker"].get("pattern", {}).get("shape", "") == PATTERNS[trace["name"]]
        assert len(trace["hovertext"]) == len(trace["customdata"])
    assert view.rows is not None
    assert seen == set(view.rows.tolist())
    assert found["layout"]["xaxis"]["range"] == pytest.approx([20e-6, 150e-6])


def test_a_bar_says_what_stands_behind_it() -> None:
    known = table(
        [
            {"start": 3, "dur": 12.5, "name": HOSTILE, "op_name": "aten.mul", "module": "layers.0", "rule": "FUS206 x"},
            {"start": 20, "dur": 5, "name": "loose", "kind": "unlinked"},
        ]
    )

    data = timeline.draw(Timeline(known).view(), known)["data"]
    mul, loose = (trace["hovertext"][0] for trace in data)

    assert "12.5 µs at 3.0 µs" in mul
    assert mul.endswith("aten.mul · layers.0<br>in FUS206 x")
    assert "<img" not in mul
    assert loose == "<b>loose</b><br>unlinked · 5.00 µs at 20.00 µs"


def test_the_chosen_kernel_is_outlined_where_it_lies() -> None:
    known = table([{"start": 0, "dur": 4, "stream": 1}, {"start": 2, "dur": 6, "stream": 2}])
    view = Timeline(known).view()

    (shape,) = timeline.draw(view, known, "light", 1)["layout"]["shapes"]

    assert (shape["x0"], shape["x1"]) == pytest.approx((2e-6, 8e-6))
    assert shape["y0"] < 1 < shape["y1"]
    assert timeline.draw(view, known, "light", 99)["layout"]["shapes"] == []
    assert timeline.draw(view, known, "light", -1)["layout"]["shapes"] == []


def test_a_pixel_is_a_stack_as_high_as_it_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.data.timeline.EXACT_LIMIT", 0)
    rows = [{"start": 0, "dur": 5, "kind": "gemm"}, {"start": 5, "dur": 2.5, "kind": "copy"}, {"start": 10, "dur": 10}]
    known = table([*rows, {"start": 19.9, "dur": 0.1, "kind": "norm", "stream": 9}])
    view = Timeline(known).view(columns=2)

    stacks, words, *legend = timeline.draw(view, known, "dark")["data"]

    cells = decoded(stacks["z"])
    first, second = cells[:10].T.tolist()
    copy, gemm, plain = (KINDS.index(kind) for kind in ("copy", "gemm", "pointwise"))
    assert first == [-1, -1, -1, *[gemm] * 4, *[copy] * 2, -1]  # 3 of 4 is busy; drawn from the bottom up
    assert second == [-1, *[plain] * 8, -1]
    assert words["text"][0][0] == "mostly gemm<br>busy 75 % · 2 kernels started"
    assert words["text"][1][0] == "idle"
    assert {trace["name"] for trace in legend} == {"copy", "gemm", "norm", "pointwise"}
    scale = stacks["colorscale"]
    at = (gemm + 1.5) / (len(KINDS) + 1)
    assert [shade for end, shade in scale if abs(end - at) < 0.5 / (len(KINDS) + 1) + 1e-9].count(
        palette("dark").kinds["gemm"]
    ) == 2  # fmt: skip


def test_what_is_seen_is_said_in_a_line() -> None:
    known = table([{"start": 0, "dur": 10}, {"start": 12.5, "dur": 8}])
    lanes = Timeline(known)

    assert timeline.says(lanes.view()) == "0.0 µs to 20.5 µs · 2 kernels on 1 stream · each drawn"
    assert timeline.says(lanes.view(11.0, 14.0), 2).startswith(
        "11.00 µs to 14.00 µs, 3.00 µs of 20.5 µs · 1 kernel on 1"
    )
    assert "of 3, the busiest" in timeline.says(lanes.view(), 2)


@pytest.mark.parametrize(
    ("at", "width", "text"),
    [(262_614.2, 400.0, "262.614 ms"), (0.0, 20.0, "0.0 µs"), (8_471_234.5, 6e3, "8.47123 s"), (12.0, 0.0, "12 µs")],
)
def test_a_time_has_the_digits_that_its_span_needs(at: float, width: float, text: str) -> None:
    assert timeline.moment(at, width) == text
