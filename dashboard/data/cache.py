"""Loaded runs, kept while they fit: bounded by bytes, the least recently used go first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Protocol, TypeVar

LIMIT_BYTES = 400_000_000


class Sized(Protocol):
    @property
    def nbytes(self) -> int:
        """Bytes that it keeps in memory, about."""


Item = TypeVar("Item", bound=Sized)


class ByteCache:
    """What was made once is given again. Each key is made by one thread at a time; others wait for it."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._items: OrderedDict[Hashable, Sized] = OrderedDict()
        self._making: dict[Hashable, Lock] = {}
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], Item]) -> Item:
        """The item of ``key``, made where it is not there. What ``make`` raises is raised, and nothing is kept."""
        with self._lock:
            if (found := self._find(key)) is not None:
                return found  # type: ignore[return-value]
            making = self._making.setdefault(key, Lock())
        with making:
            with self._lock:
                if (found := self._find(key)) is not None:
                    return found  # type: ignore[return-value]
            try:
                item = make()
                self._keep(key, item)
            finally:
                with self._lock:
                    self._making.pop(key, None)
        return item

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(item.nbytes for item in self._items.values())

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._items.clear()

    def _find(self, key: Hashable) -> Sized | None:
        item = self._items.get(key)
        if item is not None:
            self._items.move_to_end(key)
        return item

    def _keep(self, key: Hashable, item: Sized) -> None:
        """Keep ``item``, and let go of others until all fit; one that alone is too large is not kept."""
        with self._lock:
            if item.nbytes > self.limit_bytes:
                return
            self._items[key] = item
            total = sum(each.nbytes for each in self._items.values())
            while total > self.limit_bytes:
                total -= self._items.popitem(last=False)[1].nbytes


CACHE = ByteCache()
"""The one that all read models of this process share."""
