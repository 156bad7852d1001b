"""Whether ``zero_grad`` follows a step or leads the next one."""

from __future__ import annotations

from collections.abc import Callable


class ZeroGrad:
    """Learns once, between two steps, whether ``zero_grad`` follows a step or leads the next one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended: float | None = None
        self._first = self._last = 0.0
        self._seen = 0
        self._leads = False
        self._follows = 0
        self._learned = False
        self._left = 0

    @property
    def waiting(self) -> bool:
        return self._left > 0

    def enter(self) -> bool:
        """True when a step begins with this call."""
        if not self._learned and not self._seen:
            self._first = self._clock()
        return self._leads

    def exit(self, step_open: bool) -> bool:
        """True when a step ends with this call."""
        if self._left:
            self._left -= 1
            return self._left == 0
        if not self._learned and not step_open:
            self._seen += 1
            self._last = self._clock()
        return False

    def decide(self) -> None:
        """The next forward begins: which side was nearer?"""
        if self._learned or self._ended is None:
            return
        self._learned = True
        if self._seen and self._first - self._ended <= self._clock() - self._last:
            self._follows = self._seen
        elif self._seen:
            self._leads = True

    def wait(self) -> bool:
        """The optimizers stepped: True when the step goes on until ``zero_grad``."""
        self._left = self._follows
        return self._left > 0

    def give_up(self) -> None:
        self._left = self._follows = 0

    def step_ended(self) -> None:
        self._ended, self._seen, self._left = self._clock(), 0, 0
