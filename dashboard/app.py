"""The Dash application: its shell, its pages, and an index page that a strict content-security policy allows.

Every script is a file of this origin, but for two lines that Dash writes itself: their hashes are
``app.csp_hashes()``. Nothing is loaded from another host.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import dash

from dashboard.addresses import from_path
from dashboard.components.shell import shell
from dashboard.context import Context, install
from dashboard.downloads import downloads
from dashboard.mishaps import mishap

PAGES = (
    "runs", "overview", "finding", "timeline", "kernels", "compare", "rules", "rule", "jobs", "job", "gate",
    "not_found_404",
)  # fmt: skip
TITLE = "Fusion Auditor"
_FILE = re.compile(r'(?:src|href)="(/(?:assets|_dash-component-suites)/[^"]+)"')
_OF_FIGURES = (
    "/_dash-component-suites/dash/dcc/async-graph.js", "/_dash-component-suites/plotly/package_data/plotly.min.js",
)  # fmt: skip
_INDEX = (Path(__file__).parent / "index.html").read_text(encoding="utf-8")


def create_app(context: Context) -> dash.Dash:
    """The application over ``context``, which is installed for the whole process.

    There is one Dash application in a process: Dash keeps pages and callbacks in module globals, and these callbacks
    read whatever context is installed. A second call gives the same application over the new context.
    """
    install(context)
    return _application()


@lru_cache(maxsize=1)
def _application() -> dash.Dash:
    app = dash.Dash(
        "dashboard",
        title=TITLE,
        update_title="",
        use_pages=True,
        pages_folder="",
        include_pages_meta=False,  # titles would be written into the page unescaped
        assets_folder=str(Path(__file__).parent / "assets"),
        assets_ignore=r"^scheme\.js$",  # the index loads it, before anything is drawn
        index_string=_INDEX,
        suppress_callback_exceptions=True,
        serve_locally=True,
        compress=False,  # the service compresses
    )
    _register_pages()
    app.server.register_blueprint(downloads)
    app.server.register_error_handler(Exception, mishap)
    app.layout = shell
    _set_up(app)
    return app


def files(app: dash.Dash) -> list[str]:
    """Addresses of the scripts and styles that a first visit loads, those that figures load when they are drawn too."""
    with app.server.test_request_context("/"):
        page = app.index()
    return [*dict.fromkeys(_FILE.findall(page)), *_OF_FIGURES]


def _set_up(app: dash.Dash) -> None:
    """What Dash leaves for its first request, so that ``csp_hashes`` knows every inline script before it."""
    with app.server.test_request_context("/"):
        for prepare in app.server.before_request_funcs.get(None, ()):
            prepare()


def _register_pages() -> None:
    """Import every page that is there: by name, so that no other file in a folder becomes one."""
    for name in PAGES:
        module_name = f"dashboard.pages.{name}"
        if find_spec(module_name) is None:
            continue
        module = import_module(module_name)
        page = dash.page_registry[module_name]
        page["layout"] = from_path(module.layout, page.get("path_template") or "")
