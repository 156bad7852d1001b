"""Plotly figures with what a reader who does not see them gets instead: a name, and the same in a table."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard.components.aria import aria
from dashboard.components.code import details
from dashboard.components.tables import scroll

_CONFIG: Any = {"displayModeBar": False, "responsive": True, "scrollZoom": False}
_SIDEWAYS = "Wider than the window: scrolls sideways →"
"""Shown where that is so: labels and figures beside the bars need their room, and phones hide scroll bars."""


def plot(figure: Any, name: str, instead: Any, *, height: int, summary: str = "The same as a table") -> html.Div:
    """A figure.

    Args:
        figure: of plotly, already in the page's colours.
        name: what it shows, in one sentence.
        instead: the same in words or as a table.
        height: in pixels.
        summary: of the fold that holds ``instead``.
    """
    graph = dcc.Graph(figure=figure, config=_CONFIG, style={"height": f"{height}px"})
    seen = scroll(name.partition(".")[0], html.Div(graph, role="img", className="plot-area", **aria(label=name)))
    return html.Div([html.P(_SIDEWAYS, className="sideways"), seen, details(summary, instead)], className="plot")
