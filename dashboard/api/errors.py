"""Whatever goes wrong becomes one sentence as JSON, with the status that fits it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from auditor.errors import AuditError
from auditor.store.failures import status_of
from dashboard.api.access import REQUEST, failed
from dashboard.api.models import Problem

_WORDS = {404: "there is nothing at this path", 405: "this path can't be used with this method"}


class Refused(AuditError):  # noqa: N818 - it is an answer
    """A request that was understood and is not granted, with its ``status``."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def install_handlers(app: FastAPI) -> None:
    app.add_exception_handler(AuditError, _audit_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _mishap)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the OpenAPI document says of answers with these statuses, and of those that every path has."""
    meaning = {
        400: "The request makes no sense", 401: "It needs a token", 403: "It comes from another origin",
        404: "There is no such thing", 405: "No such method", 408: "The upload stalled", 409: "Not as things are",
        413: "It is too large", 421: "Another host is meant", 422: "It can't be understood",
        429: "Too many wrong tokens", 503: "The store can't be used now",
    }  # fmt: skip
    wanted = sorted({400, 401, 403, 421, 422, 429, 503, *statuses})
    return {status: {"model": Problem, "description": meaning[status]} for status in wanted}


async def _audit_error(_request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Refused):
        return _problem(error.status, str(error))
    assert isinstance(error, AuditError)
    return _problem(status_of(error), str(error))


async def _http_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    answer = _problem(error.status_code, _WORDS.get(error.status_code, str(error.detail)))
    answer.headers.update(error.headers or {})
    return answer


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(str(part) for part in first["loc"])
    return _problem(422, f"{place}: {first['msg']}")


async def _mishap(request: Request, _error: Exception) -> JSONResponse:
    """Ours; :class:`dashboard.api.access.Access` logs it."""
    return _problem(500, failed(str(request.scope.get(REQUEST, ""))))


def _problem(status: int, sentence: str) -> JSONResponse:
    text = sentence.encode("utf-8", "replace").decode()
    return JSONResponse(Problem(error=text).model_dump(), status_code=status)
