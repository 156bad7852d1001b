"""A request must be meant for us: a page elsewhere can lead its own name to this address and would then be "us"."""

from __future__ import annotations

from auditor.report.format import clip, safe
from dashboard.api.asgi import ASGIApp, Receive, Scope, Send, answer_error, headers_named
from dashboard.api.settings import Settings


class Hosts:
    """Lets requests through whose one ``Host`` header names this service."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app, self._settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            named = headers_named(scope, "host")
            if len(named) != 1 or not self._settings.answers_for(name_of(named[0])):
                shown = clip(safe(", ".join(named)), 100) or "none"
                await answer_error(
                    send, 421, f"this service does not answer for the host {shown}; start it with --allow-host NAME"
                )
                return
        await self._app(scope, receive, send)


def name_of(host: str) -> str:
    """``Host`` without its port; an IPv6 address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
