"""A model run on a test's inputs until one of its steps is recorded; the model is afterwards as it was.

A step is an inference, or a forward and a backward. Counts are those of a step after the first, in which nothing is set
up any more. The backward begins with ones in the shape of the results, made beforehand: no loss adds kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from auditor.collect.annotate import tensors_in
from auditor.collect.mark import step
from auditor.collect.recorder import Recorder
from auditor.errors import AuditError

MOST_STEPS = 12
"""A recording of one step needs four that are alike; with models whose first steps differ, some more."""


def record_step(model: Callable[..., Any], inputs: Any, *, train: bool) -> Recorder:
    """Run ``model`` on ``inputs`` and record a step.

    Args:
        model: a module, or a function that calls modules; the function decides itself what needs gradients.
        inputs: the argument, a tuple of arguments, a mapping of arguments by name, or a function that makes any of
            these anew for each step.
        train: modules in training mode, and a backward after each forward; else in evaluation mode, without gradients.

    Raises:
        AuditError: nothing was recorded, or with ``train`` nothing that came back needs a gradient.
    """
    run = _Step(model, train=train)
    with _as_it_was(model, inputs, train=train):
        _own_steps(run, inputs)  # what is made once (kernels, lazy modules, gradients) is made here
        recorder = Recorder(steps=1, warmup=1)
        with recorder:
            for _ in range(MOST_STEPS):
                words = arguments(inputs)
                run.prepare(words)
                with step():
                    run(*words)
                if Recorder.active is not recorder:
                    break
    return recorder


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``inputs`` as positional arguments and arguments by name."""
    given = inputs() if callable(inputs) else inputs
    if isinstance(given, Mapping):
        return (), dict(given)
    return (given if isinstance(given, tuple) else (given,)), {}


def _own_steps(run: _Step, inputs: Any) -> None:
    words = arguments(inputs)
    run.prepare(words)
    run(*words)


class _Step:
    """One step of a model; gradients that a backward begins with are kept from step to step."""

    def __init__(self, model: Callable[..., Any], *, train: bool) -> None:
        self._model, self._train = model, train
        self._ones: dict[tuple[torch.Size, torch.dtype, torch.device], torch.Tensor] = {}

    def prepare(self, words: Any) -> None:
        """Every backward finds nothing with a gradient: to add to that of the step before is a kernel."""
        if self._train:
            for tensor in _leaves(self._model, words):
                tensor.grad = None

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model, and with training its backward."""
        result = self._model(*args, **kwargs)
        if self._train:
            ends = _differentiable(result)
            torch.autograd.backward(ends, [self._one(end) for end in ends])

    def _one(self, end: torch.Tensor) -> torch.Tensor:
        key = (end.shape, end.dtype, end.device)
        if key not in self._ones:
            self._ones[key] = torch.ones_like(end)
        return self._ones[key]


def _differentiable(result: Any) -> list[torch.Tensor]:
    """The loss where the result has one, else every tensor in it that needs a gradient."""
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    found = [loss] if isinstance(loss, torch.Tensor) else list(tensors_in(result, depth=3))
    ends = [tensor for tensor in found if tensor.requires_grad]
    if not ends:
        raise AuditError("train=True, and nothing that the model returned needs a gradient: it has no backward")
    return ends


def _leaves(model: Callable[..., Any], words: Any) -> list[torch.Tensor]:
    """Parameters, and inputs, that a backward gives a gradient."""
    parameters = list(model.parameters()) if isinstance(model, torch.nn.Module) else []
    return [tensor for tensor in (*parameters, *tensors_in(words)) if tensor.is_leaf and tensor.requires_grad]


@contextmanager
def _as_it_was(model: Callable[..., Any], inputs: Any, *, train: bool) -> Iterator[None]:
    """Modes, gradients, buffers and random numbers are given back."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        if isinstance(model, torch.nn.Module):
            stack.callback(_restorer(model, () if callable(inputs) else inputs))
            model.train(train)
        elif train:
            raise AuditError("train=True needs a module; a function runs its backward itself")
        stack.enter_context(torch.enable_grad() if train else _inference(model))
        yield


def _inference(model: Callable[..., Any]) -> Any:
    return torch.no_grad() if isinstance(model, torch.nn.Module) else nullcontext()


def _restorer(model: torch.nn.Module, inputs: Any) -> Callable[[], None]:
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    gradients = [(tensor, tensor.grad) for tensor in _leaves(model, inputs)]

    def restore() -> None:
        for module, mode in modes:
            module.training = mode
        for tensor, gradient in gradients:
            tensor.grad = gradient
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer
                buffer.copy_(before)

    return restore
