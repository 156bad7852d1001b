"""How often an address may be wrong about a token: guessing 256 bits is hopeless, and still is not to cost us work."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

WRONG = 10
WINDOW_S = 60.0
_MOST_ADDRESSES = 10_000


class Attempts:
    """Wrong tokens by address, of the last minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Seconds until ``address`` may try again; 0 where it may now."""
        with self._lock:
            recent = self._recent(address)
        return max(0.0, recent[0] + WINDOW_S - self._clock()) if len(recent) >= WRONG else 0.0

    def failed(self, address: str) -> None:
        with self._lock:
            self._wrong[address] = [*self._recent(address), self._clock()][-WRONG:]
            self._wrong.move_to_end(address)
            while len(self._wrong) > _MOST_ADDRESSES:
                self._wrong.popitem(last=False)

    def _recent(self, address: str) -> list[float]:
        since = self._clock() - WINDOW_S
        return [moment for moment in self._wrong.get(address, ()) if moment > since]
