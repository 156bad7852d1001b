"""The real inputs of a step: what the outermost modules of a script were called with, and the gradients they got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from auditor.collect import device
from auditor.collect.annotate import tensors_in
from auditor.collect.events import TorchEvents
from auditor.collect.roots import RootNames
from auditor.collect.signature import CallSignature, tensor_facts
from auditor.collect.steps import Step as StepOfRoots
from auditor.collect.steps import StepTracker
from auditor.patching.errors import floating_leaves
from auditor.patching.precision import copies
from auditor.patching.step import Step


@dataclass(eq=False)
class CapturedCall:
    """One call of an outermost module within the step."""

    name: str
    module: nn.Module
    entered: Step
    gradients: list[Tensor | None] | None = None
    """By floating leaf of the output: what the script's backward brought; None without a backward."""

    @property
    def step(self) -> Step:
        """The call with the gradients that came back to it."""
        if self.gradients is None or not any(g is not None for g in self.gradients):
            return self.entered
        return replace(self.entered, cotangents=tuple(self.gradients))


@dataclass
class CapturedStep:
    """The calls of one step, in order. ``kind`` is ``inference``, ``training`` or ``marked``."""

    kind: str
    calls: list[CapturedCall] = field(default_factory=list)


class InputCapture:
    """Watches a script until the step after ``warmup`` ended, then hands it to ``then``.

    It listens to the same events as the recorder, and finds steps in the same way, but runs no profiler.
    """

    def __init__(self, then: Callable[[CapturedStep], None], *, warmup: int = 1) -> None:
        self._then, self._warmup = then, max(warmup, 1)
        self._tracker = StepTracker(self)
        self._events = TorchEvents(self)
        self._roots = RootNames()
        self._ended = 0
        self._calls: list[CapturedCall] | None = None
        self.done = False

    def start(self) -> None:
        """Begin to watch."""
        self._events.install()

    def finish(self) -> None:
        """Stop watching. A step that only the end of the script closes counts."""
        if not self.done:
            self._tracker.finish(sole_mark=self._ended == 0)
        self._stop()

    def _stop(self) -> None:
        if not self.done:
            self.done = True
            self._events.remove()

    # --- events of torch (collect.listener.Listener) ---------------------------------------------------

    def root_enter(self, root: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tracker.root_enter((self._roots.key(root, name), tensor_facts(args, kwargs)))
        if self._calls is not None and isinstance(root, nn.Module):
            self._calls.append(CapturedCall(self._roots.key(root, name), root, _step(root, args, kwargs)))

    def root_exit(self, root: Any, result: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        trains = not self._tracker.cycle and bool(getattr(root, "training", False)) and _learns(result)
        if self._calls and self._calls[-1].module is root:
            _watch_gradients(result, self._calls[-1])
        self._tracker.root_exit(trains)

    def root_failed(self, _root: Any) -> None:
        self._tracker.root_failed()

    def backward_enter(self, tensors: Any) -> None: ...

    def backward_failed(self) -> None: ...

    def backward_exit(self) -> None:
        self._tracker.backward_exit()

    def optimizer_made(self) -> None:
        self._tracker.optimizer_exists = True

    def optimizer_enter(self, optimizer: Any) -> None: ...

    def optimizer_left(self) -> None: ...

    def optimizer_exit(self, optimizer: Any) -> None:
        self._tracker.optimizer_exit(self._roots.key(optimizer, type(optimizer).__name__))

    def zero_grad_enter(self) -> None:
        self._tracker.zero_grad_enter()

    def zero_grad_exit(self) -> None:
        self._tracker.zero_grad_exit()

    def compiled(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def own_profiler(self, _file: str, _line: int) -> None: ...

    def late_exit(self) -> None: ...

    def foreign_thread(self) -> None: ...

    # --- steps (collect.steps.Handler) -----------------------------------------------------------------

    def begin(self, first: CallSignature | None) -> None:  # noqa: ARG002
        self._calls = []

    def mark(self) -> None: ...

    def end(self, step: StepOfRoots, cut: int | None) -> None:
        calls, self._calls = self._calls, None
        self._ended += 1
        if cut is not None and calls is not None:  # the first step was held open beyond its end
            calls = calls[: len(step.calls)]
        last = self._ended > self._warmup
        if calls and last and not self.done:
            self._stop()
            self._then(CapturedStep(self._tracker.kind, calls))

    def cancel(self) -> None:
        self._calls = None

    def restart(self) -> None:
        self._calls, self._ended = None, 0

    def has_final_graph(self) -> bool:
        return self.done


def _step(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step:
    kind = device.accelerator() or "cpu"
    dtype = device.autocast_dtype(kind)
    return Step(
        args=copies(args), kwargs=copies(kwargs), grad_enabled=torch.is_grad_enabled(),
        inference_mode=torch.is_inference_mode_enabled(), autocast=(kind, dtype) if dtype else None,
        training=root.training,
    )  # fmt: skip


def _learns(result: Any) -> bool:
    return any(tensor.requires_grad for tensor in tensors_in(result, depth=3))


def _watch_gradients(result: Any, call: CapturedCall) -> None:
    """Keep the gradient that each result gets, when the script's backward brings it."""
    leaves = [leaf for _, leaf in floating_leaves(result)]
    gradients: list[Tensor | None] = [None] * len(leaves)
    call.gradients = gradients
    for place, leaf in enumerate(leaves):
        if leaf.requires_grad:
            leaf.register_hook(_keeper(gradients, place))


def _keeper(gradients: list[Tensor | None], place: int) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        gradients[place] = gradient.detach().clone()

    return keep
