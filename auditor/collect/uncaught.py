"""What the interpreter does with an exception that nobody caught, for the script and without our frames."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def exit_code(stop: SystemExit) -> int:
    """The exit code of ``stop``; a text is printed first, as the interpreter does."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code
    print(stop.code, file=sys.stderr)
    return 1


def show(error: BaseException) -> int | None:
    """Print ``error`` through the script's own ``sys.excepthook``; the exit code if that hook chose one.

    Call it while no exception is being handled: it would become the context of one that the hook raises.
    """
    _trim(error)
    try:
        hook = sys.excepthook
    except AttributeError:
        _print("sys.excepthook is missing")
        _display(error)
        return None
    try:
        hook(type(error), error, error.__traceback__)
    except SystemExit as stop:
        return exit_code(stop)
    except BaseException as second:
        failed = second
    else:
        return None
    _trim(failed)
    _print("Error in sys.excepthook:")
    _display(failed)
    _print("\nOriginal exception was:")
    _display(error)
    return None


def _print(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr)


def _display(error: BaseException) -> None:
    sys.__excepthook__(type(error), error, error.__traceback__)


def _trim(error: BaseException) -> None:
    """Take our frames out of ``error`` and all that it is chained to; chains may be cycles."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = _without_ours(one.__traceback__)
        pending += [one.__cause__, one.__context__]
        if type(one).__name__ in ("ExceptionGroup", "BaseExceptionGroup"):  # they are new in Python 3.11
            pending += one.exceptions  # type: ignore[attr-defined]


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for frame in reversed(frames):
        kept = TracebackType(kept, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return kept
