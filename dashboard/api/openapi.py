"""What the OpenAPI document says of tokens: how one is sent, and which paths need it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from dashboard.api.asgi import SAFE_METHODS

_SCHEME = "token"
_BEARER = {"type": "http", "scheme": "bearer", "description": "Made by `fusion-audit token new NAME`"}
_NEEDED: list[dict[str, list[str]]] = [{_SCHEME: []}]


def declare_tokens(app: FastAPI, only_here: bool) -> None:
    """Add the bearer token to the document of ``app``; ``only_here``: to look needs none."""
    made = app.openapi

    def with_tokens() -> dict[str, Any]:
        document = made()
        document.setdefault("components", {})["securitySchemes"] = {_SCHEME: _BEARER}
        for operations in document["paths"].values():
            for method, operation in operations.items():
                reads = method.upper() in SAFE_METHODS
                operation["security"] = [*_NEEDED, {}] if reads and only_here else _NEEDED
        return document

    app.openapi = with_tokens  # type: ignore[method-assign]
