"""Logging in: a token, by the URL that was printed or typed into a form, becomes a session in a cookie."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from dashboard.api.parts import TheService
from dashboard.api.service import Service
from dashboard.api.sessions import LIFE_S

router = APIRouter(include_in_schema=False)

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Log in – Fusion Auditor</title></head>
<body><main><h1>Fusion Auditor</h1>{sentence}
<form method="post" action="/login"><p><label for="token">Token</label></p>
<p><input id="token" name="token" type="password" autocomplete="off" required></p>
<p><button type="submit">Log in</button></p></form>
<p>The token is in the address that <code>fusion-audit serve</code> printed, or make one with
<code>fusion-audit token new NAME</code>.</p></main></body></html>"""
_MOST_BYTES = 10_000


@router.get("/login")
async def ask_or_take(request: Request, service: TheService, token: str = "") -> Response:
    if not token:
        return HTMLResponse(_PAGE.format(sentence=""))
    # A page elsewhere can have a browser ask for this as often as it likes: that must not lock its owner out.
    counts = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    return await _enter(request, service, token, counts=counts)


@router.post("/login")
async def take(request: Request, service: TheService) -> Response:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            return _again("That is no token.", 413)
    fields = parse_qs(body.decode("utf-8", "replace"))
    return await _enter(request, service, fields.get("token", [""])[0])


@router.post("/logout")
def leave(request: Request, service: TheService) -> Response:
    service.sessions.close(request.cookies.get(service.cookie, ""))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(service.cookie, path="/", httponly=True, samesite="strict")
    return answer


async def _enter(request: Request, service: Service, text: str, *, counts: bool = True) -> Response:
    address = request.client.host if request.client else ""
    if service.attempts.wait_s(address):
        return _again("There were too many wrong tokens from this address. Wait a minute, then try again.", 429)
    token = await run_in_threadpool(service.sessions.token_of, text.strip())
    if not token:
        if counts:
            service.attempts.failed(address)
            service.metrics.wrong_tokens.inc()
        return _again("That token is not valid, or the service was started again since.", 401)
    answer = RedirectResponse("/", 303)  # away from an address with a token in it
    answer.set_cookie(
        service.cookie, service.sessions.open(token), max_age=int(LIFE_S), path="/", httponly=True, samesite="strict",
        secure=request.url.scheme == "https",
    )  # fmt: skip
    return answer


def _again(sentence: str, status: int) -> Response:
    return HTMLResponse(_PAGE.format(sentence=f'<p role="alert">{sentence}</p>'), status)
