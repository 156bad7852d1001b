"""What browsers are told: run nothing but our own scripts, send nothing elsewhere, be framed by nobody."""

from __future__ import annotations

from collections.abc import Sequence

from dashboard.api.asgi import ASGIApp, Message, Receive, Scope, Send

_FIXED = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
_KEPT = ("/assets/", "/_dash-component-suites/", "/_favicon.ico")
"""Paths of files that browsers may keep; all else is not to be found in a cache."""
_FOREVER = b"public, max-age=31536000, immutable"


def content_security_policy(script_hashes: Sequence[str]) -> str:
    """Scripts are files of ours and the inline ones with these hashes (``'sha256-…'``); styles may be inline, as the
    grid and the component library write them.
    """
    return "; ".join(
        (
            "default-src 'none'",
            " ".join(("script-src 'self'", *script_hashes)),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "manifest-src 'self'",
            "worker-src 'self' blob:",
            "form-action 'self'",
            "base-uri 'none'",
            "object-src 'none'",
            "frame-ancestors 'none'",
        )
    )


def _names_its_version(scope: Scope) -> bool:
    """Whether an address says when its file was last changed: another file then has another address."""
    path, query = str(scope["path"]), bytes(scope.get("query_string", b""))
    return (path.startswith("/assets/") and query.startswith(b"m=")) or path == "/_favicon.ico"


class SecurityHeaders:
    """Sets them on every answer."""

    def __init__(self, app: ASGIApp, script_hashes: Sequence[str] = ()) -> None:
        self._app = app
        self._policy = content_security_policy(script_hashes).encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._with_ours(scope, message["headers"])
            await send(message)

        await self._app(scope, receive, sending)

    def _with_ours(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        ours = [*_FIXED, (b"content-security-policy", self._policy)]
        if not scope["path"].startswith(_KEPT):
            ours.append((b"cache-control", b"no-store"))
        elif _names_its_version(scope):
            ours.append((b"cache-control", _FOREVER))
        names = {name for name, _ in ours} | {b"server"}
        return [(name, value) for name, value in headers if name.lower() not in names] + ours
