"""Keeping the profiler's own log lines off the script's stderr.

Kineto and the execution trace observer print a line each time they start and stop, and no setting turns
all of them off. So file descriptor 2 points at a scratch file for those few milliseconds, and whatever
else was written in that time is passed on.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_OURS = re.compile(
    rb"^(USDT:|(INFO|STAGE|WARNING):\d{4}-"
    rb"|\[[IW]\d{4} .*(execution_trace_observer|profiler_kineto|ActivityProfiler|CPUAllocator))"
)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block the profiler's log lines are dropped; other lines come out after it."""
    try:
        kept = os.dup(2)
    except OSError:  # the script closed its stderr
        yield
        return
    with tempfile.TemporaryFile() as scratch:
        _flush()
        os.dup2(scratch.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(kept, 2)
            os.close(kept)
            scratch.seek(0)
            _pass_on(scratch.read())


def _flush() -> None:
    with suppress(Exception):
        sys.stderr.flush()


def _pass_on(written: bytes) -> None:
    lines = [line for line in written.splitlines(keepends=True) if not _OURS.match(line)]
    if lines:
        with suppress(OSError):
            os.write(2, b"".join(lines))
