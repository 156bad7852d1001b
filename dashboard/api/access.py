"""The outermost layer: an id and a log line for each request, its figures, and a sentence where all else failed."""

from __future__ import annotations

import logging
import secrets
import time

from auditor.report.format import clip, safe
from dashboard.api.asgi import ASGIApp, Message, Receive, Scope, Send, answer_error, client_address
from dashboard.api.metrics import Metrics

_log = logging.getLogger("fusion_audit.access")
_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"})


REQUEST = "fusion_audit_request"
"""Where the request's id is in its scope."""


def failed(request: str) -> str:
    return f"the service failed; its log says more under {request}"


class Access:
    """Logs the path without its query: that may hold a token."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets are served
        request, began_s, status = secrets.token_hex(6), time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request.encode())]
            await send(message)

        scope[REQUEST] = request
        try:
            await self._app(scope, receive, sending)
        except Exception:  # where an answer had begun the server breaks it off: it is told as incomplete
            _log.exception("request %s failed", request)
            if not status:
                await answer_error(sending, 500, failed(request))
        finally:
            self._note(scope, request, status, time.perf_counter() - began_s)

    def _note(self, scope: Scope, request: str, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "") or scope.get("fusion_audit_route", "none")
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.seconds.labels(method, route).observe(seconds)
        path = clip(safe(scope["path"]), 300)
        _log.info("%s %s %s %s %d %.1f ms", request, client_address(scope), method, path, status, 1e3 * seconds)
