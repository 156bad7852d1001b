"""What happens in a running script, seen from torch: the events that steps are found in.

Nothing here may change what the script does. Hooks on modules are global, stand only *between* calls of
outermost modules and are gone inside them; the hook that tells when an outermost module returns is on the
instance for the time of that one call, so that a model can be pickled and copied at any moment. Compiled
code sees none of it: its guards look at hooks and modes, and a change would compile it again.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.nn.modules import module as nn_module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from auditor.collect import device
from auditor.collect.after_import import AfterImport
from auditor.collect.listener import CompiledFunction, Listener, Patch
from auditor.collect.passes import ProfilerOwner

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
_EVAL_FRAME = "torch._dynamo.eval_frame"
"""What switches to compiled code. Programs that compile nothing import it late, with an optimizer's step, or never."""


class TorchEvents:
    """Installs the hooks and translates them into calls of ``listener``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._pid = os.getpid()
        self._owner: threading.Thread | None = None
        self._root: Any = None
        self._root_call = 0
        self._root_handle: Any = None
        self._stepping: list[Any] = []
        self._stepped: Any = None
        self._discovery: Any = None
        self._optimizer_handles: list[Any] = []
        self._patches: list[Patch] = []
        self._dynamo_patched = False
        self._dynamo_imported = AfterImport(_EVAL_FRAME, self._patch_dynamo)
        self._in_backward = False
        self._switches: list[tuple[Any, bool]] = []

    # --- on and off --------------------------------------------------------------------------------

    def install(self) -> None:
        self._patches = [
            Patch(torch.autograd, "_engine_run_backward", self._wrap_backward),
            Patch(torch.Tensor, "backward", self._wrap_intercepted),
            Patch(torch.autograd, "backward", self._wrap_intercepted),
            Patch(torch.autograd, "grad", self._wrap_intercepted),
            Patch(Optimizer, "__init__", self._wrap_optimizer_init),
            Patch(Optimizer, "zero_grad", self._wrap_zero_grad),
            Patch(autograd_profiler.profile, "_prepare_trace", self._wrap_prepare_trace),
            Patch(autograd_profiler.record_function, "__exit__", self._wrap_range_exit),
            Patch(torch, "compile", self._wrap_compile),
            Patch(nn_module, "_has_any_global_hook", self._wrap_any_global_hook),
        ]
        if _EVAL_FRAME in sys.modules:
            self._patch_dynamo()
        else:
            self._dynamo_imported.install()
        if any(issubclass(type(thing), Optimizer) for thing in gc.get_objects()):
            self._listener.optimizer_made()
        self._watch()

    def remove(self) -> None:
        """Take everything out; the script goes on as if nobody had watched."""
        self._unwatch()
        self._dynamo_imported.remove()
        if self._root_handle is not None and self.on_owner():
            self._root_handle.remove()  # on another thread its call goes on: see _exit
        for patch in reversed(self._patches):
            patch.undo()
        self._patches = []

    def _watch(self) -> None:
        """Hooks that are seen between calls of outermost modules."""
        if self._discovery is None and self._patches:
            self._discovery = nn_module.register_module_forward_pre_hook(self._enter)
        if not self._optimizer_handles and self._patches:
            self._optimizer_handles = [
                register_optimizer_step_pre_hook(self._optimizer_enter),
                register_optimizer_step_post_hook(self._optimizer_exit),
            ]

    def _unwatch(self) -> None:
        self._stop_discovery()
        for handle in self._optimizer_handles:
            handle.remove()
        self._optimizer_handles = []

    def _stop_discovery(self) -> None:
        if self._discovery is not None:
            self._discovery.remove()
            self._discovery = None

    # --- outermost modules -------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if torch.compiler.is_compiling() or self._root is not None or self._in_backward or not self._is_ours():
            return
        if torch._C._get_tracing_state() is not None or _fx_tracing() or device.capturing():
            return
        # A global pre-hook gets no keyword arguments; the frame that calls it has them.
        frame = sys._getframe(1)
        kwargs = dict(frame.f_locals.get("kwargs") or {})
        self._root, self._root_call = module, _call_id(frame)
        self._stop_discovery()
        self._root_handle = torch.nn.Module.register_forward_hook(  # scripted modules forbid their own
            module, functools.partial(self._exit, args, kwargs), always_call=True
        )
        self._listener.root_enter(module, type(module).__name__, args, kwargs)

    def _exit(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], module: Any, _inputs: Any, result: Any
    ) -> None:  # fmt: skip
        if _call_id(sys._getframe(1)) != self._root_call:
            return  # the same module, called by another thread or from within itself
        self._root_handle.remove()
        self._root_handle = self._root = None
        if not self._patches:
            self._listener.late_exit()
            return
        failed = result is None and isinstance(sys.exc_info()[1], Exception)
        try:
            if failed and _raised_in_forward(sys.exc_info()[2]):
                self._listener.root_failed(module)
            else:
                self._listener.root_exit(module, result, args, kwargs)
        finally:
            self._watch()

    def _is_ours(self) -> bool:
        """Steps are followed on one thread: the first that calls a module, then another once that has ended."""
        if self.claim():
            return True
        self._listener.foreign_thread()
        return False

    def claim(self) -> bool:
        """Become the thread whose steps are followed, if there is none (any more)."""
        if self._owner is None or not self._owner.is_alive():
            self._owner = threading.current_thread()
        return self.on_owner()

    def on_owner(self) -> bool:
        """Whether this is the thread whose steps are followed, in this very process."""
        return threading.current_thread() is self._owner and os.getpid() == self._pid

    # --- training ----------------------------------------------------------------------------------

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on_owner() or self._root is not None or self._in_backward:
                return original(t_outputs, *args, **kwargs)
            self._in_backward = True  # checkpointing calls modules again: they are no roots
            try:
                self._listener.backward_enter(t_outputs)
                result = original(t_outputs, *args, **kwargs)
            except BaseException:
                self._listener.backward_failed()
                raise
            finally:
                self._in_backward = False
            self._listener.backward_exit()
            return result

        return run_backward

    def _wrap_intercepted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Function modes intercept these functions, and one that is intercepting cannot be taken out."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.on_owner():
                return original(*args, **kwargs)
            self._listener.pause()
            try:
                return original(*args, **kwargs)
            finally:
                self._listener.resume()

        return call

    def _wrap_optimizer_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self._listener.optimizer_made()
            original(optimizer, *args, **kwargs)

        return init

    def _wrap_zero_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.on_owner() or self._root is not None:
                return original(optimizer, *args, **kwargs)
            self._listener.zero_grad_enter()
            result = original(optimizer, *args, **kwargs)
            self._listener.zero_grad_exit()
            return result

        return zero_grad

    def _optimizer_enter(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Its record function is open already; an optimizer may call another one."""
        if self.on_owner() or self.claim():
            self._stepping.append(optimizer)
            if len(self._stepping) == 1:
                self._listener.optimizer_enter(optimizer)

    def _optimizer_exit(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The hook runs inside the record function of the step; the step ends when that has closed."""
        if self.on_owner():
            self._stepped = optimizer

    def _wrap_range_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def leave(scope: Any, *error: Any) -> Any:
            result = original(scope, *error)
            if scope.name.startswith("Optimizer.step#") and self.on_owner():
                self._optimizer_left()
            return result

        return leave

    def _optimizer_left(self) -> None:
        """A step of an optimizer is over, whether or not it failed."""
        if self._stepping:
            self._stepping.pop()
            if not self._stepping:
                self._listener.optimizer_left()
        if self._stepped is not None:
            optimizer, self._stepped = self._stepped, None
            self._listener.optimizer_exit(optimizer)

    # --- compiled code -----------------------------------------------------------------------------

    def _wrap_compile(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_(*args: Any, **kwargs: Any) -> Any:
            compiled = original(*args, **kwargs)
            self._patch_dynamo()
            return compiled

        return compile_

    def _patch_dynamo(self) -> None:
        from torch._dynamo import eval_frame

        if not self._dynamo_patched and self._patches and "_maybe_set_eval_frame" in eval_frame.__dict__:
            self._dynamo_patched = True
            self._patches.append(Patch(eval_frame, "_maybe_set_eval_frame", self._wrap_eval_frame))

    def _wrap_eval_frame(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Compiled code is entered and left here; outside of any module it is an outermost module itself."""

        def switch(callback: Any) -> Any:
            if not self.on_owner() and not self.claim():
                return original(callback)
            frame = sys._getframe(1)
            key = _switch_key(frame)
            if self._switches and self._switches[-1][0] == key:
                prior = original(callback)
                self._leave_compiled(self._switches.pop()[1])
                return prior
            if callable(callback):
                self._enter_compiled(frame)
            self._switches.append((key, callable(callback)))
            return original(callback)

        return switch

    def _enter_compiled(self, frame: FrameType) -> None:
        if any(compiled for _, compiled in self._switches):
            return
        if self._root is None and not self._in_backward and not device.capturing():
            self._root = CompiledFunction(frame.f_locals.get("fn"))
            self._listener.root_enter(self._root, self._root.name, (), {})
        self._unwatch()
        self._listener.compiled()
        self._listener.pause()

    def _leave_compiled(self, compiled: bool) -> None:
        if not compiled or any(compiled for _, compiled in self._switches):
            return
        self._listener.resume()
        if isinstance(self._root, CompiledFunction):
            root, self._root = self._root, None
            self._listener.root_exit(root, None, (), {})
        if self._root is None:
            self._watch()

    def _wrap_any_global_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled module warns of global hooks when it is called; ours are gone before it does."""

        def has_any() -> bool:
            if not self.on_owner() and not self.claim():
                return bool(original())
            self._stop_discovery()
            self._listener.pause()
            try:
                return bool(original())
            finally:
                self._listener.resume()
                if self._root is None:
                    self._watch()

        return has_any

    # --- the script's own profiler -----------------------------------------------------------------

    def _wrap_prepare_trace(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def prepare(profile: Any) -> Any:
            if not ProfilerOwner.ours and os.getpid() == self._pid:
                self._listener.own_profiler(*_script_place(sys._getframe(1)))
            return original(profile)

        return prepare


def _call_id(frame: FrameType | None) -> int:
    """Which call of a module a hook belongs to: hooks run in ``_call_impl`` or in a function within it."""
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    return id(frame)


def _raised_in_forward(trace: Any) -> bool:
    """An exception is being handled: was it raised by the call that ends now, or is it an older one?

    The hook is called from an ``except`` block of the very call; its traceback then begins in ``_call_impl``.
    """
    return trace is not None and trace.tb_frame.f_code.co_name in ("_call_impl", "inner")


def _switch_key(frame: FrameType) -> Any:
    """Compiled code is entered and left from one frame, or by the two ends of one context manager."""
    if frame.f_code.co_name in ("__enter__", "__exit__"):
        return id(frame.f_locals.get("self"))
    return id(frame)


def _fx_tracing() -> bool:
    """``is_fx_tracing()`` says the same, with a warning."""
    tracer = sys.modules.get("torch.fx._symbolic_trace")
    return bool(getattr(tracer, "_is_fx_tracing_flag", False))


def _script_place(frame: Any) -> tuple[str, int]:
    """File and line of the innermost frame outside torch and this package."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<frozen")) and not file.endswith("contextlib.py"):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0
