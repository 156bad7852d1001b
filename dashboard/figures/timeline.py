"""Kernels by stream over time: each as a bar where few are in view, else what fills each pixel.

The axis is in seconds, so that its ticks read ``350 µs`` or ``1.2 s`` at any zoom.
"""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditor.report.format import count, duration, percent, plural
from dashboard.data.kernel_table import KernelTable
from dashboard.data.kinds import KINDS
from dashboard.data.timeline import Bins, Lane, View
from dashboard.figures.theme import PATTERNS, Palette, escaped, palette, template

LANE_PX, REST_PX = 36, 96
_CELLS = 10
"""Rows of cells of a lane in a view by pixel; the first and the last stay free, to part the lanes."""
_PATTERNED = 800
"""Patterns are only drawn where bars are wide enough to show them: they cost as much as the bars."""
_HALF = 0.4
"""Of a lane's height, above and below its middle."""


def height(view: View) -> int:
    """Pixels that the figure needs."""
    return REST_PX + LANE_PX * max(len(view.lanes), 2)


def draw(view: View, table: KernelTable, scheme: str = "light", selected: int | None = None) -> dict[str, Any]:
    """The kernels of ``view``. Each bar's ``customdata`` is its kernel's number (Dash looks it up in a plain list);
    ``selected`` is outlined.

    Plain data, not a ``Figure``: to check thousands of values takes longer than to draw them.
    """
    colours = palette(scheme)
    if view.bins is not None:
        data = [_stacks(view, view.bins, colours), _words_of(view, view.bins), *_legend(view, colours)]
    else:
        data = _bars(view, table, colours)
    outline = [] if selected is None else _outline(view, table, selected, colours)
    return {"data": data, "layout": {**_layout(view, scheme), "shapes": outline}}


def _bars(view: View, table: KernelTable, colours: Palette) -> list[dict[str, Any]]:
    assert view.rows is not None
    assert view.lane_of is not None
    codes = table.kind.codes[view.rows]
    bars = []
    for code in np.flatnonzero(np.bincount(codes, minlength=len(KINDS))).tolist():
        mine = codes == code
        rows, kind = view.rows[mine], KINDS[code]
        pattern = {"shape": PATTERNS[kind], "fgcolor": colours.background, "size": 5, "solidity": 0.25,
                   "fillmode": "overlay"}  # fmt: skip
        bars.append(
            {
                "type": "bar", "orientation": "h", "name": kind, "base": typed(table.start_us[rows] / 1e6),
                "x": typed(table.dur_us[rows] / 1e6), "y": typed(view.lane_of[mine]), "width": 2 * _HALF,
                "customdata": rows.tolist(), "hovertext": _hover(table, rows),
                "hovertemplate": "%{hovertext}<extra></extra>",
                "marker": {
                    "color": colours.kinds[kind], "line": {"width": 0},
                    **({"pattern": pattern} if PATTERNS[kind] and len(codes) <= _PATTERNED else {}),
                },
            }
        )  # fmt: skip
    return bars


def _hover(table: KernelTable, rows: NDArray[np.int64]) -> list[str]:
    """Made once for each name, module and finding in view: there may be thousands of bars."""
    names, ops, kinds = ([_shown(t) for t in each.take(rows)] for each in (table.name, table.op_name, table.kind))
    modules, rules = ([_shown(text) for text in each.take(rows)] for each in (table.module, table.rule))
    starts, durs = table.start_us[rows].tolist(), table.dur_us[rows].tolist()
    return [
        "<br>".join(
            line
            for line in (
                f"<b>{name}</b>", f"{kind} · {duration(dur)} at {moment(start, dur)}",
                " · ".join(part for part in (op, module) if part), f"in {rule}" if rule else "",
            )
            if line
        )
        for name, kind, op, module, rule, start, dur in zip(
            names, kinds, ops, modules, rules, starts, durs, strict=True
        )
    ]  # fmt: skip


_KNOWN: dict[str, str] = {}


def _shown(text: str) -> str:
    found = _KNOWN.get(text)
    if found is None:
        if len(_KNOWN) > 20_000:
            _KNOWN.clear()
        found = _KNOWN[text] = escaped(text, 70)
    return found


def _stacks(view: View, bins: Bins, colours: Palette) -> dict[str, Any]:
    """Each pixel of a lane as a stack of kinds, as high as it is busy."""
    lanes, _, columns = bins.by_kind.shape
    used = _CELLS - 2
    upper = np.cumsum(bins.by_kind / np.maximum(bins.by_kind.sum(axis=1, keepdims=True), 1.0), axis=1)
    middle = (np.arange(used) + 0.5) / used
    above = upper[:, :, None, :] > middle[None, None, :, None]
    kind = np.where(above.any(axis=1), above.argmax(axis=1), -1)[:, ::-1]  # the first kind lies at the bottom
    cells = np.full((lanes, _CELLS, columns), -1, np.int8)
    cells[:, 1:-1] = kind
    return {
        "type": "heatmap", "z": typed(cells.reshape(lanes * _CELLS, columns)), **_across(view, columns),
        "y0": -0.5 + 0.5 / _CELLS, "dy": 1 / _CELLS, "zmin": -1.5, "zmax": len(KINDS) - 0.5, "zsmooth": False,
        "colorscale": _scale(colours), "showscale": False, "hoverinfo": "skip",
    }  # fmt: skip


