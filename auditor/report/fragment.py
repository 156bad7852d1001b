"""A compact fragment for notebooks: inline styles that suit light and dark, no scripts, nothing loaded."""

from __future__ import annotations

from auditor.document import Document, Finding
from auditor.report import facts, headline
from auditor.report.format import count, duration, plural, share
from auditor.report.svg import escape

_ROWS = 10
_CELL = "padding:3px 10px;border-top:1px solid rgba(128,128,128,.35);"
_TEXT, _NUMBER = f"{_CELL}text-align:left", f"{_CELL}text-align:right;white-space:nowrap"
_DIM = "opacity:.7"


def render(document: Document) -> str:
    """Title, one line of totals, and the ten findings that save most."""
    ranked = facts.ranked(document)
    body = _table(ranked) if ranked else f"<p>{escape(headline.looked_at(document))}</p>"
    head = f"<strong>Fusion audit of {escape(facts.title(document))}</strong>"
    return f'<div style="font-size:13px;line-height:1.45">{head}<div>{_totals(document)}</div>{body}</div>'


def _totals(document: Document) -> str:
    totals = document.totals
    parts = [f"{count(totals.avoidable_kernels)} of {plural(totals.kernels, 'kernel')} avoidable"]
    if totals.step_us > 0:
        saved = totals.saving.step_us
        parts.append(f"likely {duration(saved)} of {duration(totals.step_us)} ({share(saved, totals.step_us)})")
    parts.append(headline.less_traffic(document))
    return " · ".join(parts)


def _table(ranked: list[Finding]) -> str:
    names = ("finding", "where", "sites", "kernels", "memory", "likely saved")
    head = "".join(
        f'<th scope="col" style="{_TEXT if i < 2 else _NUMBER};{_DIM}">{n}</th>' for i, n in enumerate(names)
    )
    rows = "".join(map(_row, ranked[:_ROWS]))
    left = len(ranked) - _ROWS
    more = f'<div style="{_DIM}">and {plural(left, "smaller finding")}</div>' if left > 0 else ""
    grid = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    return f'<table style="border-collapse:collapse;font-size:inherit">{grid}</table>{more}'


def _row(finding: Finding) -> str:
    where = facts.place(finding.source) or finding.module_class
    texts = (f"{finding.rule} {finding.name}", where or "–")
    numbers = (
        count(finding.sites),
        facts.kernels(finding),
        facts.traffic(finding),
        facts.time_saved(finding),
    )
    left = "".join(f'<td style="{_TEXT}">{escape(text)}</td>' for text in texts)
    right = "".join(f'<td style="{_NUMBER}">{number}</td>' for number in numbers)
    return f"<tr>{left}{right}</tr>"
