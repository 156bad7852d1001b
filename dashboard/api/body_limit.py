"""Requests of a size that their path has use for; uploads have a limit of their own."""

from __future__ import annotations

from dashboard.api.asgi import ASGIApp, Message, Receive, Scope, Send, answer_error, header

API_BYTES = 1_000_000
PAGE_BYTES = 32_000_000
UPLOADS = ("/api/v1/uploads", "/api/v1/runs")


class _TooLargeError(Exception):
    pass


class BodyLimit:
    """Ends a request whose body is larger."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UPLOADS:
            await self._app(scope, receive, send)
            return
        limit = API_BYTES if scope["path"].startswith("/api/") else PAGE_BYTES
        begun, held, over = False, 0, False

        async def sending(message: Message) -> None:
            nonlocal begun
            if over and not begun:  # whatever the application makes of a body that breaks off
                return
            begun = True
            await send(message)

        async def receiving() -> Message:
            nonlocal held, over
            message = await receive()
            held += len(message.get("body", b""))
            if held > limit:
                over = True
                raise _TooLargeError
            return message

        declared = header(scope, "content-length")
        try:
            over = declared.isdigit() and int(declared) > limit
            if not over:
                await self._app(scope, receiving, sending)
        except _TooLargeError:
            if begun:
                raise
        if over and not begun:
            await answer_error(send, 413, f"the request is larger than {limit:,} bytes")
