"""A function of elementwise ops, prepared: one op for each combination of dtypes, ranks and numbers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree

from fused_replacements._autocast import autocast_dtype
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements.elementwise._chain_graph import Autocast, NotElementwise, chain_graph
from fused_replacements.elementwise._chain_op import chain_op, of_tensors

Function = Callable[..., Any]
MOST_FORMS: Final = 64
"""Combinations of dtypes, ranks and numbers that one chain is compiled for. Ops of the dispatcher are never freed."""


@dataclass(frozen=True)
class _Form:
    """A chain for one combination of dtypes, ranks and numbers."""

    op: FusedOp
    places: tuple[int, ...]
    """Which arguments are tensors."""
    structure: _pytree.TreeSpec | None
    """Of the outputs; None where the one tensor is all."""

    def __call__(self, arguments: Sequence[Any]) -> Any:
        outputs = self.op(*[arguments[i] for i in self.places])
        if self.structure is None:
            return outputs
        flat = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        return _pytree.tree_unflatten(flat, self.structure)


@dataclass(frozen=True)
class _Refused:
    """A combination that can't be one kernel: the function itself runs."""

    name: str
    function: Function
    reason: str

    def __call__(self, arguments: Sequence[Any]) -> Any:
        result = self.function(*arguments)
        say_unfused(self.name, self.reason)  # afterwards: what raises is no chain, and needs no second message
        return result


class Chain:
    """``fn`` as one fused kernel each way. Called with the arguments of ``fn``, it returns what ``fn`` returns.

    >>> swiglu = Chain(lambda gate, up: torch.nn.functional.silu(gate) * up)
    >>> y = swiglu(gate, up)

    With ``rows`` the function may hold reductions, softmax, norms and concatenations too: what a kernel that walks
    whole rows can do. The compiler then decides how many kernels it takes; along one axis it is one.
    """

    def __init__(self, fn: Function, *, rows: bool = False) -> None:
        self.fn, self.rows = fn, rows
        self.name: Final = "elementwise_chain" + _slug(fn)
        self._forms: dict[object, _Form | _Refused] = {}
        self._supported: dict[object, str | None] = {}
        """What ``supports`` has answered: it traces."""
        self._lock = threading.RLock()  # its own: while it is traced, on another thread, it may call a chain

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.fn(*arguments)
        key = _key(arguments)
        form = self._forms.get(key)
        return self._first_call(key, arguments) if form is None else form(arguments)

    def supports(self, *arguments: Any) -> str | None:
        """None, or why these arguments would not run as one kernel. Reads no values; works on fake tensors."""
        key = _key(arguments)
        form = self._forms.get(key)
        if isinstance(form, _Refused):
            return form.reason
        key = (key, *[tuple(map(int, a.shape)) for a in arguments if isinstance(a, Tensor)])
        if key not in self._supported:
            if len(self._supported) >= MOST_FORMS:
                self._supported.clear()
            self._supported[key] = self._refusal(arguments)
        return self._supported[key]

    def _refusal(self, arguments: Sequence[Any]) -> str | None:
        try:
            chain_graph(self.fn, arguments, _autocast(arguments), rows=self.rows)
        except NotElementwise as refusal:
            return str(refusal)
        return None

    def ops(self) -> tuple[FusedOp, ...]:
        """The ops that were made so far: one for each combination of dtypes, ranks and numbers that was met."""
        return tuple(form.op for form in self._forms.values() if isinstance(form, _Form))

    def _first_call(self, key: object, arguments: Sequence[Any]) -> Any:
        with self._lock:
            form = self._forms.get(key) or self._prepared(arguments)
            if isinstance(form, _Form):
                self._forms[key] = form
        result = form(arguments)
        # a refusal counts only once the function itself has run: a call that raises says nothing about other calls
        if len(self._forms) < MOST_FORMS:
            self._forms.setdefault(key, form)
        return result

    def _prepared(self, arguments: Sequence[Any]) -> _Form | _Refused:
        if len(self._forms) >= MOST_FORMS:
            reason = f"it was called with over {MOST_FORMS} combinations of dtypes, ranks and numbers"
            return _Refused(_described(self.name, self.fn), self.fn, reason)
        autocast = _autocast(arguments)
        try:
            traced = chain_graph(self.fn, arguments, autocast, rows=self.rows)
        except NotElementwise as refusal:
            return _Refused(_described(self.name, self.fn), self.fn, str(refusal))
        places = tuple(i for i, argument in enumerate(arguments) if isinstance(argument, Tensor))
        constants = [None if i in places else argument for i, argument in enumerate(arguments)]
        definition = of_tensors(self.fn, constants, places, autocast)
        op = chain_op(self.name, definition, places, len(traced.outputs), rows=self.rows, shifts=traced.shifts)
        return _Form(op, places, None if traced.structure.is_leaf() else traced.structure)


def _slug(fn: Function) -> str:
    """What a profile shows of the name of ``fn``: nothing of a lambda's."""
    name = re.sub(r"\W", "", getattr(fn, "__name__", type(fn).__name__)).strip("_")
    return f"_{name}" if name and name != "lambda" else ""


def _described(name: str, fn: Function) -> str:
    """The name, and where the function is written: each of several lambdas gets its own message."""
    code = getattr(fn, "__code__", None)
    return name if code is None else f"{name} ({Path(code.co_filename).name}:{code.co_firstlineno})"


def _key(arguments: Sequence[Any]) -> object:
    """Dtypes and ranks of tensors, types and values of the rest: 1, 1.0, True and -0.0 are four numbers."""
    parts: list[object] = [_autocast(arguments)] if torch._C._is_any_autocast_enabled() else []
    for argument in arguments:
        if isinstance(argument, Tensor):
            parts += (argument.dtype, argument.dim())
        else:
            parts += (type(argument), repr(argument))
    return tuple(parts)


def _autocast(arguments: Sequence[Any]) -> Autocast:
    """Device type and dtype of the autocast that is on, if one is."""
    if not torch._C._is_any_autocast_enabled():
        return None
    device: str = next((a.device.type for a in arguments if isinstance(a, Tensor)), "cpu")
    dtype = autocast_dtype(device)
    return None if dtype is None else (device, dtype)
