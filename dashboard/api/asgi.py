"""What the layers around the application need of an ASGI request."""

from __future__ import annotations

import json
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ASGIApp", "Message", "Receive", "Scope", "Send", "answer_error", "cookie", "header", "headers_named"]

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def headers_named(scope: Scope, name: str) -> list[str]:
    wanted = name.lower().encode("ascii")
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == wanted]


def header(scope: Scope, name: str) -> str:
    """The header of that name; "" where there is none or more than one."""
    found = headers_named(scope, name)
    return found[0] if len(found) == 1 else ""


def cookie(scope: Scope, name: str) -> str:
    for line in headers_named(scope, "cookie"):
        for part in line.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
    return ""


def client_address(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


async def answer_error(
    send: Send, status: int, sentence: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:  # fmt: skip
    """One sentence as JSON."""
    body = json.dumps({"error": sentence}).encode()
    length = str(len(body)).encode()
    start = [(b"content-type", b"application/json"), (b"content-length", length), *headers]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
