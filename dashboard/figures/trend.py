"""How a figure of one or several models developed from run to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from auditor.report.format import count, duration, percent
from dashboard.data.runs import RunLine, Trend
from dashboard.figures.theme import SYMBOLS, escaped, palette, template

MEASURES: dict[str, tuple[str, Callable[[RunLine], float | None], Callable[[float], str]]] = {
    "step_us": ("step time, s", lambda run: run.step_us / 1e6 or None, lambda s: duration(s * 1e6)),
    "memory_bound": ("memory-bound share of the kernel time", lambda run: run.memory_bound_share, percent),
    "avoidable_kernels": ("avoidable kernels", lambda run: run.avoidable_kernels, lambda n: count(round(n))),
    "step_saving_us": (
        "likely saving of the step, s",
        lambda run: run.step_saving_us / 1e6,
        lambda s: duration(s * 1e6),
    ),
}
"""Name → its label, how it is read from a run (None: not known), and how it is written."""

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def draw(trends: Sequence[Trend], measure: str = "step_us", scheme: str = "light") -> go.Figure:
    """One line a model and device over the time of its runs. A KeyError for an unknown measure."""
    label, read, write = MEASURES[measure]
    colours = palette(scheme)
    inks, symbols = list(colours.kinds.values()), list(SYMBOLS.values())
    figure = go.Figure()
    for i, trend in enumerate(trends):
        values = [(run, value) for run in trend.runs if (value := read(run)) is not None]
        figure.add_trace(
            go.Scatter(
                mode="lines+markers", name=escaped(f"{trend.name} · {trend.device}", 60),
                x=[run.created for run, _ in values], y=[value for _, value in values],
                text=[f"{escaped(run.id)}<br>{label.removesuffix(', s')}: {write(value)}" for run, value in values],
                hovertemplate="%{text}<br>%{x}<extra>%{fullData.name}</extra>",
                line={"color": inks[i % len(inks)], "width": 2, "dash": _DASHES[i % len(_DASHES)]},
                marker={"symbol": symbols[i % len(symbols)], "size": 7},
            )
        )  # fmt: skip
    figure.update_layout(template=template(scheme), dragmode=False, hovermode="closest", showlegend=len(trends) > 1)
    figure.update_layout(legend={"orientation": "h", "y": -0.2, "x": 0, "yanchor": "top"})
    figure.update_xaxes(type="date", fixedrange=True)
    figure.update_yaxes(title=label, rangemode="tozero", fixedrange=True)
    if label.endswith(", s"):
        figure.update_yaxes(title=label.removesuffix(", s"), tickformat="~s", ticksuffix="s")
    elif measure == "memory_bound":
        figure.update_yaxes(tickformat=".0%")
    return figure
