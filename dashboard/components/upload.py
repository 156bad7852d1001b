"""Dropping a trace or an audit: the file goes to the service as a stream, in parts that this page never holds."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboard.components.aria import aria
from dashboard.components.shell import LOG_IN
from dashboard.context import current


def upload() -> html.Section:
    """The place to drop a file; ``assets/upload.js`` sends it and says how far it is."""
    context = current()
    if not context.may_change():
        content: list[Any] = [html.P(LOG_IN, className="why")]
    elif context.jobs is None:
        content = [html.P("No worker runs here, so nothing can be imported.", className="why")]
    else:
        content = [_drop(), html.P(id="upload-status", role="status", className="why")]
    return html.Section([html.H2("Import a trace"), *content])


def _drop() -> html.Div:
    return html.Div(
        [
            html.Button("Choose a file", type="button", className="upload-choose"),
            html.Span(" or drop one here: a torch.profiler trace, .json or .json.gz"),
            html.Progress(className="upload-progress", max="100", value="0", hidden=True, **aria(label="Upload")),
        ],
        className="drop",
        id="upload-drop",
    )
