"""The report as one HTML file: tiles, waterfall, ranked findings, each with its ops before and after."""

from __future__ import annotations

from auditor.document import Document
from auditor.graph.model import OpGraph
from auditor.report import facts, headline, kernels, page, ranks, steps, waterfall
from auditor.report.finding_html import findings_table, section
from auditor.report.format import count, duration, percent, plural, ratio, share, size
from auditor.report.markup import cells, code, details, fact_list, lines, note_list, scroll, table
from auditor.report.svg import escape

_KERNELS = 50
"""Live fusions, and names of unknown kernels, in a table."""
_DRAWN = 40
"""Findings that are drawn; a page of hundreds of drawings helps nobody."""


def render(document: Document, graph: OpGraph | None) -> str:
    """The page, ending in a newline. ``graph`` may be ``None`` or lack ops: what can't be drawn says so."""
    title = f"Fusion audit of {facts.title(document)}"
    blocks = [
        f"<h1>{escape(title)}</h1>",
        _subtitle(document),
        _tiles(document),
        _time(document, graph),
        _ranks(document),
        _steps(document),
        _findings(document, graph),
        _refused(document),
        _suppressed(document),
        _kernels(document),
        _about(document),
        _next(document),
    ]
    return page.wrap(title, "\n".join(block for block in blocks if block))


def _subtitle(document: Document) -> str:
    shown = [code(f.value) for f in headline.headline(document) if f.literal]
    if document.run.created:
        shown.append(escape(document.run.created))
    return f'<p class="dim">{" · ".join(shown)}</p>'


def _tiles(document: Document) -> str:
    totals, saving = document.totals, document.totals.saving
    timed = totals.step_us > 0
    left = f"{count(facts.remaining(document))} would remain"
    moved = ratio(saving.bytes, totals.bytes)
    tiles = [
        ("Step", duration(totals.step_us) if timed else "not timed", f"{duration(totals.device_us)} in kernels"),
        ("Memory-bound", share(totals.memory_bound_us, totals.device_us), "of the kernel time"),
        ("Kernels", count(totals.kernels), f"{count(totals.memory_bound_kernels)} memory-bound"),
        ("Avoidable kernels", count(totals.avoidable_kernels), left),
        ("Likely off the step", duration(saving.step_us) if timed else "not known", _tile_step(document)),
        ("Less memory traffic", size(saving.bytes), "" if moved is None else f"{percent(moved)} of the step's"),
    ]
    inner = "".join(f"<div><dt>{a}</dt><dd>{b}<small>{c}</small></dd></div>" for a, b, c in tiles)
    return f'<dl class="tiles">{inner}</dl>'


def _tile_step(document: Document) -> str:
    totals = document.totals
    if totals.step_us <= 0:
        return "nothing was timed"
    return f"{share(totals.saving.step_us, totals.step_us)}; ideal {duration(totals.saving.ideal_us)} of kernel time"


def _time(document: Document, graph: OpGraph | None) -> str:
    parts = waterfall.split(document, graph)
    if parts is None:
        return "<section><h2>Where the time goes</h2><p>Nothing was timed.</p></section>"
    bars = scroll("Where the time goes", waterfall.draw(parts), "scroll bare")
    remarks = "".join(f'<p class="dim">{escape(r)}</p>' for r in parts.remarks)
    return f"<section><h2>Where the time goes</h2>{bars}{remarks}</section>"


def _ranks(document: Document) -> str:
    if not document.ranks:
        return ""
    numbers = set(ranks.NUMBERS)
    made = [cells(*(escape(cell) for cell in row), numbers=numbers) for row in ranks.rows(document)]
    grid = table("A row for each process of the job", ranks.HEAD, made, numbers)
    told = note_list(ranks.sentences(document))
    return f"<section><h2>{escape(ranks.title(document).capitalize())}</h2>{grid}{told}</section>"


def _steps(document: Document) -> str:
    held = steps.shown(document)
    if held is None:
        return ""
    numbers = set(steps.NUMBERS)
    made = [cells(*(escape(cell) for cell in row), numbers=numbers) for row in steps.rows(held)]
    grid = table("A row for each step of the trace", steps.HEAD, made, numbers)
    told = note_list([note for note in (steps.left_out(held),) if note])
    return f"<section><h2>{escape(steps.title(held).capitalize())}</h2>{grid}{told}</section>"


def _findings(document: Document, graph: OpGraph | None) -> str:
    ranked = facts.ranked(document)
    if not ranked:
        return f"<section><h2>No findings</h2><p>{escape(headline.looked_at(document))}</p></section>"
    drawn = [section(document, graph if i <= _DRAWN else None, f, i) for i, f in enumerate(ranked, 1)]
    return f"<section><h2>Findings, by likely saving</h2>{findings_table(ranked)}{''.join(drawn)}</section>"


def _refused(document: Document) -> str:
    groups = facts.refusals(document)
    if not groups:
        return ""
    rows = [cells(code(g.rule), count(g.count), escape(g.reason), code(g.at), numbers={1}) for g in groups]
    caption = f"{plural(sum(g.count for g in groups), 'site')} matched a rule and must not be fused"
    return f"<section><h2>Refused</h2>{table(caption, ['rule', 'sites', 'reason', 'first at'], rows, {1})}</section>"


def _suppressed(document: Document) -> str:
    if not document.suppressed:
        return ""
    rows = [
        cells(code(s.rule), code(s.modules), escape(s.reason), count(s.sites) if s.sites else "none: remove it")
        for s in document.suppressed
    ]
    grid = table("What was not reported, and why", ["rule", "modules", "reason", "sites"], rows, set())
    return f"<section><h2>Suppressed</h2>{grid}</section>"


def _kernels(document: Document) -> str:
    """Every kernel by family, the live fusions, and the kernels that nobody knows."""
    if not document.families:
        return ""
    grids = [_grid("Every kernel by its name, or else its op", kernels.FAMILIES, kernels.family_rows(document), 1)]
    if document.live:
        title = f"{kernels.live_title(document).capitalize()}; no finding has these"
        grids.append(_grid(title, kernels.LIVE, kernels.live_rows(document, _KERNELS), 2))
    if document.unplaced:
        grids.append(_grid(kernels.other_title(document), kernels.OTHER, kernels.other_rows(document, _KERNELS), 1))
    return f"<section><h2>What the kernels are</h2>{''.join(grids)}</section>"


def _grid(caption: str, head: tuple[str, ...], rows: list[tuple[str, ...]], names: int) -> str:
    numbers = set(range(names, len(head)))
    return table(caption, head, [cells(*map(escape, row), numbers=numbers) for row in rows], numbers)


def _about(document: Document) -> str:
    body = fact_list(headline.headline(document)) + note_list(document.run.notes)
    return f"<section><h2>The run, and what the audit stands on</h2>{body}</section>"


def _next(document: Document) -> str:
    text = "\n".join(f"{step.command}  # {step.why}" for step in facts.next_steps(document))
    return details("What next", f"<pre>{lines(text)}</pre>", "fold") if text else ""
