"""What a page shows when there is nothing yet, while it waits, and when it could not be made."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from dash import dcc, html
from dash.development.base_component import Component

from auditor.errors import AuditError
from auditor.report.format import safe

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")


def empty(title: str, *hints: str | Component) -> html.Div:
    """Nothing to show, and what would change that. Commands come as ``html.Code``."""
    return html.Div([html.P(title, className="state-title"), *(html.P(hint) for hint in hints)], className="state")


def failed(message: str, title: str = "This can't be shown") -> html.Div:
    """One sentence that says what, why and what to do. ``message`` may hold names from a run."""
    return html.Div(
        [html.P(title, className="state-title"), html.P(safe(message))], className="state failed", role="alert"
    )


def loading(content: Any, ident: str, what: str) -> dcc.Loading:
    """``content``, which a callback fills; meanwhile a line says ``what`` is awaited."""
    waiting = html.Div(f"Loading {what} …", className="waiting", role="status")
    return dcc.Loading(content, id=ident, custom_spinner=waiting, delay_show=250, overlay_style={"opacity": 0.4})


def guarded(layout: Callable[_P, Any]) -> Callable[_P, Any]:
    """A page's layout whose errors become a page: the sentence of an AuditError, else a number for the log."""

    @wraps(layout)
    def guarded_layout(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        try:
            return layout(*args, **kwargs)
        except AuditError as error:
            return error_page(str(error))
        except Exception:
            return error_page(unexpected("page"))

    return guarded_layout


def error_page(message: str) -> html.Div:
    """A whole page that says why there is no other."""
    return html.Div([html.H1("Not available"), failed(message), html.P(dcc.Link("All runs", href="/"))])


def unexpected(what: str) -> str:
    """Log the exception at hand under a number, and the sentence that tells the reader of it."""
    number = secrets.token_hex(4)
    _log.exception("a %s could not be made (error %s)", what, number)
    return f"Something went wrong that was not foreseen; the server's log has the details under error {number}."
