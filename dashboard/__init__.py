"""The dashboard of Fusion Auditor: pages over a store of audits, and the service that they are part of.

>>> from dashboard import Context, create_app
>>> app = create_app(Context(store=store))
>>> app.server  # the WSGI application

``auditor`` never imports this package; ``fusion-audit serve`` does when it is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dashboard.app import create_app as create_app
    from dashboard.context import Context as Context

__all__ = ["Context", "create_app"]


def __getattr__(name: str) -> Any:
    """Dash is imported with the first use: a worker that only needs :mod:`dashboard.jobs` never pays for it."""
    if name == "create_app":
        from dashboard.app import create_app

        return create_app
    if name == "Context":
        from dashboard.context import Context

        return Context
    raise AttributeError(f"module 'dashboard' has no attribute {name!r}")
