"""A layered drawing of a directed graph (after Sugiyama): layers, order within them, coordinates.

Plain geometry in pixels, y down; it knows nothing of ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Key = str | tuple[int, int]
"""A node's own key, or ``(edge, layer)`` of the point where a long edge crosses a layer."""

GAP_X, GAP_Y, MARGIN = 22.0, 50.0, 12.0
LEAD = 19.0
"""How far below its row an edge runs straight down: room for a label, and no edge bends through one."""
_SWEEPS = 8
_WAYPOINT = 10.0


@dataclass(frozen=True, slots=True)
class Box:
    """A placed node: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def center(self) -> float:
        return self.x + self.width / 2


@dataclass(slots=True)
class Arrangement:
    """``paths[i]`` are the points of edge ``i``, from the tail's lower edge to the head's upper edge."""

    boxes: dict[str, Box]
    paths: list[list[tuple[float, float]]]
    width: float
    height: float


@dataclass(slots=True)
class _Layers:
    rows: list[list[Key]] = field(default_factory=list)
    up: dict[Key, list[Key]] = field(default_factory=dict)
    down: dict[Key, list[Key]] = field(default_factory=dict)


def arrange(sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]],
            slots: Mapping[str, float] | None = None) -> Arrangement:  # fmt: skip
    """Place nodes of ``sizes`` (width, height) so that every edge leads downwards.

    Args:
        sizes: nodes in an order in which every edge leads from an earlier to a later one.
        edges: pairs of tail and head.
        slots: room to keep for a node where that is more than its width (for a label beside its edges).
    """
    level = _levels(list(sizes), edges)
    layers = _split(list(sizes), edges, level)
    _order(layers)
    widths: dict[Key, float] = {k: max(w, (slots or {}).get(k, 0.0)) for k, (w, _) in sizes.items()}
    center = _centers(layers, widths)
    return _place(layers, sizes, edges, level, center, widths)


def _levels(keys: list[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Longest path from the top; what nothing leads to sits right above what reads it first."""
    heads: dict[str, list[str]] = {k: [] for k in keys}
    entered = set()
    for tail, head in edges:
        heads[tail].append(head)
        entered.add(head)
    level = dict.fromkeys(keys, 0)
    for key in keys:
        for head in heads[key]:
            level[head] = max(level[head], level[key] + 1)
    for key in keys:
        if key not in entered and heads[key]:
            level[key] = min(level[h] for h in heads[key]) - 1
    return level


def _split(keys: list[str], edges: Sequence[tuple[str, str]], level: dict[str, int]) -> _Layers:
    """Rows of nodes, with a waypoint in every row that a long edge crosses."""
    layers = _Layers([[] for _ in range(max(level.values(), default=0) + 1)])
    for key in keys:
        layers.rows[level[key]].append(key)
    for i, (tail, head) in enumerate(edges):
        way: list[Key] = [tail, *((i, row) for row in range(level[tail] + 1, level[head])), head]
        for point in way[1:-1]:
            layers.rows[point[1]].append(point)  # type: ignore[index]
        for a, b in pairwise(way):
            layers.down.setdefault(a, []).append(b)
            layers.up.setdefault(b, []).append(a)
    return layers


def _order(layers: _Layers) -> None:
    """Barycenter sweeps, down and up: few crossings, the first order kept where nothing speaks against it."""
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        neighbours = layers.up if downwards else layers.down
        rows = layers.rows if downwards else list(reversed(layers.rows))
        for fixed, row in pairwise(rows):
            at = {key: i for i, key in enumerate(fixed)}
            own = {key: i for i, key in enumerate(row)}
            row.sort(key=lambda k: _mean([at[n] for n in neighbours.get(k, ()) if n in at], own[k]))


def _mean(numbers: list[float] | list[int], default: float) -> float:
    return sum(numbers) / len(numbers) if numbers else default


