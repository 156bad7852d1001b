"""Finding the steps of a script while it runs, from events alone (no torch in here).

Events are calls of outermost modules (*roots*), backward passes, optimizer steps, ``zero_grad`` and
explicit marks. What makes a step:

* **inference**: one cycle of roots. ``A A A`` has the cycle ``A``; ``A B A B`` the cycle ``A B``. A root
  outside the cycle (a text encoder that runs once, an evaluation in between) is counted, not recorded.
  When ``A`` runs all its calls before ``B`` begins, ``A`` is the step, unless it ended before its graph
  was recorded: then ``B`` is.
* **training**: from the first root after the last optimizer step to the end of the next one, so several
  forward and backward passes (gradient accumulation) and losses that are modules belong to one step. With
  several optimizers a step ends when all have stepped. Without any optimizer it ends with its backward.
  ``zero_grad`` belongs to the step that it stands next to.
* **marked**: from one mark to the next; marks overrule everything else.

Nothing is known when the first step begins, so it is held open until an event decides where it ended.
Because more was recorded by then, a *cut* tells how much belongs to it.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from auditor.collect.recording import StepKind
from auditor.collect.signature import CallSignature, StepSignature
from auditor.collect.zero_grad import ZeroGrad

HELD_ROOTS = 64
"""Calls for which the first step is held open at most."""
LONGEST_CYCLE = 16
BACKWARD = "backward"


@dataclass
class Step:
    """One step: what was called in it, in order."""

    calls: list[CallSignature] = field(default_factory=list)
    backwards: int = 0
    marks: int = 0
    """Places at which the first step could be cut, so far."""
    expects_backward: bool = False

    @property
    def roots(self) -> list[str]:
        return [key for key, _ in self.calls]

    @property
    def signature(self) -> StepSignature:
        return tuple(self.calls)


class Handler(Protocol):
    """Who records the steps."""

    def begin(self, first: CallSignature | None) -> None:
        """A step begins; ``first`` is its first call where that is known."""

    def mark(self) -> None:
        """The open step may turn out to end here."""

    def end(self, step: Step, cut: int | None) -> None:
        """The step ended now, or at the ``cut``-th mark (1-based)."""

    def cancel(self) -> None:
        """The open step did not go as expected."""

    def restart(self) -> None:
        """Steps are something else than was thought: earlier ones don't count."""

    def has_final_graph(self) -> bool:
        """Whether the graph of a step after warm-up is recorded."""


