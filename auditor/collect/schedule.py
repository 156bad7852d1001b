"""Which pass the next step gets, when nobody knows how many steps will come.

::

    step 0               graph, kept only until a better one exists: it pays for warm-up
    warmup - 1 steps     nothing
    then                 timing, graph (final), bare, timing, bare, timing, … until N of each

Only steps that are alike (:mod:`auditor.collect.signature`) are compared. When the first choice of step
does not come back, another one is taken.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from auditor.collect.signature import CallSignature, StepSignature, alike

Pass = Literal["graph", "timing", "bare"]

PATIENCE = 8
"""Steps unlike the chosen one that may pass before another one is chosen."""


@dataclass
class Schedule:
    """Hands out passes and counts what was kept."""

    wanted: int = 5
    warmup: int = 1
    steps: int = 0
    """Steps begun."""
    timing: int = 0
    bare: int = 0
    final: bool = False
    """The graph of a step after warm-up is recorded."""
    fallback: StepSignature | None = None
    """Signature of the first step, whose graph stands in until ``final``."""
    forgot: bool = False
    """Set when earlier timing and bare steps stopped to count; whoever keeps their files clears it."""
    _target: StepSignature | None = None
    _target_at: int = 0
    _began_at: int = 0
    _unlike: int = 0
    _graph_first: bool = False
    _warm: int = field(default=0)

    @property
    def complete(self) -> bool:
        return self.final and self.timing >= self.wanted and self.bare >= self.wanted

    def begin(self, first: CallSignature | None) -> Pass | None:
        """The pass for the step that begins now with the call ``first`` (``None``: not known yet)."""
        self._began_at = self.steps
        self.steps += 1
        if self._warm == 0:
            return "graph"
        if self._warm < self.warmup or self.complete:
            return None
        if self._target is not None and not self._may_match(first):
            self._wait()
            return None
        return self._next()

    def aborted(self) -> None:
        """The step that began never ended."""
        self.steps -= 1

    def end(self, done: Pass | None, signature: StepSignature) -> bool:
        """The step ended. True when its pass is to be kept."""
        first = self._warm == 0
        self._warm += 1
        if first and done == "graph":
            self.fallback = signature
            return True
        if done is None:
            return False
        if self._target is None:
            self._aim(signature)
        elif not alike(self._target, signature, self._began_at - self._target_at):
            self._wait()
            return False
        self._count(done)
        return True

    def restart(self) -> None:
        """Another kind of step was found: forget what was recorded."""
        self.timing = self.bare = self._unlike = self._warm = 0
        self.final = self._graph_first = False
        self.fallback = self._target = None

    def timing_fits_fallback(self) -> bool:
        """Whether the timing steps are alike to the first step's graph."""
        if self.fallback is None or self._target is None:
            return False
        return alike(self.fallback, self._target, self._target_at)

    def _may_match(self, first: CallSignature | None) -> bool:
        if first is None or not self._target:
            return True
        return alike(self._target[:1], (first,), self._began_at - self._target_at)

    def _wait(self) -> None:
        self._unlike += 1
        if self._unlike >= PATIENCE and not self.final:
            self._target, self._unlike = None, 0
            self.timing = self.bare = 0
            self._graph_first = self.forgot = True

    def _next(self) -> Pass | None:
        if not self.final and (self.timing > 0 or self._graph_first):
            return "graph"
        if self.bare < min(self.timing, self.wanted):
            return "bare"
        if self.timing < self.wanted:
            return "timing"
        return None

    def _aim(self, signature: StepSignature) -> None:
        self._target, self._target_at, self._unlike = signature, self._began_at, 0

    def _count(self, done: Pass) -> None:
        self._unlike = 0
        if done == "graph":
            self.final = True
        elif done == "timing":
            self.timing += 1
        else:
            self.bare += 1
