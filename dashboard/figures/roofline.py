"""Kernels against the ceilings of their device, both axes logarithmic. The area of a point is its time."""

from __future__ import annotations

import math
from collections import defaultdict

import plotly.graph_objects as go

from auditor.report.format import count, duration, plural, size
from dashboard.data.roofline import Point, Roofline
from dashboard.figures.theme import SYMBOLS, escaped, palette, template

_LEAST_PX, _MOST_PX = 6.0, 34.0


def draw(roofline: Roofline, scheme: str = "light") -> go.Figure:
    """One point a kernel name, one trace a kind; the memory ceiling and one ceiling a dtype."""
    figure = go.Figure()
    by_kind: dict[str, list[Point]] = defaultdict(list)
    for point in roofline.points:
        by_kind[point.kind].append(point)
    longest = max((point.dur_us for point in roofline.points), default=1.0)
    for kind in sorted(by_kind, key=lambda kind: -sum(p.dur_us for p in by_kind[kind])):
        figure.add_trace(_points(kind, by_kind[kind], longest, scheme))
    _ceilings(figure, roofline, scheme)
    figure.update_layout(
        template=template(scheme), dragmode=False,
        legend={"orientation": "h", "y": -0.24, "x": 0, "yanchor": "top", "itemsizing": "constant"},
    )  # fmt: skip
    figure.update_xaxes(type="log", title="arithmetic intensity, FLOP/byte", exponentformat="power", dtick=1)
    figure.update_yaxes(type="log", title="achieved, GFLOP/s", exponentformat="power", dtick=1)
    return figure


def _points(kind: str, points: list[Point], longest: float, scheme: str) -> go.Scatter:
    colours = palette(scheme)
    return go.Scatter(
        mode="markers", name=kind, x=[p.intensity for p in points], y=[p.gflops for p in points],
        text=[_hover(p) for p in points], hovertemplate="%{text}<extra></extra>",
        marker={
            "symbol": SYMBOLS[kind], "color": colours.kinds[kind], "opacity": 0.85,
            "line": {"color": colours.background, "width": 1},
            "size": [max(_LEAST_PX, _MOST_PX * math.sqrt(p.dur_us / longest)) for p in points],
        },
    )  # fmt: skip


def _hover(point: Point) -> str:
    launches = plural(point.kernels, "launch", "launches")
    lines = [
        f"<b>{escaped(point.name)}</b>",
        f"{escaped(point.op)} · {point.kind} · {launches} · {duration(point.dur_us)}",
        f"{point.intensity:.3g} FLOP/byte · {count(round(point.gflops))} GFLOP/s · {count(round(point.gbps))} GB/s",
        f"{size(point.bytes)} moved (estimated)",
    ]
    return "<br>".join(lines)


def _ceilings(figure: go.Figure, roofline: Roofline, scheme: str) -> None:
    """The memory's slope up to the ridge point of each arithmetic rate, and on from there level."""
    colours = palette(scheme)
    if not roofline.points or not (roofline.peak_gbps or roofline.tflops):
        return
    low = 10 ** math.floor(math.log10(min(p.intensity for p in roofline.points)) - 0.2)
    high = 10 ** math.ceil(math.log10(max(p.intensity for p in roofline.points)) + 0.2)
    rates = {dtype: rate * 1e3 for dtype, rate in roofline.tflops.items()}
    top = max(rates.values(), default=0.0)
    if roofline.peak_gbps:
        ridge = top / roofline.peak_gbps if top else high
        high = max(high, ridge * 4 if top else high)
        name = f"memory, {count(round(roofline.peak_gbps))} GB/s"
        figure.add_trace(
            _line([low, ridge], [low * roofline.peak_gbps, ridge * roofline.peak_gbps], name, colours.text)
        )
    for (dtype, rate), dash in zip(
        sorted(rates.items(), key=lambda r: -r[1]), ("solid", "dash", "dot") * 4, strict=False
    ):
        ridge = rate / roofline.peak_gbps if roofline.peak_gbps else low
        figure.add_trace(_line([ridge, high], [rate, rate], f"{dtype}, {rate / 1e3:,.0f} TFLOP/s", colours.dim, dash))


def _line(x: list[float], y: list[float], name: str, colour: str, dash: str = "solid") -> go.Scatter:
    return go.Scatter(
        mode="lines", x=x, y=y, name=escaped(name), line={"color": colour, "width": 2, "dash": dash},
        hovertemplate=f"{escaped(name)}<extra></extra>",
    )  # fmt: skip
