"""Where a step's time goes, as bars from the whole step down to what would be left of it."""

from __future__ import annotations

import plotly.graph_objects as go

from auditor.report.format import duration, share
from auditor.report.waterfall import Part, Waterfall
from dashboard.figures.theme import escaped, palette, template

_PATTERN = {"rest": "/", "fusible": "", "idle": ".", "unlinked": "x", "collective": "+"}


def draw(waterfall: Waterfall, scheme: str = "light") -> go.Figure:
    """One bar a part, the whole step at the top; the time and its share stand beside each bar."""
    colours, parts = palette(scheme), list(waterfall.parts)
    labels = [escaped(part.label) for part in parts]
    words = [_reads(part, waterfall) for part in parts]
    figure = go.Figure(
        go.Bar(
            orientation="h", y=labels, x=[part.us or 0.0 for part in parts], base=[part.start_us for part in parts],
            text=words, textposition="none", customdata=words,
            hovertemplate="%{y}<br>%{customdata}<extra></extra>",
            marker={
                "color": [colours.parts.get(part.css, colours.dim) for part in parts],
                "pattern": {
                    "shape": [_PATTERN.get(part.css, "") for part in parts], "fgcolor": colours.background,
                    "size": 6, "solidity": 0.25, "fillmode": "overlay",
                },
            },
        )
    )  # fmt: skip
    for part, label, word in zip(parts, labels, words, strict=True):
        end = part.start_us + (part.us or 0.0)
        figure.add_annotation(x=end, y=label, text=f" {word}", showarrow=False, xanchor="left", font={"size": 12})
    figure.update_layout(template=template(scheme), showlegend=False, bargap=0.35, dragmode=False)
    figure.update_yaxes(autorange="reversed", fixedrange=True, tickfont={"color": colours.text})
    figure.update_xaxes(range=[0, waterfall.whole_us * 1.32], showticklabels=False, zeroline=True, fixedrange=True)
    return figure


def _reads(part: Part, waterfall: Waterfall) -> str:
    if part.us is None:
        return "not known"
    whole = waterfall.parts[0].us or 0.0
    return duration(part.us) if part.css == "whole" else f"{duration(part.us)} · {share(part.us, whole)}"
