"""One step of the model as it is, patched, and under ``torch.compile``, with 95 % intervals."""

from __future__ import annotations

from dataclasses import dataclass

import plotly.graph_objects as go

from auditor.fix_document import FixTiming, RatioInfo
from auditor.report.format import duration, speedup
from dashboard.figures.theme import palette, template


@dataclass(frozen=True)
class Bar:
    """One way of running a step, and the interval of its time; both ends are that time where none is known."""

    label: str
    us: float
    low_us: float
    high_us: float
    words: str


def bars_of(timing: FixTiming) -> list[Bar]:
    """The ways that were measured; none where nothing was."""
    if timing.eager_us <= 0:
        return []
    found = [Bar("as it is", timing.eager_us, timing.eager_us, timing.eager_us, duration(timing.eager_us))]
    for label, us, ratio in (
        ("patched", timing.patched_us, timing.patched_vs_eager),
        ("torch.compile", timing.compile_us, timing.compile_vs_eager),
    ):
        if us > 0:
            found.append(_against(label, us, ratio))
    return found


def _against(label: str, us: float, ratio: RatioInfo) -> Bar:
    """A high ratio is a short time: the interval of the time is that of the ratio upside down."""
    if not (ratio.low > 0 and ratio.high > 0 and ratio.ratio > 0):
        return Bar(label, us, us, us, duration(us))
    low, high = sorted((us * ratio.ratio / ratio.high, us * ratio.ratio / ratio.low))
    words = f"{duration(us)} · {speedup(ratio.ratio)} ({speedup(ratio.low)} to {speedup(ratio.high)})"
    return Bar(label, us, min(low, us), max(high, us), words)


def draw(timing: FixTiming, scheme: str = "light") -> go.Figure:
    """Bars of time, the shorter the better, with the interval of each."""
    colours, bars = palette(scheme), bars_of(timing)
    colour = {"as it is": colours.parts["whole"], "patched": colours.parts["after"], "torch.compile": colours.accent}
    figure = go.Figure(
        go.Bar(
            orientation="h", y=[bar.label for bar in bars], x=[bar.us for bar in bars], width=0.56,
            marker={
                "color": [colour[bar.label] for bar in bars],
                "pattern": {
                    "shape": ["", "", "/"][: len(bars)], "fgcolor": colours.background, "size": 6, "solidity": 0.2,
                    "fillmode": "overlay",
                },
            },
            error_x={
                "type": "data", "array": [bar.high_us - bar.us for bar in bars],
                "arrayminus": [bar.us - bar.low_us for bar in bars], "color": colours.text, "thickness": 2, "width": 6,
            },
            customdata=[bar.words for bar in bars], hovertemplate="%{y}: %{customdata}<extra></extra>",
        )
    )  # fmt: skip
    longest = max((bar.high_us for bar in bars), default=1.0)
    for bar in bars:
        figure.add_annotation(
            x=bar.high_us, y=bar.label, text=f"  {bar.words}", showarrow=False, xanchor="left", font={"size": 12}
        )
    figure.update_layout(template=template(scheme), showlegend=False, dragmode=False)
    figure.update_yaxes(autorange="reversed", fixedrange=True, tickfont={"color": colours.text})
    figure.update_xaxes(range=[0, longest * 1.75], showticklabels=False, fixedrange=True)
    return figure
