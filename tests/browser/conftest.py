"""A dashboard on loopback under the service's own policy, and Debian's Chromium to look at it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from audited import GATES, save, save_fix
from browsed import MODULE, Seen, Site
from memory_jobs import MemoryJobs
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ViewportSize,
    expect,
    sync_playwright,
)
from werkzeug.serving import WSGIRequestHandler, make_server

from auditor.store import Store
from dashboard import Context, create_app
from dashboard.api.headers import content_security_policy
from dashboard.context import installed
from dashboard.jobs.model import Options

expect.set_options(timeout=30_000)  # a machine of two cores, which compiles beside it
CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
BUDGET = """[tool.fusion-audit]
max_unfused_kernels = 8
max_memory_bound_share = "1 %"
[[tool.fusion-audit.budgets]]
model = "bert*"
max_kernels = 30
"""
"""Of the project that is looked at: a limit that is broken, one that warns, one that is about other runs."""


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any, **__: Any) -> None:
        return None


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two runs of a model, a fix of the second, a job in each state, a budget; served with the strict policy."""
    with Store.open(tmp_path_factory.mktemp("browsed")) as store:
        made = Site("", store, MemoryJobs(store))
        folder = tmp_path_factory.mktemp("project")
        (folder / "pyproject.toml").write_text(BUDGET, encoding="utf-8")
        context = Context(store=store, jobs=made.jobs, folder=folder, may_change=lambda: made.logged_in)
        with installed(context):
            app = create_app(context)
            _fill(made)
            policy = content_security_policy(app.csp_hashes()).encode()
            server = make_server("127.0.0.1", 0, _under(app.server, policy), threaded=True, request_handler=_Quiet)
            made.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            yield made
            server.shutdown()
            thread.join(10)
            server.server_close()


def _under(application: Any, policy: bytes) -> Any:
    """``application`` with the headers that the service adds."""

    def wrapped(environ: Any, start: Any) -> Any:
        def starting(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start(status, [*headers, ("content-security-policy", policy.decode())], *rest)

        return application(environ, starting)

    return wrapped


def _fill(site: Site) -> None:
    save(site.store, GATES)
    site.run = save(site.store, module=MODULE)
    site.finding = site.store.load(site.run).document.findings[0].fingerprint
    site.fixed = save_fix(site.store, site.run).after_run
    for number, change in enumerate(
        (
            {"state": "done", "result_run": site.fixed, "started": "2026-11-30T10:00:00+00:00",
             "ended": "2026-11-30T10:02:00+00:00"},
            {"state": "failed", "reason": "the worker was killed"},
            {"state": "cancelled", "reason": "cancelled by the user"},
            {"state": "running", "progress": "patching, verifying and measuring: 10 s"},
            {},
        )
    ):  # fmt: skip
        site.jobs.submit("audit", site.run, Options(steps=number + 1))
        site.jobs.logs[f"job{number}"] = "the script runs again\n"
        site.jobs.move(f"job{number}", **change)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no {CHROMIUM}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def windows(chromium: Browser) -> Iterator[Callable[[str, int], BrowserContext]]:
    """By scheme and width: a browser's profile that keeps what it loaded, as a reader's does."""
    known: dict[tuple[str, int], BrowserContext] = {}

    def window(scheme: str, width: int) -> BrowserContext:
        if (scheme, width) not in known:
            size: ViewportSize = {"width": width, "height": 900}
            known[scheme, width] = chromium.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)  # type: ignore[arg-type]
            known[scheme, width].set_default_timeout(30_000)
        return known[scheme, width]

    yield window
    for context in known.values():
        context.close()


@pytest.fixture
def seen(windows: Callable[[str, int], BrowserContext], site: Site, request: pytest.FixtureRequest) -> Iterator[Seen]:
    """A page of the wanted scheme and width (``light`` and 1280 unless a test is parametrised with others)."""
    page = windows(*getattr(request, "param", ("light", 1280))).new_page()
    yield Seen(page, site.url)
    page.close()


@pytest.fixture(autouse=True)
def _logged_in(request: pytest.FixtureRequest) -> None:
    if "site" in request.fixturenames:
        request.getfixturevalue("site").logged_in = True
