"""The service as one ASGI application: the API, and around it and the pages what keeps them safe."""

from __future__ import annotations

from typing import Any

import flask
from a2wsgi import WSGIMiddleware
from fastapi import Depends, FastAPI
from starlette.middleware.gzip import GZipMiddleware

from auditor import __version__
from auditor.config import load_config
from dashboard.api import login
from dashboard.api.access import Access
from dashboard.api.asgi import ASGIApp, Receive, Scope, Send, answer_error
from dashboard.api.body_limit import BodyLimit
from dashboard.api.errors import install_handlers
from dashboard.api.guard import TRUSTED, Guard
from dashboard.api.headers import SecurityHeaders
from dashboard.api.hosts import Hosts
from dashboard.api.known_query import known_query
from dashboard.api.openapi import declare_tokens
from dashboard.api.routes import health, jobs, kernels, rules, runs, uploads
from dashboard.api.service import Service
from dashboard.api.static_cache import StaticCache
from dashboard.context import Context, install

OPENAPI = "/api/v1/openapi.json"
_THREADS = 8
"""For pages: with two or four cores more would only wait for each other."""


class Application:
    """The service's ASGI application."""

    def __init__(self, outermost: ASGIApp, static: StaticCache, files: list[str]) -> None:
        self._outermost, self._static, self._files = outermost, static, files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._outermost(scope, receive, send)

    async def prepare(self) -> None:
        """Compress what a first visit loads. Takes about a second; a visit without it takes as much longer."""
        await self._static.fill(self._files)


def create_service(service: Service, *, pages: bool = True) -> Application:
    """The application; without ``pages`` the API alone."""
    context = Context(store=service.store, jobs=service.jobs, config=load_config(), may_change=_asked(service))
    install(context)
    dash: Any = None
    if pages:
        from dashboard.app import create_app, files

        dash = create_app(context)
    hashes, loaded = (dash.csp_hashes(), files(dash)) if dash is not None else ([], [])
    app: ASGIApp = _Split(create_api(service), None if dash is None else dash.server)
    static = StaticCache(GZipMiddleware(BodyLimit(app), minimum_size=1000, compresslevel=5))
    app = Hosts(Guard(static, service), service.settings)
    return Application(Access(SecurityHeaders(app, hashes), service.metrics), static, loaded)


def create_api(service: Service) -> FastAPI:
    """The API without what is around it."""
    app = FastAPI(
        title="Fusion Auditor", version=__version__, openapi_url=OPENAPI, docs_url=None, redoc_url=None,
        description="Audits, their findings and kernels, and jobs that fix them.", separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.service = service
    for part in (health, runs, kernels, uploads, jobs, rules):
        app.include_router(part.router, dependencies=[Depends(known_query)])
    app.include_router(login.router)
    declare_tokens(app, service.settings.only_here)
    install_handlers(app)
    return app


class _Split:
    """Paths of the API to the API, all others to the pages."""

    def __init__(self, api: ASGIApp, pages: Any) -> None:
        self._api = api
        self._pages: Any = WSGIMiddleware(pages, workers=_THREADS) if pages is not None else api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        ours = path.startswith("/api/") or path in ("/metrics", "/login", "/logout")
        if scope["type"] == "lifespan" or ours:
            await self._api(scope, receive, send)
            return
        scope["fusion_audit_route"] = "pages"
        if ".." in path.split("/"):
            await answer_error(send, 404, "there is nothing at this path")
            return
        await self._pages(scope, receive, send)


def _asked(service: Service) -> Any:
    def may_change() -> bool:
        return bool(flask.has_request_context() and flask.request.headers.get(TRUSTED) == service.trusted)

    return may_change
