"""What stands around every page: the way past the navigation, the navigation, the colour scheme, who is looking."""

from __future__ import annotations

import dash
from dash import ClientsideFunction, Input, Output, clientside_callback, dcc, html

import auditor
from auditor.report.format import safe
from dashboard.components.aria import aria
from dashboard.context import current

_SECTIONS = (("Runs", "/"), ("Compare", "/compare"), ("Gate", "/gate"), ("Jobs", "/jobs"), ("Rules", "/rules"))

LOG_IN = "Read only: open the link that `fusion-audit serve` printed to run, cancel or change anything here."


def shell() -> html.Div:
    """The layout of the application. Pages fill its main part."""
    return html.Div(
        [
            html.A("Skip to the content", href="#main", className="skip"),
            dcc.Store(id="shell-scheme"),
            _head(),
            html.Main(dash.page_container, id="main", tabIndex=-1),
            _foot(),
        ]
    )


def _head() -> html.Header:
    links = [html.Li(dcc.Link(label, href=href, className="section")) for label, href in _SECTIONS]
    return html.Header(
        className="top",
        children=[
            dcc.Link(
                [html.Span(className="mark", **aria(hidden="true")), "Fusion Auditor"], href="/", className="brand"
            ),
            html.Nav(html.Ul(links), **aria(label="Sections")),
            html.Div(className="top-right", children=[_session(), _switch()]),
        ],
    )


def _session() -> html.Span:
    """Whether this browser may change anything."""
    if current().may_change():
        return html.Span("Logged in", className="session", title="Jobs can be started and cancelled here")
    return html.Span("Read only", className="session", title=LOG_IN)


def _switch() -> html.Button:
    return html.Button(
        [html.Span("Dark", id="shell-scheme-label"), html.Span(" theme", className="wide-only")],
        id="shell-switch",
        className="quiet",
        type="button",
        title="Change between the light and the dark theme",
    )


def _foot() -> html.Footer:
    return html.Footer(
        className="bottom",
        children=[
            html.Span(f"Fusion Auditor {auditor.__version__}"),
            html.Span(["Store ", html.Code(safe(current().store.location.label))]),
        ],
    )


clientside_callback(
    ClientsideFunction("shell", "scheme"),
    Output("shell-scheme", "data"),
    Output("shell-scheme-label", "children"),
    Input("shell-switch", "n_clicks"),
)
