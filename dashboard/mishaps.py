"""What Dash and Flask do not foresee: one sentence for who asked, one line for the log."""

from __future__ import annotations

import logging
import traceback

from flask import Response, jsonify, request
from werkzeug.exceptions import HTTPException

_log = logging.getLogger(__name__)
_CALLBACKS = "/_dash-update-component"
_SUITES = "/_dash-component-suites/"
_MISFIT = "the request does not fit the page; load the page again"
_MISFITS = (TypeError, KeyError, ValueError, AttributeError, IndexError, RecursionError)
"""What a request that no page of ours made ends in."""


def mishap(error: Exception) -> Response | HTTPException:
    """The answer to a request that failed.

    A callback that fails on what it was given is the asker's mistake as far as can be told: our pages send what fits,
    or a page is of an older version of the service.
    """
    if isinstance(error, HTTPException):
        return _answer(_MISFIT, error.code or 400) if request.path == _CALLBACKS else error
    if request.path.startswith(_SUITES):
        return _answer("there is nothing at this path", 404)
    last = traceback.extract_tb(error.__traceback__)[-1]
    _log.error(
        "%s %s failed: %s: %s (%s:%s)", request.method, request.path, type(error).__name__, error, last.filename,
        last.lineno,
    )  # fmt: skip
    if request.path == _CALLBACKS and isinstance(error, _MISFITS):
        return _answer(_MISFIT, 400)
    return _answer("the service failed; its log says more", 500)


def _answer(sentence: str, status: int) -> Response:
    answer = jsonify(error=sentence)
    answer.status_code = status
    return answer
