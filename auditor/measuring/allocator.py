"""Memory that was freed stays in the process while versions are timed on a CPU.

By default glibc returns large blocks to the system at once. A fresh output then costs a page fault for each 4 KiB,
often more than its computation, and a fused version seems to gain what is only the allocator's.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
MMAP_MAX: Final = -4
"""Parameters of ``mallopt``, as malloc.h numbers them."""

KEEP: Final = ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1))
"""Every block from the heap, however large, and the heap never gets smaller. (As a threshold, ``mallopt`` takes at most
32 MiB.)"""
DEFAULTS: Final = ((MMAP_MAX, 65536), (MMAP_THRESHOLD, 32 * 2**20), (TRIM_THRESHOLD, 64 * 2**20))
"""glibc's thresholds grow with the blocks that are freed, up to these. Once one is set they never grow again."""

CHOSEN: Final = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")

_depth = 0
"""Blocks of :func:`kept_memory` that are open."""


@contextmanager
def kept_memory() -> Iterator[bool]:
    """Within the block freed memory is kept, then it is returned; yields whether that is so.

    Does nothing without glibc, and where the environment has chosen malloc's thresholds: then they hold. May be nested;
    it is for the whole process, so not for several threads at once.
    """
    global _depth
    libc = _glibc()
    if libc is None or _chosen_by_environment():
        yield False
        return
    _depth += 1
    try:
        yield _set(libc, KEEP)
    finally:
        _depth -= 1
        if _depth == 0:
            _set(libc, DEFAULTS)
            libc.malloc_trim(0)


def _set(libc: Any, parameters: tuple[tuple[int, int], ...]) -> bool:
    """Whether all of them were taken."""
    mallopt: Callable[[int, int], int] = libc.mallopt
    return all(mallopt(*parameter) for parameter in parameters)


def _glibc() -> Any:
    """The C library of this process, None if it isn't glibc."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if all(hasattr(libc, name) for name in ("gnu_get_libc_version", "mallopt", "malloc_trim")) else None


def _chosen_by_environment() -> bool:
    return any(name in os.environ for name in CHOSEN) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
