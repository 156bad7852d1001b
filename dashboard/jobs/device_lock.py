"""One measurement at a time on a machine, whichever store it is for: two would time each other."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from auditor.store.machine import state_folder


@contextmanager
def device_lock() -> Iterator[bool]:
    """Whether the device was free; if so it is held until the block ends, or the process."""
    descriptor = os.open(state_folder() / "device.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
