"""Inputs that narrow what is shown, each with its label."""

from __future__ import annotations

from collections.abc import Iterable

import dash_mantine_components as dmc
from dash import html

from auditor.report.format import clip, safe


def search(ident: str, label: str, value: str, placeholder: str = "") -> html.Div:
    """A text to look for; it counts a moment after the last key."""
    return html.Div(
        dmc.TextInput(id=ident, label=label, value=value, placeholder=placeholder, debounce=250, size="xs"),
        className="grow",
    )


def choice(
    ident: str, label: str, values: Iterable[str], value: str, everything: str = "All", css: str = ""
) -> dmc.Select:
    """One of ``values``, or all of them; a value of the address that is not among them is offered too.

    ``css``: ``broad`` for long values.
    """
    known = list(dict.fromkeys([*values, *([value] if value else [])]))
    data = [{"value": v, "label": clip(safe(v), 60)} for v in known if v]
    return dmc.Select(
        id=ident, label=label, className=css, data=data, value=value or None, placeholder=everything, clearable=True,
        searchable=True,
        size="xs", checkIconPosition="right", maxDropdownHeight=320, nothingFoundMessage="Nothing of that name",
    )  # fmt: skip
