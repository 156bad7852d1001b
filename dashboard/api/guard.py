"""Who may ask: a change needs a token, and where others can reach the service everything does."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool

from auditor.errors import AuditError
from dashboard.api.asgi import (
    SAFE_METHODS,
    ASGIApp,
    Receive,
    Scope,
    Send,
    answer_error,
    client_address,
    cookie,
    header,
    headers_named,
)
from dashboard.api.service import Service

TRUSTED = "x-fusion-audit-login"
"""The header by which the pages are told that the browser is logged in. What a request brings of it is dropped."""
LOGIN = "/login"
_ASK = ((b"www-authenticate", b'Bearer realm="fusion-audit"'),)
_BY_PAGES = ("/_dash-update-component",)
"""Posts that read: a change in them asks for the login itself (``Context.may_change``)."""


class Guard:
    """Checks token or session, and where a change comes from."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [pair for pair in scope["headers"] if not _is_trusted(pair[0])]
        wait_s = self._service.attempts.wait_s(client_address(scope)) if _claims(scope) else 0.0
        if wait_s:
            await _too_many(send, wait_s)
            return
        try:
            who = await run_in_threadpool(self._who, scope)
        except AuditError as error:  # no token can be looked up now: that makes none of them wrong
            await answer_error(send, 503, str(error))
            return
        refusal = self._refusal(scope, who)
        if refusal is not None:
            await self._refuse(scope, send, *refusal)
            return
        if who:
            scope["headers"].append((TRUSTED.encode(), self._service.trusted.encode()))
        await self._app(scope, receive, send)

    def _who(self, scope: Scope) -> str:
        """``token``, ``session``, ``wrong`` for a token that is none, or ""."""
        if _claims(scope):
            text = header(scope, "authorization").partition(" ")[2]
            if text and self._service.sessions.token_of(text.strip()):
                return "token"
            self._service.attempts.failed(client_address(scope))
            self._service.metrics.wrong_tokens.inc()
            return "wrong"
        text = cookie(scope, self._service.cookie)
        return "session" if text and self._service.sessions.is_open(text) else ""

    def _refusal(self, scope: Scope, who: str) -> tuple[int, str] | None:
        if who == "wrong":
            return 401, "this token is not valid; make one with: fusion-audit token new NAME"
        changes = scope["method"] not in SAFE_METHODS
        if changes and not _from_here(scope, who):
            return 403, "a change may only be asked for by a page of this service; it came from another origin"
        if scope["path"] == LOGIN or who:
            return None
        if changes and scope["path"] not in _BY_PAGES:
            return 401, "a change needs a token; log in with the URL that fusion-audit serve printed, or send one"
        if not self._service.settings.only_here:
            return 401, "this service needs a token; log in, or send one as: Authorization: Bearer TOKEN"
        return None

    async def _refuse(self, scope: Scope, send: Send, status: int, sentence: str) -> None:
        wants_page = "text/html" in header(scope, "accept") and scope["method"] == "GET"
        if status == 401 and wants_page and not scope["path"].startswith("/api/"):
            await send({"type": "http.response.start", "status": 303, "headers": [(b"location", LOGIN.encode())]})
            await send({"type": "http.response.body", "body": b""})
            return
        await answer_error(send, status, sentence, _ASK if status == 401 else ())


async def _too_many(send: Send, wait_s: float) -> None:
    after = (b"retry-after", str(math.ceil(wait_s)).encode())
    await answer_error(
        send, 429, f"too many wrong tokens from this address; try again in {math.ceil(wait_s)} s", [after]
    )


def _claims(scope: Scope) -> bool:
    """Whether a token is sent. Another kind, such as Basic, is for a proxy before us, or a browser's habit."""
    return any(value.partition(" ")[0].lower() == "bearer" for value in headers_named(scope, "authorization"))


def _is_trusted(name: bytes) -> bool:
    """Whether WSGI would take a header for ours: it makes no difference of ``-`` and ``_``."""
    return name.lower().replace(b"_", b"-") == TRUSTED.encode()


def _from_here(scope: Scope, who: str) -> bool:
    """Whether a change comes from a page of ours, or from no page at all.

    Browsers say the origin of every change. A cookie goes to all ports of a host, so that it proves nothing alone.
    """
    origins = headers_named(scope, "origin")
    if origins:
        try:
            parts = urlsplit(origins[0] if len(origins) == 1 else "")
        except ValueError:  # brackets that hold no address
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == header(scope, "host").lower()
    site = header(scope, "sec-fetch-site")
    return site == "same-origin" if site or who == "session" else True
