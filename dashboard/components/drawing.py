"""Drawings: SVG as text, which ``assets/drawing.js`` builds from a closed list of elements and attributes."""

from __future__ import annotations

from typing import Any

from dash import html

from auditor.report import svg
from dashboard.components.aria import data
from dashboard.components.tables import scroll


def drawing(markup: str, css: str = "") -> html.Div:
    """``markup``, an SVG element with its own title and description, drawn in the page's colours."""
    return html.Div(className=f"drawing {css}".strip(), **data(svg=markup))


def figure(caption: str, markup: str, css: str = "") -> html.Figure:
    """A drawing under its caption, which scrolls where it is too large."""
    return html.Figure([html.Figcaption(caption), scroll(caption, drawing(markup), "canvas")], className=css)


def sparkline(values: list[float], ident: str, description: str, *, width: float = 120.0, height: float = 26.0) -> Any:
    """A line through ``values``, the last one marked; its vertical axis starts at zero."""
    top = max(values, default=0.0) or 1.0
    step = (width - 8) / max(len(values) - 1, 1)
    points = [(4 + i * step, height - 3 - (height - 6) * v / top) for i, v in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    x, y = points[-1] if points else (4.0, height / 2)
    content = svg.element("polyline", points=line, class_="spark-line") + svg.element(
        "circle", cx=x, cy=y, r=2.5, class_="spark-end"
    )
    return drawing(svg.drawing(ident, width, height, "Trend", description, content, "spark"), "inline")
