"""Inputs that narrow what is shown, each with its label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dash import dcc, html

from auditor.report.format import clip, safe
from dashboard.components.fields import Option, Select


def search(ident: str, label: str, value: str, placeholder: str = "") -> html.Div:
    """A text to look for; it counts a moment after the last key."""
    field = dcc.Input(id=ident, type="text", value=value, placeholder=placeholder, debounce=0.25)
    return html.Div([html.Label(label, htmlFor=ident), field], className="grow")


def choice(
    ident: str, label: str, values: Iterable[str], value: str, everything: str = "All", css: str = ""
) -> html.Div:
    """One of ``values``, or all of them; a value of the address that is not among them is offered too.

    ``everything``: what all of them are called; empty where one has to be chosen. ``css``: ``broad`` for long values.
    """
    known = list(dict.fromkeys([*values, *([value] if value else [])]))
    options = [{"value": "", "label": everything}] if everything else []
    options += [{"value": v, "label": clip(safe(v), 60)} for v in known if v]
    return select(ident, label, options, value or None, css=css)


def select(
    ident: str, label: str, options: Sequence[Option], value: str | None, *, disabled: bool = False, css: str = ""
) -> html.Div:
    """One of ``options``, under its label."""
    return html.Div([html.Label(label, htmlFor=ident), Select(ident, options, value, disabled)], className=css)
