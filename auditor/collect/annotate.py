"""Annotations of the graph pass: which module, which source line, what the step returns.

They are record functions, so they appear in the Kineto trace and in the execution trace alike::

    fa.step                                    around the step
    fa.module|<class>|<path>                   around a module's forward; path as in the root's named_modules
    fa.source|<line>|<function>|<file>         around one call of torch from the user's code
    fa.outputs                                 reads every tensor that the step gives back
    fa.end                                     the step may have ended here
    fa.backward_end                            a backward pass has returned

Names between the bars are escaped as in :mod:`auditor.collect.names`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from types import FrameType
from typing import Any

import torch
from torch.nn.modules import module as nn_module
from torch.overrides import TorchFunctionMode

from auditor.collect.names import encoded

_range = torch._C._profiler._RecordFunctionFast
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep

NOT_AN_OP = frozenset(
    {
        "__get__", "__set__", "__len__", "__hash__", "__repr__", "__format__", "__bool__", "size", "dim",
        "ndimension", "stride", "numel", "nelement", "storage_offset", "data_ptr", "element_size", "get_device",
        "is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_pinned", "is_same_size",
        "is_inference", "untyped_storage", "storage", "requires_grad_", "is_tensor", "is_conj", "is_neg",
        "__reduce_ex__", "register_hook", "retain_grad", "has_names", "is_distributed", "is_coalesced",
        "get_default_dtype", "_set_grad_enabled", "set_autocast_enabled", "set_autocast_dtype", "clear_autocast_cache",
    }
)  # fmt: skip
"""Torch functions that launch nothing, by name: annotating them would only cost time."""


class annotation:  # noqa: N801 (a context manager, used like a function)
    """``with annotation(name):`` one record function."""

    def __init__(self, name: str) -> None:
        self._range = _range(name)

    def __enter__(self) -> None:
        self._range.__enter__()

    def __exit__(self, *error: object) -> None:
        self._range.__exit__(None, None, None)


def mark_backward_end() -> None:
    """``fa.backward_end``: what runs from here on is none of the engine's."""
    with annotation("fa.backward_end"):
        pass


def mark_end() -> None:
    """Leave a ``fa.end`` in the trace."""
    with annotation("fa.end"):
        pass


class ModuleAnnotations:
    """Global forward hooks that put ``fa.module`` around every module; hooks survive exceptions in forward."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._open = threading.local()
        self._handles: list[Any] = []

    def learn(self, root: torch.nn.Module) -> None:
        """Paths of the modules below ``root``."""
        for path, module in root.named_modules():
            self._names[id(module)] = f"fa.module|{encoded(type(module).__name__)}|{encoded(path)}"

    def install(self) -> None:
        if not self._handles:
            self._handles = [
                nn_module.register_module_forward_pre_hook(self._enter),
                nn_module.register_module_forward_hook(self._exit, always_call=True),
            ]

    @property
    def installed(self) -> bool:
        return bool(self._handles)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def enter(self, module: torch.nn.Module) -> None:
        """Open the annotation of ``module`` on this thread."""
        name = self._names.get(id(module)) or f"fa.module|{encoded(type(module).__name__)}|"
        opened = _range(name)
        opened.__enter__()
        self._stack().append((module, opened))

    def exit(self, module: torch.nn.Module) -> None:
        """Close it, and whatever was left open above it."""
        stack = self._stack()
        if not any(opened is module for opened, _ in stack):
            return
        while stack:
            opened, entry = stack.pop()
            entry.__exit__(None, None, None)
            if opened is module:
                return

    def close(self) -> None:
        """Close all that this thread has open."""
        stack = self._stack()
        while stack:
            stack.pop()[1].__exit__(None, None, None)

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.enter(module)

    def _exit(self, module: torch.nn.Module, _args: Any, _result: Any) -> None:
        if not torch.compiler.is_compiling():
            self.exit(module)

    def _stack(self) -> list[tuple[torch.nn.Module, Any]]:
        stack: list[tuple[torch.nn.Module, Any]] | None = getattr(self._open, "stack", None)
        if stack is None:
            stack = self._open.stack = []
        return stack


class SourceLines(TorchFunctionMode):
    """Puts ``fa.source`` around each torch call, with the innermost frame outside torch."""

    _ours: dict[str, bool]

    def __init__(self) -> None:
        super().__init__()
        self._ours = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        # A range that is opened inside ours and closed after it would put the observer's stack out of order.
        skip = name in NOT_AN_OP or "_record_function" in name
        frame = None if skip else self._caller(sys._getframe(1))
        if frame is None:
            return func(*args, **(kwargs or {}))
        code = frame.f_code
        with _range(f"fa.source|{frame.f_lineno}|{encoded(code.co_name)}|{encoded(code.co_filename)}"):
            return func(*args, **(kwargs or {}))

    def _caller(self, frame: FrameType | None) -> FrameType | None:
        while frame is not None:
            file = frame.f_code.co_filename
            inner = self._ours.get(file)
            if inner is None:
                inner = self._ours[file] = file.startswith((_TORCH, _HERE, "<frozen"))
            if not inner:
                return frame
            frame = frame.f_back
        return None

    def install(self) -> None:
        """Go *below* every mode that is active, so that leaving those later stays in order."""
        above = _pop_all()
        _push(self)
        for mode in reversed(above):
            _push(mode)

    def remove(self) -> None:
        """Leave, from wherever in the stack."""
        for mode in reversed([mode for mode in _pop_all() if mode is not self]):
            _push(mode)


def _pop_all() -> list[Any]:
    """The active modes, innermost first; none is active afterwards."""
    return [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]


def _push(mode: Any) -> None:
    torch._C._push_on_torch_function_stack(mode)


def read_outputs(*results: Any) -> None:
    """``fa.outputs``: read every tensor in ``results``, so that the trace shows that it leaves the step."""
    with annotation("fa.outputs"), torch._C.DisableTorchFunction(), torch.no_grad():
        for tensor in tensors_in(results):
            try:
                tensor.detach()
            except Exception:  # an exotic tensor type without it: nothing can be said of that
                continue


def tensors_in(results: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """Every tensor in nested containers and plain objects, once."""
    seen: set[int] = set()
    pending = [(results, depth)]
    while pending:
        value, left = pending.pop()
        if id(value) in seen or value is None or isinstance(value, (str, bytes, int, float, bool, torch.nn.Module)):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value
        elif left:
            pending.extend((child, left - 1) for child in reversed(_children(value)))


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, (tuple, list, set, frozenset)):
        return list(value)
    if isinstance(value, type) or callable(value):
        return []
    if is_dataclass(value):
        return [getattr(value, f.name, None) for f in fields(value)] + list(getattr(value, "__dict__", {}).values())
    return list(getattr(value, "__dict__", {}).values())