class StepTracker:
    """Turns events into steps and tells ``handler``."""

    def __init__(self, handler: Handler, clock: Callable[[], float] = time.perf_counter) -> None:
        self.kind: StepKind = "inference"
        self.calls: Counter[str] = Counter()
        self.optimizer_exists = False
        self.open: Step | None = None
        self._pattern: tuple[str, ...] = ()
        self._at = 0
        self._handler = handler
        self._recent: deque[str] = deque(maxlen=2 * LONGEST_CYCLE)
        self._one_optimizer = False
        self._zero = ZeroGrad(clock)

    @property
    def cycle(self) -> tuple[str, ...]:
        """Keys of the roots (or optimizers) that make a step; empty until that is known."""
        return self._pattern

    # --- roots -------------------------------------------------------------------------------------

    def root_enter(self, call: CallSignature) -> None:
        """An outermost module is about to run."""
        self.calls[call[0]] += 1
        if self.kind == "marked":
            self._add(call)
        elif not self._pattern:
            self._enter_unknown(call)
        elif self.kind == "training":
            self._enter_training(call)
        else:
            self._enter_inference(call)

    def root_exit(self, expects_backward: bool = False, alone: bool = False) -> None:
        """It returned. ``alone``: nobody may be there to end the step later (a thread that can end)."""
        if self.open is None or self.kind == "marked":
            return
        if not self._pattern:
            self._mark(self.open)
            self.open.expects_backward |= expects_backward
            if alone and not self._waits_for_optimizer(self.open):
                self._settle("inference", (self.open.roots[0],), None)
        elif self.kind == "inference":
            self._advance()

    def root_failed(self) -> None:
        """It raised."""
        if self.open is not None and self.kind != "marked":
            self._cancel()

    def _enter_unknown(self, call: CallSignature) -> None:
        step = self.open
        if step is None:
            self._begin(call)
        elif step.backwards and not self.optimizer_exists:
            self._settle("training", (BACKWARD,) * step.backwards, step.marks)
            self._begin(call)
        elif call[0] in step.roots and not self._waits_for_optimizer(step):
            self._settle("inference", tuple(step.roots[step.roots.index(call[0]) :]), step.marks)
            self._enter_inference(call)
        elif len(step.roots) >= HELD_ROOTS and not step.expects_backward:
            self._settle("inference", (step.roots[0],), 1)
            self._enter_inference(call)
        else:
            step.calls.append(call)

    def _waits_for_optimizer(self, step: Step) -> bool:
        return step.expects_backward and self.optimizer_exists and len(step.roots) < HELD_ROOTS

    def _enter_training(self, call: CallSignature) -> None:
        if self._zero.waiting:  # the zero_grad that used to follow the optimizer did not come
            self._zero.give_up()
            self._cancel()
        if self.open is None:
            self._zero.decide()
            self._begin(call)
        else:
            self.open.calls.append(call)

    def _enter_inference(self, call: CallSignature) -> None:
        self._recent.append(call[0])
        if self.open is not None and call[0] != self._expected():
            self._cancel()
        if self.open is not None:
            self.open.calls.append(call)
            return
        if call[0] != self._pattern[0]:
            self._look_for_another_cycle()
        if call[0] == self._pattern[0]:
            self._begin(call)

    def _look_for_another_cycle(self) -> None:
        found = _repeated_tail(list(self._recent))
        if not found:
            return
        leader = self._pattern[0]
        if found.count(leader) == 1:
            turn = found.index(leader)
            self._retry("inference", found[turn:] + found[:turn])
        elif leader not in found and not self._handler.has_final_graph():
            self._retry("inference", found)

    # --- training ----------------------------------------------------------------------------------

    def backward_exit(self) -> None:
        """A backward pass ended."""
        if self.kind == "marked":
            return
        if self._pattern and self.kind == "inference":
            self._retry("training", ())
        elif self.open is None:
            return
        elif not self._pattern:
            self.open.backwards += 1
            self._mark(self.open)
        elif self._expected() == BACKWARD:
            self._advance()

    def optimizer_exit(self, key: str) -> None:
        """An optimizer stepped."""
        self.optimizer_exists = True
        if self.kind == "marked":
            return
        if not self._pattern:
            if self.open is not None:
                self._settle("training", (key,), None)
        elif self.kind == "inference" or self._pattern[0] == BACKWARD:
            self._retry("training", ())
        elif self.open is not None and key == self._expected():
            self._advance()
        else:
            self._unexpected_optimizer(key)

    def _unexpected_optimizer(self, key: str) -> None:
        if key not in self._pattern and not self._one_optimizer:
            self._retry("training", (*self._pattern, key))
        elif len(self._pattern) > 1:  # they do not take turns: steps of the first alone are comparable
            self._one_optimizer = True
            self._retry("training", self._pattern[:1])
        elif self.open is not None:
            self._cancel()

    def zero_grad_enter(self) -> None:
        if self.kind == "training" and self._pattern and self.open is None and self._zero.enter():
            self._begin(None)

    def zero_grad_exit(self) -> None:
        if self.kind == "training" and self._zero.exit(self.open is not None):
            self._end(None)

    # --- marks and the end -------------------------------------------------------------------------

    def step_mark(self) -> None:
        """The script says that a step begins (and that the one before ended)."""
        if self.kind != "marked":
            known = bool(self._pattern) or self.open is not None
            if known:
                self._retry("marked", ())
            self.kind = "marked"
        elif self.open is not None:
            self._end(None)
        self._begin(None)

    def step_mark_end(self) -> None:
        """The script says that the step ended."""
        if self.kind == "marked" and self.open is not None:
            self._end(None)

    def step_failed(self) -> None:
        """The open step will not end as it should."""
        if self.open is not None:
            self._cancel()

    def hold_no_longer(self) -> None:
        """The process is about to fork: a first step that is held open ends where its last call did."""
        step = self.open
        held = step is not None and not self._pattern and self.kind == "inference"
        if step is None or not held or not step.marks or step.backwards or self._waits_for_optimizer(step):
            return
        self._settle("inference", tuple(step.roots), step.marks)

    def finish(self, sole_mark: bool = False) -> None:
        """No more events. A first step that is still open ends where its last call did."""
        step = self.open
        if step is None:
            return
        if self.kind == "marked" and sole_mark:
            self._end(None)
        elif self.kind != "marked" and not self._pattern and step.marks:
            self._settle("training" if step.backwards else "inference", tuple(step.roots), step.marks)
        else:
            self._cancel()

    # --- the open step -----------------------------------------------------------------------------

    def _begin(self, call: CallSignature | None) -> None:
        self.open, self._at = Step([call] if call else []), 0
        self._handler.begin(call)

    def _add(self, call: CallSignature) -> None:
        if self.open is not None:
            self.open.calls.append(call)

    def _mark(self, step: Step) -> None:
        step.marks += 1
        self._handler.mark()

    def _expected(self) -> str:
        return self._pattern[self._at] if self._at < len(self._pattern) else ""

    def _advance(self) -> None:
        self._at += 1
        if self._at < len(self._pattern):
            return
        if self.kind != "training" or not self._zero.wait():
            self._end(None)

    def _settle(self, kind: StepKind, pattern: tuple[str, ...], cut: int | None) -> None:
        self.kind, self._pattern = kind, pattern
        self._recent.extend(self.open.roots if self.open else ())
        self._end(cut)

    def _end(self, cut: int | None) -> None:
        step, self.open, self._at = self.open, None, 0
        if step is not None:
            self._handler.end(step, cut)
        self._zero.step_ended()  # after the handler, which takes its time to write

    def _cancel(self) -> None:
        self.open, self._at = None, 0
        self._handler.cancel()

    def _retry(self, kind: StepKind, pattern: tuple[str, ...]) -> None:
        if self.open is not None:
            self._cancel()
        self.kind, self._pattern, self._at = kind, pattern, 0
        self._handler.restart()


def _repeated_tail(keys: list[str]) -> tuple[str, ...]:
    """The shortest sequence that stands twice in a row at the end of ``keys``."""
    for length in range(1, len(keys) // 2 + 1):
        if keys[-length:] == keys[-2 * length : -length]:
            return tuple(keys[-length:])
    return ()
