"""Who hears of what happens in a running script, and how it is heard: replaced attributes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Listener(Protocol):
    """Who hears of it. All calls come from one thread."""

    def root_enter(self, root: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def root_exit(self, root: Any, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None: ...
    def root_failed(self, _root: Any, /) -> None: ...
    def backward_enter(self, tensors: Any) -> None: ...
    def backward_exit(self) -> None: ...
    def backward_failed(self) -> None: ...
    def optimizer_made(self) -> None: ...
    def optimizer_enter(self, optimizer: Any) -> None: ...
    def optimizer_left(self) -> None: ...
    def optimizer_exit(self, optimizer: Any) -> None: ...
    def zero_grad_enter(self) -> None: ...
    def zero_grad_exit(self) -> None: ...
    def compiled(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def own_profiler(self, file: str, line: int) -> None: ...
    def late_exit(self) -> None: ...
    def foreign_thread(self) -> None: ...


class Patch:
    """One attribute replaced, and put back unless somebody replaced it again since."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._owner, self._name = owner, name
        self._original = owner.__dict__[name]
        self._wrapped = functools.wraps(self._original)(wrap(self._original))
        setattr(owner, name, self._wrapped)

    def undo(self) -> None:
        if self._owner.__dict__.get(self._name) is self._wrapped:
            setattr(self._owner, self._name, self._original)


STANDS_FOR = "__fusion_audit_module__"
"""Attribute of a function that a module's calls are led through: a weak reference to the module."""


def _nobody() -> None:
    return None


class CompiledFunction:
    """A function under ``torch.compile`` that was called outside of any module.

    ``function`` is the object that it is known by from call to call.
    """

    def __init__(self, function: Any) -> None:
        module = getattr(function, "__self__", None) or getattr(function, STANDS_FOR, _nobody)()
        if isinstance(module, torch.nn.Module):  # ``module.compile()``, or a module with a plan applied
            self.name, self.function = type(module).__name__, module
        else:
            self.name = f"torch.compile({getattr(function, '__qualname__', 'function')})"
            self.function = getattr(function, "__func__", function)
