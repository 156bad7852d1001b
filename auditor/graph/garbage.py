"""The garbage collector, off while a large graph is built or searched, or a call is timed."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No collection inside of the block; afterwards as before.

    A graph is hundreds of thousands of objects that all stay alive, and walking them again and again doubles the time;
    in a sample of a millisecond one collection is most of it.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
