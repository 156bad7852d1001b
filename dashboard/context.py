"""What the pages and the API read from: one store, one set of jobs, made when the service starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from auditor.config import Config
from auditor.store import Store
from dashboard.jobs.model import Jobs


@dataclass(frozen=True)
class Context:
    """Made once by whoever starts the application. ``jobs`` is None where no worker runs (a read-only view)."""

    store: Store
    jobs: Jobs | None = None
    config: Config = field(default_factory=Config)
    folder: Path = field(default_factory=Path.cwd)
    """Where the service was started: the settings of the project there count for its runs."""
    may_change: Callable[[], bool] = lambda: False
    """Whether the request at hand comes from a browser that is logged in; asked inside of a callback."""


_current: list[Context] = []


def install(context: Context) -> None:
    """Make ``context`` the one that :func:`current` gives, in every thread of this process."""
    _current[:] = [context]


def current() -> Context:
    """The context of this application.

    Raises:
        RuntimeError: none was installed.
    """
    if not _current:
        raise RuntimeError("the dashboard has no context; start it with `fusion-audit serve`")
    return _current[0]


@contextmanager
def installed(context: Context) -> Iterator[Context]:
    """``context`` for the time of a block, as tests need it."""
    before = list(_current)
    install(context)
    try:
        yield context
    finally:
        _current[:] = before
