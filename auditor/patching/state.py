"""The state of a live model, kept while steps change it, and restored to the bit."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from auditor.patching.precision import copied_tensor, copies, named_state


class Rng:
    """The states of every random generator that a model may draw from."""

    def __init__(self) -> None:
        self._cpu = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def restore(self) -> None:
        torch.set_rng_state(self._cpu)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class State:
    """Everything of a model that a step changes: values, which tensors they are in, gradients, flags."""

    def __init__(self, model: nn.Module) -> None:
        self.rng = Rng()
        self._named = named_state(model)
        self.values: dict[str, Tensor] = copies(self._named, lambda tensor: copied_tensor(tensor.detach()))
        self._slots: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._plain: list[tuple[Tensor, Tensor]] = []
        self._training = [(module, module.training) for module in model.modules()]
        for module in model.modules():
            self._slots += [(slots, dict(slots)) for slots in (module._parameters, module._buffers)]
            tensors = {name: value for name, value in vars(module).items() if isinstance(value, Tensor)}
            self._slots.append((vars(module), tensors))
            self._plain += [(tensor, copied_tensor(tensor.detach())) for tensor in tensors.values()]
        held = [*self._named.values(), *(tensor for tensor, _ in self._plain)]
        self._leaves = [(t, t.grad, t.requires_grad) for t in held if t.is_leaf]

    def reset(self) -> None:
        """Values as they were, and no gradients."""
        for slots, held in self._slots:
            slots.update(held)
        for tensor, value in [*((t, self.values[name]) for name, t in self._named.items()), *self._plain]:
            if all(stride or size < 2 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
                tensor.data.copy_(value)  # an expanded one can't be written, by the model neither
        for leaf, _, _ in self._leaves:
            leaf.grad = None

    def restore(self) -> None:
        """Everything as it was, gradients and flags included."""
        self.reset()
        for leaf, grad, requires_grad in self._leaves:
            leaf.requires_grad_(requires_grad)
            leaf.grad = grad
        for module, training in self._training:
            module.training = training
        self.rng.restore()


@contextmanager
def kept_state(model: nn.Module) -> Iterator[State]:
    """The model without gradients inside, and as it was afterwards, whatever happens."""
    state = State(model)
    try:
        state.reset()
        yield state
    finally:
        state.restore()
