"""Python's frames are kept in chunks of 16 KiB; calls across the end of one cost microseconds each.

CPython (3.11 on) asks the system for a chunk when a frame doesn't fit and gives it back when that frame returns. Where
a loop happens to stand at the end of a chunk, each call in it is a mapping, a page fault and an unmapping: 6 µs, and a
version that calls more Python functions seems slower by tens of them. It is the depth of the caller's stack that
decides, so a new function anywhere above changes what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Final, TypeVar, cast

T = TypeVar("T")
ROOM: Final = 2**17
"""Words of the frame below. With it and CPython's reserve more than a power of two is asked for, and the next one, 2
MiB, is given: what is left is 8 KiB less than 1 MiB, enough for the frames of several thousand nested calls."""


def _called(function: Callable[[], T]) -> T:
    return function()


_roomy = FunctionType(_called.__code__.replace(co_stacksize=ROOM), globals(), "with_room")


def with_room(function: Callable[[], T]) -> T:
    """What ``function`` returns; no call within it crosses the end of a chunk. Costs some 10 µs."""
    return cast(T, _roomy(function))
