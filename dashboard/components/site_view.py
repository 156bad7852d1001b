"""One site of a finding: its ops before and after, its kernels, and why it may be fused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dash import html

from auditor.document import Finding, Site
from auditor.graph.canonical import is_view
from auditor.graph.model import Kernel, Op, OpGraph, Value
from auditor.report import facts
from auditor.report.draw import describe, draw
from auditor.report.format import count, duration, plural, safe, shape, share, size
from auditor.report.subgraph import MOST_OPS, after, before
from dashboard.components.code import code_block, details
from dashboard.components.drawing import figure
from dashboard.components.tables import table
from dashboard.data.site_graph import site_graph, unlinked_kernels
from dashboard.data.stored import stored

_SIDE = (700.0, 460.0)
"""Widths, in pixels, up to which the two drawings fit side by side."""


def site_views(run: str, finding: Finding, index: int) -> tuple[list[Any], list[Any]]:
    """The drawings of a site, and its kernels with why they may be one."""
    if not finding.places:
        return [_not_at_hand()], []
    site = finding.places[min(max(index, 0), len(finding.places) - 1)]
    if site.unlinked and not site.ops:
        return [html.P(facts.NO_OPS, className="dim")], [_by_name(run, site), legality(finding, site, None)]
    cut = site_graph(stored(run), site)
    if cut is None:
        return [_not_at_hand()], [legality(finding, site, None)]
    graph, local = cut
    return drawings(finding, graph, local), [kernels(graph, local), legality(finding, local, graph)]


def _not_at_hand() -> html.P:
    return html.P("The ops of this site are not stored with the run: nothing can be drawn.", className="dim")


def drawings(finding: Finding, graph: OpGraph, site: Site) -> list[Any]:
    """The ops as recorded, and the one kernel in their place."""
    if finding.family == facts.LAUNCHES:
        return [html.P("The kernels stay as they are: one call launches them all.", className="dim")]
    picture = before(graph, site)
    if picture is None:
        return [_not_at_hand()]
    fused = after(picture, site, finding.replacement or finding.name)
    now = draw(picture, "finding-before", f"{finding.name}, as recorded")
    then = draw(fused, "finding-after", f"{finding.name}, once fused")
    left = f"; the first {MOST_OPS} ops are drawn, {count(picture.left_out)} more are not" if picture.left_out else ""
    stacked = now.width > _SIDE[0] or then.width > _SIDE[1]
    pair = html.Div(
        [
            figure(f"Now: {_moved(site.kernels, site.bytes_now)}{left}", now.markup),
            figure(f"Fused: {_moved(site.kernels_after, site.bytes_fused)}", then.markup),
        ],
        className="pair stacked" if stacked else "pair",
    )
    words = [html.P(f"Now {describe(picture)}. Fused {describe(fused)}.")]
    return [pair, _legend(), details("The drawing in words, and as SSA text", *words, *_ssa(finding))]


def _moved(kernels_: int, moved: int) -> str:
    return f"{plural(kernels_, 'kernel')}, {size(moved)} moved"


def _ssa(finding: Finding) -> list[Any]:
    if not finding.graph:
        return []
    return [html.P("The first site, ready for a rule's test:"), code_block(finding.graph, "SSA text", numbered=False)]


def _legend() -> html.Ul:
    marks = (
        ("--op", "--opline", "a kernel"), ("--soft", "--rest", "read from outside"),
        ("--out", "--outline", "read outside: has to be written"), ("--fused", "--fusedline", "the fused kernel"),
    )  # fmt: skip
    return html.Ul(
        [
            html.Li([html.I(style={"background": f"var({fill})", "borderColor": f"var({line})"}), text])
            for fill, line, text in marks
        ],
        className="legend",
    )


def kernels(graph: OpGraph, site: Site) -> html.Section:
    """The kernels of the site with their times."""
    ops = [graph.ops[i] for i in sorted(set(site.ops))]
    return _kernels((op, k) for op in ops for k in op.kernels)


def _by_name(run: str, site: Site) -> html.Section:
    """Kernels that no op is known for."""
    return _kernels((None, kernel) for kernel in unlinked_kernels(stored(run), site))


def _kernels(pairs: Iterable[tuple[Op | None, Kernel]]) -> html.Section:
    held = list(pairs)
    whole = sum(k.dur_us for _, k in held)
    rows = [
        [html.Code(safe(op.name)) if op else "not known", html.Code(safe(k.name), className="long"),
         _made(op.outputs if op else ()), duration(k.dur_us), share(k.dur_us, whole)]
        for op, k in held
    ]  # fmt: skip
    none = html.P("None of these ops has a kernel with a time.", className="dim")
    head = ("op", "kernel", "makes", "time", "of the site")
    grid = table("Kernels of the site", head, rows, numbers=(3, 4)) if rows else none
    total = f"{plural(len(rows), 'kernel')}, {duration(whole)} together" if rows else ""
    return html.Section([html.H3("Kernels of this site"), html.P(total, className="note") if total else None, grid])


def _made(outputs: tuple[Value, ...]) -> Any:
    return html.Code(_tensor(outputs[0]), className="nowrap") if outputs else "–"


def _tensor(value: Value) -> str:
    return f"{safe(value.dtype)}{shape(value.shape)} · {size(value.nbytes)}"


def legality(finding: Finding, site: Site, graph: OpGraph | None) -> html.Section:
    """Why the ops may be one kernel: what the engine checked, with this site's values."""
    points: list[Any] = []
    if graph is not None:
        points += _values(graph, site)
    points += facts.legality(finding)
    return html.Section([html.H3("Why it is legal"), html.Ul([html.Li(p) for p in points])])


def _values(graph: OpGraph, site: Site) -> list[Any]:
    made = [v for i in site.ops if not is_view(graph.ops[i]) for v in graph.ops[i].outputs]
    kept = set(site.outputs) | set(site.saved)
    inner = [v for v in made if v.id not in kept]
    outer = [v for v in made if v.id in kept]
    moved = sum(v.nbytes for v in inner)
    points: list[Any] = []
    if inner:
        points.append(
            f"{plural(len(inner), 'intermediate')} ({size(moved)}) {'is' if len(inner) == 1 else 'are'} read by "
            "nothing outside of it: they need not be written to memory."
        )
    for value in outer[:6]:
        why = "only the backward reads it" if value.id in site.saved else "it is read outside"
        points.append([html.Code(_tensor(value)), f" is written: {why}, and its bytes are counted."])
    return points
