"""Drawing a site's picture as SVG. Colours come from the page's style sheet."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from auditor.report import svg
from auditor.report.format import clip, plural
from auditor.report.layers import Box, arrange
from auditor.report.subgraph import Edge, Node, Picture

_CHAR, _SMALL = 7.25, 6.05
"""Width of a monospaced character at 12 and at 10 px, a little more than the widest common font's."""
_LINE, _PAD = 15.0, 9.0


@dataclass(frozen=True, slots=True)
class Drawing:
    """An SVG element and its width in pixels."""

    markup: str
    width: float


def draw(picture: Picture, ident: str, title: str) -> Drawing:
    """``picture`` as an SVG element. ``ident`` must be unique in the page."""
    sizes = {key: _size(node) for key, node in picture.nodes.items()}
    labels = _labels(picture)
    slots = {key: _SMALL * len(text) + _PAD for key, text in labels.items()}
    placed = arrange(sizes, [(e.tail, e.head) for e in picture.edges], slots)
    lines = [_edge(edge, path) for edge, path in zip(picture.edges, placed.paths, strict=True)]
    boxes = [_node(node, placed.boxes[key]) for key, node in picture.nodes.items()]
    tags = [_tag(text, placed.boxes[key]) for key, text in labels.items()]
    content = "".join([*lines, *boxes, *tags])
    markup = svg.drawing(ident, placed.width, placed.height, title, describe(picture), content, "graph")
    return Drawing(markup, placed.width)


def describe(picture: Picture) -> str:
    """What the drawing shows, in words."""
    kinds = [node.kind for node in picture.nodes.values()]
    titles = [node.title for node in picture.nodes.values() if node.kind in {"op", "fused"}]
    shown = " then ".join(titles[:12]) + (" and more" if len(titles) > 12 else "")
    ends = f"{plural(kinds.count('input'), 'input')}, {plural(kinds.count('output'), 'output')}"
    return f"{plural(len(titles), 'kernel')} ({ends}): {shown}"


def _size(node: Node) -> tuple[float, float]:
    width = max(_CHAR * len(node.title), *(_SMALL * 1.1 * len(line) for line in node.lines), 64.0)
    return width + 2 * _PAD, _LINE * (1 + len(node.lines)) + 2 * _PAD - 4


def _labels(picture: Picture) -> dict[str, str]:
    """One label under each node that something is read from, with the views that its readers see it through."""
    labels: dict[str, str] = {}
    views: dict[str, list[str]] = {}
    for edge in picture.edges:
        if edge.label:
            labels.setdefault(edge.tail, edge.label)
        if edge.via and edge.via not in views.setdefault(edge.tail, []):
            views[edge.tail].append(edge.via)
    return {
        key: f"{label}{_seen_as(views.get(key, []))}" for key, label in labels.items() if not _several(picture, key)
    }


def _several(picture: Picture, key: str) -> bool:
    """A fused kernel with unlike results: each result says itself what it is."""
    return picture.nodes[key].kind == "fused" and len({e.label for e in picture.edges if e.tail == key}) > 1


def _seen_as(views: list[str]) -> str:
    return f" via {clip(' or '.join(views), 24)}" if views else ""


def _node(node: Node, box: Box) -> str:
    radius = box.height / 2 if node.kind in {"input", "output"} else 5
    shape = svg.element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=min(radius, 16))
    y = box.y + _PAD + 9
    name = svg.text(box.center, y, node.title, class_="name", text_anchor="middle")
    lines = [
        svg.text(box.center, y + _LINE * i, line, class_="line", text_anchor="middle")
        for i, line in enumerate(node.lines, 1)
    ]
    full = svg.element("title", svg.escape(" · ".join((node.title, *node.lines))))
    return svg.element("g", full + shape + name + "".join(lines), class_=f"node {node.kind}")


def _edge(edge: Edge, path: list[tuple[float, float]]) -> str:
    x, y = path[-1]
    css = "edge outside" if edge.outside else "edge"
    line = svg.element("path", d=_curve([*path[:-1], (x, y - 6)]), class_="wire")
    head = svg.element("path", d=f"M{x - 4:.1f} {y - 7:.1f}L{x + 4:.1f} {y - 7:.1f}L{x:.1f} {y:.1f}Z", class_="head")
    return svg.element("g", line + head, class_=css)


def _curve(path: list[tuple[float, float]]) -> str:
    """A path that leaves and enters every point vertically."""
    d = [f"M{path[0][0]:.1f} {path[0][1]:.1f}"]
    for (x0, y0), (x1, y1) in pairwise(path):
        mid = (y0 + y1) / 2
        bend = f"C{x0:.1f} {mid:.1f} {x1:.1f} {mid:.1f} {x1:.1f} {y1:.1f}"
        d.append(f"L{x1:.1f} {y1:.1f}" if abs(x0 - x1) < 0.5 else bend)
    return "".join(d)


def _tag(label: str, box: Box) -> str:
    width, y = _SMALL * len(label) + 4, box.y + box.height + 14
    behind = svg.element("rect", x=box.center - width / 2, y=y - 9, width=width, height=12.0, class_="behind")
    return behind + svg.text(box.center, y, label, class_="tag", text_anchor="middle")
