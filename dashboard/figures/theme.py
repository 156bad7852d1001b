"""Colours and templates of the figures, one set for each scheme. Text has a contrast of 4.5 or more, marks of 3.

Kinds of kernels are told by colour and, since twelve colours are too many to tell by eye alone, by a pattern, the
legend and the hover text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from auditor.report.format import clip, safe

Scheme = Literal["light", "dark"]


@dataclass(frozen=True)
class Palette:
    """Colours of one scheme as ``#rrggbb``."""

    background: str
    text: str
    dim: str
    """Text of less weight."""
    line: str
    """Grid lines: no information."""
    accent: str
    kinds: dict[str, str]
    parts: dict[str, str]
    """Of a step's time, by the names of :class:`auditor.report.waterfall.Part`."""


_LIGHT = Palette(
    background="#ffffff", text="#1a1f26", dim="#566069", line="#dde1e6", accent="#0757b8",
    kinds={
        "attention": "#7a3fb0", "collective": "#b0206a", "copy": "#8a6a00", "gather": "#a3282f", "gemm": "#3f6fb5",
        "norm": "#0f7f78", "optimizer": "#6b6b2a", "other": "#737b85", "pointwise": "#c65f00", "reduction": "#2e7d32",
        "transfer": "#4f5b93", "unlinked": "#8a8f98",
    },
    parts={
        "whole": "#4b5563", "compute": "#3f6fb5", "rest": "#77818c", "fusible": "#c65f00", "collective": "#b0206a",
        "unlinked": "#8a6a00", "idle": "#8a949f", "after": "#217a4b",
    },
)  # fmt: skip
_DARK = Palette(
    background="#10141a", text="#e3e7ed", dim="#9ba6b2", line="#2e3742", accent="#7cb5ff",
    kinds={
        "attention": "#b58cf0", "collective": "#f078b4", "copy": "#d6b23c", "gather": "#ff9aa1", "gemm": "#5b8fdc",
        "norm": "#4fc4ba", "optimizer": "#b9b96a", "other": "#98a1ab", "pointwise": "#f0933a", "reduction": "#74c77a",
        "transfer": "#97a3e0", "unlinked": "#868e98",
    },
    parts={
        "whole": "#a4adb8", "compute": "#5b8fdc", "rest": "#7d8793", "fusible": "#f0933a", "collective": "#f078b4",
        "unlinked": "#d6b23c", "idle": "#74808d", "after": "#45b37c",
    },
)  # fmt: skip

PATTERNS = {
    "attention": "x", "collective": "+", "copy": "/", "gather": "\\", "gemm": "", "norm": "-", "optimizer": "|",
    "other": ".", "pointwise": "", "reduction": "", "transfer": "/", "unlinked": "x",
}  # fmt: skip
"""The kinds that take most time in most runs (gemm, pointwise, reduction) are plain."""

SYMBOLS = {
    "attention": "diamond", "collective": "star", "copy": "square", "gather": "triangle-up", "gemm": "circle",
    "norm": "hexagon", "optimizer": "pentagon", "other": "cross", "pointwise": "triangle-down", "reduction": "bowtie",
    "transfer": "hourglass", "unlinked": "x",
}  # fmt: skip


def palette(scheme: str) -> Palette:
    """The colours of a scheme; anything but ``dark`` is light."""
    return _DARK if scheme == "dark" else _LIGHT


@cache
def template(scheme: str) -> dict[str, Any]:
    """The plotly template of a scheme, as plain data. Shared: it may not be changed."""
    colours = palette(scheme)
    axis = {
        "gridcolor": colours.line, "linecolor": colours.dim, "zerolinecolor": colours.line, "tickcolor": colours.dim,
        "tickfont": {"color": colours.dim, "size": 12}, "title": {"font": {"color": colours.text, "size": 13}},
        "automargin": True,
    }  # fmt: skip
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "color": colours.text, "size": 13},
            "margin": {"l": 8, "r": 12, "t": 12, "b": 8}, "xaxis": axis, "yaxis": axis,
            "colorway": list(colours.kinds.values()),
            "hoverlabel": {
                "bgcolor": colours.background, "bordercolor": colours.dim,
                "font": {"color": colours.text, "size": 13}, "align": "left", "namelength": -1,
            },
            "legend": {"font": {"color": colours.text, "size": 12}, "bgcolor": "rgba(0,0,0,0)"},
            "separators": ".,",
        },
    }  # fmt: skip


def escaped(text: str, limit: int = 90) -> str:
    """``text`` for a label or hover text: plotly reads some HTML and ``%{…}`` there, and names are not trusted."""
    shown = clip(safe(text), limit)
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("%{", "%\u200b{")):
        shown = shown.replace(char, entity)
    return shown
