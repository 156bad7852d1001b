"""Lines for the person who trains; nothing that is said here can stop the training."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from auditor.errors import AuditError, OverBudget
from auditor.report.format import safe


def line(text: str) -> None:
    """One line on stderr."""
    with suppress(Exception):  # stderr may be closed, or somebody's object
        print(f"fusion-audit: {safe(text)}", file=sys.stderr, flush=True)


def warn(sentence: str) -> None:
    """A warning of Python's; where those are errors, lines: it is our fault, and not the training's."""
    lines = [safe(each) for each in sentence.splitlines()]
    try:
        warnings.warn("\n".join([f"fusion-audit: {lines[0]}", *lines[1:]]), stacklevel=2)
    except Warning:
        for each in lines:
            line(each)


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """A fault of ours ends in a sentence that begins with ``what``. A budget that is to stop the training does."""
    try:
        yield
    except OverBudget:
        raise
    except AuditError as error:
        warn(f"{what}: {error}")
    except Exception as error:
        warn(f"{what}: {type(error).__name__}: {error}")
