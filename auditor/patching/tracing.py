"""A module's call led through Dynamo, with what Dynamo keeps held apart from every other module's."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import fx, nn
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import config

from auditor.collect.listener import STANDS_FOR

ATTRIBUTE = "_compiled_call_impl"
"""Where ``nn.Module.__call__`` looks for a compiled form of the module. Copies and pickles of a module leave it out."""

SETTINGS = {
    "specialize_float": True, "skip_nnmodule_hook_guards": False, "optimize_ddp": False, "suppress_errors": True,
}  # fmt: skip
"""Floats are constants, which an eps has to be to be found; a hook that is added later makes a new graph; graphs are
whole in DistributedDataParallel too, whose buckets matter to compiled backward graphs only, and here there are none;
what Dynamo cannot trace for a fault of its own runs as it is."""


class Entry:
    """What a module is called through. In a copy or a pickle it is None: nothing, to ``nn.Module.__call__``."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _nothing, ()


def _nothing() -> None:
    return None


def traced(module: nn.Module, method: str, backend: Callable[..., Any]) -> Callable[..., Any]:
    """The ``method`` of ``module``'s class through Dynamo. Sizes are symbolic from the first call on: lengths share it.

    Dynamo keeps graphs by code object, eight for each. All modules share that of ``_call_impl``, and all norms of a
    model that of their ``forward``; so each gets one of its own, which goes when the module's patch does.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(type(module), method)(module, *args, **kwargs)

    code = call.__code__.replace(co_name=method)
    own = types.FunctionType(code, call.__globals__, method, None, call.__closure__)
    setattr(own, STANDS_FOR, weakref.ref(module))  # a recorder knows the calls for the module's own
    compiled: Callable[..., Any] = torch.compile(own, backend=_weakly(backend), dynamic=True)
    return _with_settings(compiled)


def _weakly(backend: Callable[..., Any]) -> Callable[..., Any]:
    """``backend``, which has to be kept elsewhere: Dynamo never forgets a backend, nor what that leads to."""
    reference = weakref.ref(backend)

    def through(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        held = reference()
        return module.forward if held is None else held(module, inputs)

    return through


def traced_code() -> types.CodeType | None:
    """The function whose graph is being made, as a backend is called; None where this PyTorch does not say."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        code = InstructionTranslator.current_tx().output.root_tx.f_code
    except AttributeError:
        return None
    return code if isinstance(code, types.CodeType) else None


def forget(codes: Iterable[types.CodeType]) -> None:
    """Let Dynamo drop its graphs of these functions.

    After a graph break what it traces are functions of the model's classes. Graphs of patches that are gone would take
    the places of those to come, which are eight.
    """
    for code in codes:
        reset_code(code)


def _with_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` under our configuration of Dynamo, in the thread that calls it only."""
    places = _places()

    def patching(*args: Any, **kwargs: Any) -> Any:
        with config.patch(SETTINGS):
            return function(*args, **kwargs)

    def setting(*args: Any, **kwargs: Any) -> Any:  # what `config.patch` does, without the 20 µs of its bookkeeping
        tokens = [(place, place.set(value)) for place, value in places]
        try:
            return function(*args, **kwargs)
        finally:
            for place, token in reversed(tokens):
                place.reset(token)

    return setting if places else patching


def _places() -> list[tuple[ContextVar[object], object]]:
    """Where a thread keeps our settings, and what they are to be; none where this PyTorch keeps them otherwise."""
    found: list[tuple[ContextVar[object], object]] = []
    for name, value in SETTINGS.items():
        entry = getattr(config, "_config", {}).get(name)
        place = getattr(entry, "user_override", None)
        if not isinstance(place, ContextVar):
            return []
        found.append((place, value))
    return found


def is_traced() -> bool:
    """Whether somebody looks at the ops that the module is made of: a compiler, a tracer, a transform."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


HOOKS = (
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip


def hook_of(module: nn.Module) -> str:
    """``forward hook`` where the module has one; an empty string where it has none."""
    found = next((name for name in HOOKS if getattr(module, name)), "")
    return found.strip("_").replace("_", " ").removesuffix("s")
