"""One finding in the HTML report: its numbers, its ops before and after, its sites."""

from __future__ import annotations

from auditor.document import Document, Finding, Site
from auditor.graph.model import OpGraph
from auditor.report import facts, svg
from auditor.report.draw import draw
from auditor.report.format import count, duration, from_to, percent, plural, ratio, size
from auditor.report.markup import cells, code, details, fact_list, lines, scroll, table
from auditor.report.subgraph import MOST_OPS, after, before
from auditor.report.svg import escape

_PLACES = 60
_SIDE = {"before": 650.0, "after": 430.0}
"""Widths, in pixels, up to which the two drawings fit side by side."""
_NUMBERS = {2, 3, 4, 5, 6}


def findings_table(ranked: list[Finding]) -> str:
    """All findings, a row each, linked to their sections."""
    head = ["rule", "where", "sites", "kernels", "memory", "kernel time", "likely saved"]
    return table(
        "What each rule found, as it is → once fused", head, (_row(f, i) for i, f in enumerate(ranked, 1)), _NUMBERS
    )


def _row(finding: Finding, index: int) -> str:
    doubt = ' <span class="dim">(inferred)</span>' if finding.provenance == "inferred" else ""
    return cells(
        f'<a href="#f{index}">{escape(finding.rule)}</a> {escape(finding.name)}{doubt}',
        code(facts.place(finding.source) or finding.module_class),
        count(finding.sites),
        facts.kernels(finding),
        facts.traffic(finding),
        facts.kernel_time(finding),
        facts.time_saved(finding) + _meter(finding),
        numbers=_NUMBERS,
    )


def _meter(finding: Finding) -> str:
    """How much of the finding's own time would go, as a bar."""
    part = ratio(finding.saving.likely_us, finding.device_us)
    if part is None or facts.unpriced(finding):
        return ""
    label = f"{percent(part)} of its kernel time"
    bars = svg.element("rect", class_="all", width=110.0, height=6.0, rx=3.0) + svg.element(
        "rect", class_="part", width=110.0 * min(max(part, 0.0), 1.0), height=6.0, rx=3.0
    )
    return f'<svg class="meter" viewBox="0 0 110 6" role="img" aria-label="{label}">{bars}</svg>'


def section(document: Document, graph: OpGraph | None, finding: Finding, index: int) -> str:
    """The finding as a fold, the first one open."""
    where = facts.place(finding.source) or "source line not recorded"
    body = (
        f"<p>{code(where)} · {escape(facts.owner(finding))}</p>"
        + fact_list(facts.particulars(document, finding))
        + _drawings(finding, graph, index)
        + _ssa(finding)
        + _places(finding)
    )
    is_open = " open" if index == 1 else ""
    summary = f"<summary>{_badge(finding)}<h3>{escape(finding.name)}</h3>{_gain(finding)}</summary>"
    return f'<details class="finding" id="f{index}"{is_open}>{summary}<div>{body}</div></details>'


def _badge(finding: Finding) -> str:
    css = finding.severity if finding.severity in {"warning", "error"} else "info"
    return f'<span class="badge {css}">{escape(finding.severity)} {escape(finding.rule)}</span> '


def _gain(finding: Finding) -> str:
    gain = finding.saving.step_us if finding.family == facts.LAUNCHES else finding.saving.likely_us
    saved = f" · saves {duration(gain)}" if gain else ""
    doubt = " · inferred" if finding.provenance == "inferred" else ""
    return f'<span class="right">{plural(finding.sites, "site")}{saved}{doubt}</span>'


def _drawings(finding: Finding, graph: OpGraph | None, index: int) -> str:
    if finding.family == facts.LAUNCHES:  # the same kernels, launched otherwise
        return ""
    site = finding.places[0] if finding.places else None
    picture = before(graph, site) if site else None
    if site is None or picture is None:
        why = facts.NO_OPS if facts.by_name(finding) else "The ops of its sites are not at hand: nothing can be drawn."
        return f'<p class="dim">{escape(why)}</p>'
    name = finding.replacement or finding.name
    at = f", {site.module}" if site.module else ""
    cut = f"; the first {MOST_OPS} ops are drawn, {count(picture.left_out)} more are not" if picture.left_out else ""
    now = draw(picture, f"f{index}-before", f"{finding.name} as recorded{at}")
    then = draw(after(picture, site, name), f"f{index}-after", f"{finding.name} once fused{at}")
    stacked = " stacked" if now.width > _SIDE["before"] or then.width > _SIDE["after"] else ""
    figures = _figure("before", f"as recorded{at}: {_cost(site.kernels, site.bytes_now)}{cut}", now.markup)
    figures += _figure("after", f"once fused: {_cost(site.kernels_after, site.bytes_fused)}", then.markup)
    return f'<h4>Before and after, first site</h4><div class="pair{stacked}">{figures}</div>'


def _cost(kernels: int, moved: int) -> str:
    return f"{plural(kernels, 'kernel')}, {size(moved)} moved"


def _figure(css: str, caption: str, drawing: str) -> str:
    return f'<figure class="{css}"><figcaption>{escape(caption)}</figcaption>{scroll(caption, drawing)}</figure>'


def _ssa(finding: Finding) -> str:
    if not finding.graph:
        return ""
    return details("The first site as SSA text, for a rule's test", f"<pre>{lines(finding.graph)}</pre>", "fold")


def _places(finding: Finding) -> str:
    if len(finding.places) < 2:
        return ""
    rows = (_place(site) for site in finding.places[:_PLACES])
    left = len(finding.places) - _PLACES
    caption = f"{plural(len(finding.places), 'site')}{f', the first {_PLACES} shown' if left > 0 else ''}"
    head = ["module", "kernels", "memory", "kernel time", "likely saved"]
    return details(caption, table(caption, head, rows, {1, 2, 3, 4}), "fold")


def _place(site: Site) -> str:
    return cells(
        code(site.module or facts.place(site.source)),
        f"{count(site.kernels)} → {count(site.kernels_after)}",
        from_to(site.bytes_now, site.bytes_fused),
        duration(site.device_us),
        duration(site.saving.likely_us),
        numbers={1, 2, 3, 4},
    )