def _centers(layers: _Layers, widths: dict[Key, float]) -> dict[Key, float]:
    """Horizontal centres: each node is drawn to its neighbours, none comes too close to the next."""
    center: dict[Key, float] = {}
    for row in layers.rows:
        x = 0.0
        for key in row:
            center[key] = x + widths.get(key, _WAYPOINT) / 2
            x += widths.get(key, _WAYPOINT) + GAP_X
    for sweep in range(2 * _SWEEPS):
        neighbours = layers.up if sweep % 2 == 0 else layers.down
        for row in layers.rows if sweep % 2 == 0 else reversed(layers.rows):
            wanted = [_mean([center[n] for n in _pulling(layers, neighbours, k)], center[k]) for k in row]
            for key, x in zip(row, _spread(row, wanted, widths, _trunk(layers, row)), strict=True):
                center[key] = x
    return center


def _pulling(layers: _Layers, neighbours: dict[Key, list[Key]], key: Key) -> list[Key]:
    """The neighbours that ``key`` is drawn to: the graph's ends don't bend a chain, unless they are all there is."""
    near = neighbours.get(key, [])
    return [n for n in near if n in layers.up and n in layers.down] or near


def _trunk(layers: _Layers, row: list[Key]) -> int | None:
    """The one node of ``row`` that is passed through, the trunk of a chain; ``None`` where there are several."""
    passed = [i for i, key in enumerate(row) if isinstance(key, str) and key in layers.up and key in layers.down]
    return passed[0] if len(passed) == 1 else None


def _spread(row: list[Key], wanted: list[float], widths: dict[Key, float], trunk: int | None) -> list[float]:
    """Keep the nodes of a row apart: the trunk stays where it wants to be and the others make room.

    Without a trunk it is the mean of pushing right and of pushing left: both keep their distance, so their mean does.
    """
    half = [widths.get(k, _WAYPOINT) / 2 for k in row]
    if trunk is not None:
        return _around(trunk, wanted, half)
    right, left = _around(0, wanted, half), _around(len(row) - 1, wanted, half)
    return [(r + x) / 2 for r, x in zip(right, left, strict=True)]


def _around(fixed: int, wanted: list[float], half: list[float]) -> list[float]:
    """Node ``fixed`` where it wants to be, the others no nearer than they may be."""
    placed = list(wanted)
    for i in range(fixed + 1, len(placed)):
        placed[i] = max(placed[i], placed[i - 1] + half[i - 1] + half[i] + GAP_X)
    for i in range(fixed - 1, -1, -1):
        placed[i] = min(placed[i], placed[i + 1] - half[i + 1] - half[i] - GAP_X)
    return placed


def _place(layers: _Layers, sizes: Mapping[str, tuple[float, float]], edges: Sequence[tuple[str, str]],
           level: dict[str, int], center: dict[Key, float], widths: dict[Key, float]) -> Arrangement:  # fmt: skip
    left = min((center[k] - widths.get(k, 0.0) / 2 for k in center), default=0.0) - MARGIN
    right = max((center[k] + widths.get(k, 0.0) / 2 for k in center), default=0.0) + MARGIN
    tops, y = [], MARGIN
    for row in layers.rows:
        tops.append(y)
        y += max((sizes[k][1] for k in row if isinstance(k, str)), default=0.0) + GAP_Y
    boxes = {k: Box(center[k] - left - w / 2, tops[level[k]], w, h) for k, (w, h) in sizes.items()}
    paths = [_path(i, edge, boxes, level, center, left, tops) for i, edge in enumerate(edges)]
    return Arrangement(boxes, paths, right - left, y - GAP_Y + MARGIN)


def _path(index: int, edge: tuple[str, str], boxes: dict[str, Box], level: dict[str, int],
          center: dict[Key, float], left: float, tops: list[float]) -> list[tuple[float, float]]:  # fmt: skip
    tail, head = (boxes[k] for k in edge)
    points = [(tail.center, tail.y + tail.height), (tail.center, tops[level[edge[0]] + 1] - GAP_Y + LEAD)]
    for row in range(level[edge[0]] + 1, level[edge[1]]):
        x = center[index, row] - left
        points += [(x, tops[row]), (x, tops[row + 1] - GAP_Y + LEAD)]
    return [*points, (head.center, head.y)]
