"""Files that never change under one address are compressed once, not at every visit.

Dash's and the pages' scripts are some megabytes; compressing them took a third of a first visit. Their addresses name a
version or a time, so what was sent once is right for as long as the process lives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from dashboard.api.asgi import ASGIApp, Message, Receive, Scope, Send, header

FILES: Final = ("/_dash-component-suites/", "/assets/")
MOST_BYTES: Final = 48_000_000
_Answer = list[Message]


class StaticCache:
    """Keeps whole answers to GETs of such files, up to :data:`MOST_BYTES`; the least recently asked for goes first.

    It stands outside of the compression and inside of what decides who may ask.
    """

    def __init__(self, app: ASGIApp, most_bytes: int = MOST_BYTES) -> None:
        self._app, self._most = app, most_bytes
        self._kept: OrderedDict[tuple[str, bytes, bool], _Answer] = OrderedDict()
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = _key(scope)
        if key is None:
            await self._app(scope, receive, send)
            return
        known = self._kept.get(key)
        if known is not None:
            self._kept.move_to_end(key)
            for message in known:
                await send({**message, "headers": list(message["headers"])} if "headers" in message else message)
            return
        answer: _Answer = []

        async def sending(message: Message) -> None:
            answer.append({**message, "headers": list(message["headers"])} if "headers" in message else message)
            await send(message)

        await self._app(scope, receive, sending)
        self._keep(key, answer)

    async def fill(self, addresses: Iterable[str]) -> None:
        """Have the files at these addresses (with their queries) at hand before anybody asks for them."""
        for address in addresses:
            path, _, query = address.partition("?")
            scope: Scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
                "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
                "headers": [(b"host", b"localhost"), (b"accept-encoding", b"gzip")], "server": ("localhost", 80),
                "client": ("127.0.0.1", 0),
            }  # fmt: skip
            await self(scope, _nothing, _unheard)

    def _keep(self, key: tuple[str, bytes, bool], answer: _Answer) -> None:
        whole = bool(answer) and answer[0].get("status") == 200 and not answer[-1].get("more_body", False)
        size = _size(answer)
        if not whole or size > self._most // 4 or key in self._kept:
            return
        self._kept[key] = answer
        self._bytes += size
        while self._bytes > self._most:
            self._bytes -= _size(self._kept.popitem(last=False)[1])


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(_message: Message) -> None:
    return None


def _size(answer: _Answer) -> int:
    return sum(len(message.get("body", b"")) for message in answer)


def _key(scope: Scope) -> tuple[str, bytes, bool] | None:
    """None for what is no such file, and for a part of one or a question whether it changed."""
    if scope["type"] != "http" or scope["method"] != "GET" or not scope["path"].startswith(FILES):
        return None
    if header(scope, "range") or header(scope, "if-none-match") or header(scope, "if-modified-since"):
        return None
    return scope["path"], scope.get("query_string", b""), "gzip" in header(scope, "accept-encoding")
