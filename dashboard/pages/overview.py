"""One run: where the step's time goes, what could be fused, and what the audit stands on."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State, callback, dcc, html
from dash.exceptions import PreventUpdate

from auditor.document import Document, Finding
from auditor.errors import AuditError
from auditor.report import facts, headline, kernels, ranks, steps
from auditor.report.format import count, duration, percent, plural, ratio, safe, share, size
from dashboard.components import links
from dashboard.components.code import commands, details
from dashboard.components.facts import Tile, fact_list, tiles
from dashboard.components.findings import findings_table
from dashboard.components.fixes import fix_note
from dashboard.components.page import run_page, section
from dashboard.components.plot import plot
from dashboard.components.states import empty, failed, guarded, loading, unexpected
from dashboard.components.tables import table
from dashboard.data import stored
from dashboard.data.severity import rule_settings

dash.register_page(__name__, path_template="/run/<run_id>", title="Run · Fusion Auditor")

_SHOWN = 25
"""Findings shown at once; the others are in a fold."""
_FUSIONS = 20
"""Rows of fusions that are live, and of kernels that nobody knows."""
_KERNELS = 12
"""Rows of the table beside the roofline."""


@guarded
def layout(run_id: str = "latest", **_: str) -> html.Div:
    """The page of the run that ``run_id`` names."""
    document = stored.head(run_id).document
    return run_page(
        document,
        "Overview",
        dcc.Store(id="overview-run", data=document.run.id),
        *fix_note(document),
        tiles(_tiles(document)),
        html.Div([_where_time_goes(), _roofline()], className="two"),
        _ranks(document),
        _steps(document),
        _findings(document),
        _refused(document),
        _suppressed(document),
        _live(document),
        _unplaced(document),
        _stands_on(document),
        section("What next", commands(f"{s.command}  # {s.why}" for s in facts.next_steps(document))),
    )


def _tiles(document: Document) -> list[Tile]:
    totals, saving = document.totals, document.totals.saving
    timed = totals.step_us > 0
    moved = ratio(saving.bytes, totals.bytes)
    return [
        Tile(_step_word(document), duration(totals.step_us) if timed else "not timed", _in_kernels(document)),
        Tile("Memory-bound", share(totals.memory_bound_us, totals.device_us), "of the kernel time"),
        Tile("Kernels", count(totals.kernels), f"{count(totals.unfused_kernels)} unfused"),
        Tile("Avoidable kernels", count(totals.avoidable_kernels), f"{count(facts.remaining(document))} would remain"),
        Tile("Step time saved", duration(saving.step_us) if timed else "not known", _of_step(document)),
        Tile("Less memory traffic", size(saving.bytes), "" if moved is None else f"{percent(moved)} of all"),
    ]  # fmt: skip


def _in_kernels(document: Document) -> str:
    return f"{duration(document.totals.device_us)} in kernels"


def _step_word(document: Document) -> str:
    return "Whole trace" if document.run.source == "trace" else "Step"


def _of_step(document: Document) -> str:
    totals, saving = document.totals, document.totals.saving
    if totals.step_us <= 0:
        return "nothing was timed"
    kernels = f"kernel time {duration(saving.likely_us)} likely, {duration(saving.ideal_us)} ideal"
    return f"likely, {share(saving.step_us, totals.step_us)}; {kernels}"


def _where_time_goes() -> html.Section:
    waiting = loading(html.Div(id="overview-time", className="figure-slot"), "overview-time-wait", "the step's time")
    return section("Where the time goes", waiting)


def _roofline() -> html.Section:
    waiting = loading(
        html.Div(id="overview-roofline", className="figure-slot"), "overview-roofline-wait", "the roofline"
    )
    return section("Kernels against the device's ceilings", waiting)


def _ranks(document: Document) -> html.Section | None:
    if not document.ranks:
        return None
    grid = table("A row for each process of the job", ranks.HEAD, ranks.rows(document), numbers=ranks.NUMBERS)
    told = html.Ul([html.Li(sentence) for sentence in ranks.sentences(document)])
    return section(ranks.title(document).capitalize(), grid, told)


def _steps(document: Document) -> html.Section | None:
    held = steps.shown(document)
    if held is None:
        return None
    grid = table("A row for each step of the trace", steps.HEAD, steps.rows(held), numbers=steps.NUMBERS)
    left = steps.left_out(held)
    return section(steps.title(held).capitalize(), grid, *([html.P(left)] if left else []))


def _live(document: Document) -> html.Section | None:
    if not document.live:
        return None
    rows = kernels.live_rows(document, _FUSIONS)
    return section(
        kernels.live_title(document).capitalize(),
        table("Kernels that are fused already, the longest time first", kernels.LIVE, rows, numbers=(2, 3)),
    )


def _unplaced(document: Document) -> html.Section | None:
    title = kernels.other_title(document)
    if not title:
        return None
    rows = kernels.other_rows(document, _FUSIONS)
    return section(title, table("Kernels of no known family", kernels.OTHER, rows, numbers=(1, 2)))


def _findings(document: Document) -> html.Section:
    settings, ranked = rule_settings(), facts.ranked(document)
    if not ranked:
        return section("No findings", empty(headline.looked_at(document)))
    on = [f for f in ranked if settings.is_on(f.rule)]
    parts: list[Any] = (
        [findings_table(document, on[:_SHOWN], "Findings, the largest likely saving first")] if on else []
    )
    for label, rest in (
        ("more finding", on[_SHOWN:]),
        ("finding of rules that are switched off here", _off(ranked, on)),
    ):
        if rest:
            plurals = label.replace("finding", "findings")
            fold = findings_table(document, rest, f"{label}, by likely saving")
            parts.append(details(plural(len(rest), label, plurals), fold))
    return section("Findings, by likely saving", *parts)


def _off(ranked: list[Finding], on: list[Finding]) -> list[Finding]:
    chosen = {id(f) for f in on}
    return [f for f in ranked if id(f) not in chosen]


def _refused(document: Document) -> html.Section | None:
    groups = facts.refusals(document)
    if not groups:
        return None
    sites = sum(g.count for g in groups)
    rows = [
        [dcc.Link(safe(g.rule), href=links.rule(g.rule)), count(g.count), safe(g.reason), html.Code(safe(g.at))]
        for g in groups
    ]
    caption = f"{plural(sites, 'site')} matched a rule and must not be fused"
    return section("Refused", table(caption, ("rule", "sites", "reason", "first at"), rows, numbers=(1,)), note=caption)


def _suppressed(document: Document) -> html.Section | None:
    if not document.suppressed:
        return None
    rows = [
        [
            html.Code(safe(s.rule)),
            html.Code(safe(s.modules)),
            safe(s.reason),
            count(s.sites) if s.sites else "none: remove it",
        ]
        for s in document.suppressed
    ]
    return section("Suppressed", table("What was not reported, and why", ("rule", "modules", "reason", "sites"), rows))


def _stands_on(document: Document) -> html.Section:
    notes = html.Ul([html.Li(safe(note)) for note in document.run.notes]) if document.run.notes else None
    return section("What the audit stands on", fact_list(headline.headline(document)), notes)


@callback(Output("overview-time", "children"), Input("shell-scheme", "data"), State("overview-run", "data"))
def _draw_time(scheme: str | None, run: str | None) -> Any:
    return _drawn(_time_figure, scheme, run)


@callback(Output("overview-roofline", "children"), Input("shell-scheme", "data"), State("overview-run", "data"))
def _draw_roofline(scheme: str | None, run: str | None) -> Any:
    return _drawn(_roofline_figure, scheme, run)


def _drawn(draw: Any, scheme: str | None, run: str | None) -> Any:
    if not scheme or not run:
        raise PreventUpdate
    try:
        return draw(scheme, run)
    except AuditError as error:
        return failed(str(error))
    except Exception:
        return failed(unexpected("figure"))


def _time_figure(scheme: str, run: str) -> Any:
    from dashboard.data.step import step_time
    from dashboard.figures import waterfall

    parts = step_time(run)
    if parts is None:
        return empty("Nothing was timed in this run.", "Counts and bytes are known; times need a profile or a trace.")
    whole = parts.parts[0].us or 0.0
    rows = [
        [p.label, "not known" if p.us is None else duration(p.us), "–" if p.us is None else share(p.us, whole)]
        for p in parts.parts
    ]
    words = "; ".join(f"{row[0]}: {row[1]}" for row in rows)
    instead = table("Where the time goes", ("part", "time", "share"), rows, numbers=(1, 2))
    drawn = plot(waterfall.draw(parts, scheme), f"Where the time goes. {words}", instead, height=320)
    return [drawn, *(html.P(remark, className="note") for remark in parts.remarks)]


def _roofline_figure(scheme: str, run: str) -> Any:
    from dashboard.data.roofline import roofline as read
    from dashboard.figures import roofline

    points = read(run)
    if not points.points:
        return empty("No kernel can be placed.", *points.remarks)
    top = points.points[:_KERNELS]
    rows = [
        [html.Code(safe(p.name)), count(p.kernels), duration(p.dur_us), f"{p.intensity:.3g}", f"{p.gflops:,.0f}"]
        for p in top
    ]
    head = ("kernel", "launches", "time", "FLOP/byte", "GFLOP/s")
    instead = table("Kernels that take most time", head, rows, numbers=(1, 2, 3, 4))
    name = f"Roofline of {plural(len(points.points), 'kernel name')}: achieved rate over arithmetic intensity"
    summary = f"The {len(top)} kernels that take most time, as a table"
    drawn = plot(roofline.draw(points, scheme), name, instead, height=320, summary=summary)
    return [drawn, *(html.P(remark, className="note") for remark in points.remarks)]
