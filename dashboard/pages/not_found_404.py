"""The page of an address that has none."""

from __future__ import annotations

import dash
from dash import dcc, html

dash.register_page(__name__, path="/not-found", title="Not found · Fusion Auditor")


def layout(**_: str) -> html.Div:
    """What can be done instead."""
    return html.Div(
        [html.H1("No such page"), html.P(["The address names nothing here. ", dcc.Link("All runs", href="/")])]
    )