def _words_of(view: View, bins: Bins) -> dict[str, Any]:
    """What is said of each pixel: cells that are not seen, one a lane and column."""
    return {
        "type": "heatmap", "z": typed((bins.kind >= 0).astype(np.int8)), **_across(view, bins.kind.shape[1]),
        "y": list(range(len(view.lanes))), "opacity": 0, "showscale": False, "text": _words(bins),
        "hovertemplate": "%{text}<extra></extra>",
    }  # fmt: skip


def _across(view: View, columns: int) -> dict[str, float]:
    step = (view.t1_us - view.t0_us) / columns / 1e6
    return {"x0": view.t0_us / 1e6 + step / 2, "dx": step}


def _words(bins: Bins) -> list[list[str]]:
    return [
        [
            "idle"
            if kind < 0
            else f"mostly {KINDS[kind]}<br>busy {percent(busy)} · {plural(started, 'kernel')} started"
            for kind, busy, started in zip(*lane, strict=True)
        ]
        for lane in zip(bins.kind.tolist(), bins.busy.tolist(), bins.kernels.tolist(), strict=True)
    ]


def _scale(colours: Palette) -> list[list[Any]]:
    """One flat step for each kind, and one that is not seen before them."""
    shades = ["rgba(0,0,0,0)", *(colours.kinds[kind] for kind in KINDS)]
    size = len(shades)
    return [[(i + end) / size, shade] for i, shade in enumerate(shades) for end in (0, 1)]


def _legend(view: View, colours: Palette) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter", "x": [None], "y": [None], "mode": "markers", "name": KINDS[code], "hoverinfo": "skip",
            "marker": {"color": colours.kinds[KINDS[code]], "symbol": "square", "size": 12},
        }
        for code in np.flatnonzero(view.kind_us > 0).tolist()
    ]  # fmt: skip


def _outline(view: View, table: KernelTable, selected: int, colours: Palette) -> list[dict[str, Any]]:
    if not 0 <= selected < len(table):
        return []
    lane = lane_of(view.lanes, int(table.device[selected]), int(table.stream[selected]))
    if lane is None:
        return []
    start = float(table.start_us[selected])
    x0, x1 = start / 1e6, (start + float(table.dur_us[selected])) / 1e6
    line = {"color": colours.text, "width": 2.5}
    return [{"type": "rect", "x0": x0, "x1": x1, "y0": lane - _HALF - 0.06, "y1": lane + _HALF + 0.06, "line": line}]


def lane_of(lanes: tuple[Lane, ...], device: int, stream: int) -> int | None:
    """The place of a device's stream among the lanes; None where it is not shown."""
    return next((i for i, lane in enumerate(lanes) if (lane.device, lane.stream) == (device, stream)), None)


def _layout(view: View, scheme: str) -> dict[str, Any]:
    labels = [escaped(lane.label).replace(" · ", "<br>") for lane in view.lanes]
    return {
        "template": template(scheme), "barmode": "overlay", "bargap": 0, "dragmode": "zoom", "hovermode": "closest",
        "height": height(view), "showlegend": True, "margin": {"l": 8, "r": 12, "t": 44, "b": 34},
        "legend": {
            "orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "itemclick": False, "itemdoubleclick": False,
        },
        "xaxis": {
            "range": [view.t0_us / 1e6, view.t1_us / 1e6], "tickformat": "~s", "ticksuffix": "s", "nticks": 8,
            "zeroline": False, "minallowed": 0, "maxallowed": max(view.end_us, view.t1_us) / 1e6,
        },
        "yaxis": {
            "range": [max(len(labels), 2) - 0.5, -0.5], "tickvals": list(range(len(labels))), "ticktext": labels,
            "fixedrange": True, "showgrid": False, "zeroline": False,
        },
    }  # fmt: skip


def typed(array: NDArray[Any]) -> dict[str, str]:
    """An array as plotly.js reads it: base64 of its bytes, a third of the digits."""
    small = array.astype("<i4") if array.dtype == np.int64 else array
    found = {
        "dtype": f"{small.dtype.kind}{small.dtype.itemsize}",
        "bdata": b64encode(small.tobytes()).decode(),
    }
    return {**found, "shape": ", ".join(map(str, small.shape))} if small.ndim > 1 else found


def says(view: View, left_out: int = 0) -> str:
    """What is seen, in one line."""
    drawn = "each drawn" if view.bins is None else "each pixel as a stack of kinds, as high as it is busy"
    lanes = plural(len(view.lanes), "stream")
    more = f" of {count(len(view.lanes) + left_out)}, the busiest" if left_out else ""
    width = view.t1_us - view.t0_us
    span = f"{moment(view.t0_us, width)} to {moment(view.t1_us, width)}"
    whole = "" if width >= view.end_us else f", {duration(width)} of {duration(view.end_us)}"
    copied = view.kind_us[KINDS.index("transfer")] > 0
    what = f"{count(view.kernels)} kernels and copies" if copied else plural(view.kernels, "kernel")
    return f"{span}{whole} · {what} on {lanes}{more} · {drawn}"


def moment(at_us: float, width_us: float) -> str:
    """A time with as many digits as tell it from others in a span of ``width_us``: ``262.614 ms``."""
    scale, unit = next(((s, u) for s, u in ((1e6, "s"), (1e3, "ms")) if abs(at_us) >= s), (1.0, "µs"))
    digits = math.ceil(math.log10(100 * scale / width_us)) if width_us > 0 else 0
    return f"{at_us / scale:,.{min(max(digits, 0), 9)}f} {unit}"
