"""A model run in fp64 from end to end: the reference that eager's error and a patch's error are measured against.

Parameters in fp64 do not suffice: a hand-written norm casts to fp32 itself, a mask is made in bf16, an integer tensor
divided by a number is fp32. Below autograd all of these are dispatched ops with a dtype, and there they are widened.

What holds for random numbers: an op that draws them (dropout, bernoulli, rand, randn, uniform…) draws in the dtype
that the low-precision run has (``home``) and its result is widened, so the same seed gives the same masks and noise,
on any device. Two exceptions: draws that depend on computed values (``bernoulli(probabilities)``, ``multinomial``) may
differ where the value lies on the edge, and dropout *inside* a fused attention kernel of a GPU has masks that no other
kernel reproduces.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import FunctionType, MethodType, ModuleType, TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

WIDER = {
    torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
    torch.complex32: torch.complex128, torch.complex64: torch.complex128,
}  # fmt: skip
"""By dtype: what stands for it in the reference. The 8-bit floats are storage formats, and stay."""
_NARROWER = {torch.complex128: torch.complex64}
_DRAWS = frozenset({
    "rand", "randn", "rand_like", "randn_like", "bernoulli", "bernoulli_", "uniform_", "normal_", "normal", "uniform",
    "exponential_", "geometric_", "cauchy_", "log_normal_", "normal_functional", "poisson", "multinomial"
})  # fmt: skip


class HigherPrecision(TorchDispatchMode):
    """Every floating result is fp64, whatever dtype it is asked for in. Forward and backward belong inside.

    Autocast and compiled functions are off inside, and the default dtype is fp64, so that ``torch.arange(4) / 3`` is.

    Args:
        home: the floating dtype of the low-precision run: random numbers are drawn in it.
    """

    def __init__(self, home: torch.dtype = torch.float32) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.home = home
        self.narrow: Counter[str] = Counter()
        """By op: how many calls ran in lower precision, for want of an fp64 kernel or to write a narrow tensor."""
        self._default = torch.float32
        self._outer: list[ExitStack] = []

    def __enter__(self) -> HigherPrecision:
        with ExitStack() as stack:
            self._default = torch.get_default_dtype()
            stack.callback(torch.set_default_dtype, self._default)
            torch.set_default_dtype(torch.float64)
            for device in _autocast_devices():
                stack.enter_context(torch.autocast(device, enabled=False))
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            super().__enter__()  # type: ignore[no-untyped-call]
            self._outer.append(stack.pop_all())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._outer.pop().close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if name in _DRAWS:
            return self._drawn(func, args, kwargs)
        if name == "native_dropout":
            return self._dropout(func, *args, **kwargs)
        if func.is_view:  # a view of a narrow tensor of the caller's must stay a view of it
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._written(func, args, kwargs)
        return self._computed(func, args, kwargs)

    def _computed(self, func: Any, args: Any, kwargs: Any) -> Any:
        wide_args, wide_kwargs = _pytree.tree_map(_wide_value, (args, kwargs))
        try:
            return _pytree.tree_map(_wide_value, func(*wide_args, **wide_kwargs))
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            for dtype in dict.fromkeys((torch.float32, self.home)):
                found, result = _attempt(func, *_pytree.tree_map(_narrow_to(dtype), (args, kwargs)))
                if found:
                    self.narrow[str(func)] += 1
                    return _pytree.tree_map(_wide_value, result)
            raise

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op that writes to its arguments: those keep their dtype, and the others follow them."""
        targets = _written_tensors(func, args, kwargs)
        narrow = [t.dtype for t in targets if t.dtype in WIDER and not t.is_complex()]
        change = _narrow_to(narrow[0]) if narrow else _wide_value
        if narrow:
            self.narrow[str(func)] += 1
        kept = {id(t) for t in targets}
        args, kwargs = _pytree.tree_map(lambda v: v if id(v) in kept else change(v), (args, kwargs))
        return func(*args, **kwargs)

    def _drawn(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Random numbers: drawn in the dtype of the low-precision run, then widened."""
        change = _narrow_to(self.home)
        if func._schema.is_mutable:
            target, *rest = args
            drawn = torch.empty_like(target, dtype=self._home_of(target.dtype))
            func(drawn, *_pytree.tree_map(change, rest), **_pytree.tree_map(change, kwargs))
            return target.copy_(drawn)
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        args, given = _pytree.tree_map(lambda v: change(v) if isinstance(v, Tensor) else v, (args, dict(kwargs)))
        if not tensors and given.get("dtype") is None and any(a.name == "dtype" for a in func._schema.arguments):
            given["dtype"] = self._default
        return _pytree.tree_map(_wide_value, func(*args, **given))

    def _dropout(self, func: Any, x: Tensor, p: float, train: bool | None = None) -> tuple[Tensor, Tensor]:
        """Only the mask is taken from the kernel. On a GPU it depends on the dtype, for it is drawn per vector."""
        kept, mask = func(torch.ones_like(x, dtype=self._home_of(x.dtype)), p, train)
        del kept
        wide = _wide_value(x)
        if train is False:
            return wide.clone(), mask
        return wide * mask * (0.0 if p == 1 else 1 / (1 - p)), mask

    def _home_of(self, dtype: torch.dtype) -> torch.dtype:
        return self.home if dtype == torch.float64 else dtype


def _attempt(func: Any, args: Any, kwargs: Any) -> tuple[bool, Any]:
    try:
        return True, func(*args, **kwargs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):
        return False, None


def _autocast_devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = ["cpu", *([accelerator.type] if accelerator else [])]
    return [device for device in found if torch.amp.is_autocast_available(device)]


def _wide_value(value: Any) -> Any:
    """A tensor or a dtype in its wide form; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(WIDER[value.dtype]) if value.dtype in WIDER else value
    return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _narrow_to(dtype: torch.dtype) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        if isinstance(value, Tensor) and (value.dtype in WIDER or value.dtype == torch.float64):
            return value if value.is_complex() else value.to(dtype)
        if isinstance(value, Tensor) and value.dtype in _NARROWER:
            return value.to(_NARROWER[value.dtype])
        return dtype if value is torch.float64 else value

    return change


def _written_tensors(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def in_higher_precision(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    state: dict[str, Tensor] | None = None,
    mode: HigherPrecision | None = None,
) -> Any:
    """What ``target`` returns on fp64 copies of its floating tensors. Neither its arguments nor its state change.

    Args:
        target: a function of ``args`` and ``kwargs``, or a module, which runs with fp64 parameters and buffers in place
            of its own.
        args: positional arguments: anything that :func:`copies` takes.
        kwargs: likewise, by name.
        state: the parameters and buffers of a module, from :func:`wide_state`, where the caller needs their gradients;
            what the module writes to its buffers (running statistics) is seen in it.
        mode: tells afterwards which ops had no fp64 kernel.

    Raises:
        Exception: what ``target`` raises, for instance where it checks for a dtype.
    """
    given, named = copies((tuple(args), dict(kwargs or {})), wide_copy)
    with mode or HigherPrecision(home_of(target, args, kwargs)):
        if isinstance(target, nn.Module):
            return called_with(target, wide_state(target) if state is None else state, given, named)
        return target(*given, **named)


def wide_state(module: nn.Module) -> dict[str, Tensor]:
    """Copies of every parameter and buffer by name, floating ones in fp64.

    Parameters are leaves that require grad where the module's do. A shared one has several names and one copy.
    """
    return copies(named_state(module), wide_copy)  # type: ignore[no-any-return]


def named_state(module: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer by each of its names."""
    parameters = module.named_parameters(remove_duplicate=False)
    return dict([*parameters, *module.named_buffers(remove_duplicate=False)])


def called_with(module: nn.Module, state: dict[str, Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call ``module`` with ``state``, of :func:`wide_state`, for its own. Buffers that it sets come back in that."""
    return torch.func.functional_call(module, state, tuple(args), dict(kwargs), tie_weights=False)


def home_of(target: Any, *arguments: Any) -> torch.dtype:
    """The floating dtype that most parameters (or else arguments) have; fp32 where there is none."""
    tensors: Iterable[Any] = target.parameters() if isinstance(target, nn.Module) else ()
    for source in (tensors, _pytree.tree_leaves(arguments)):
        counted = Counter(t.dtype for t in source if isinstance(t, Tensor) and t.is_floating_point())
        if counted:
            return counted.most_common(1)[0][0]
    return torch.float32


def copies(
    value: Any, change: Callable[[Tensor], Tensor] | None = None, memo: dict[int, tuple[Any, Any]] | None = None
) -> Any:
    """``value`` with a copy of each tensor in it, also inside objects such as a KV cache, which a step would change.

    Args:
        value: arguments of a call. Modules, functions and what can't be copied stay the same objects.
        change: makes the copy of a tensor; :func:`copied_tensor` unless told.
        memo: objects that are already copied, by id; one object becomes one copy.
    """
    change, memo = change or copied_tensor, {} if memo is None else memo
    if id(value) in memo:
        return memo[id(value)][1]
    if isinstance(value, Tensor):
        made: Any = change(value)
    elif isinstance(value, tuple):
        items = [copies(item, change, memo) for item in value]
        made = type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    else:
        return _copied_object(value, change, memo)
    memo[id(value)] = (value, made)  # with the original: a freed one would give its id to another
    return made


def _copied_object(value: Any, change: Callable[[Tensor], Tensor], memo: dict[int, tuple[Any, Any]]) -> Any:
    if not (isinstance(value, (list, dict)) or hasattr(value, "__dict__")) or isinstance(value, _KEPT):
        return value
    try:
        made = copy.copy(value)
    except (TypeError, ValueError, RuntimeError):
        return value
    memo[id(value)] = (value, made)
    for key, item in parts(value):
        changed = copies(item, change, memo)
        if changed is item:
            continue
        if isinstance(key, str) and key.startswith("."):
            object.__setattr__(made, key[1:], changed)
        else:
            made[key] = changed
    return made


_KEPT = (nn.Module, type, ModuleType, FunctionType, MethodType)


def parts(value: Any) -> list[tuple[Any, Any]]:
    """What a container or an object holds: items by key or index, attributes by ``.name``."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        found += value.items()
    elif isinstance(value, (list, tuple)):
        found += enumerate(value)
    shown = {id(item) for _, item in found}  # an output class of transformers has each item as an attribute too
    attributes = getattr(value, "__dict__", {}) if not isinstance(value, _KEPT) else {}
    return found + [(f".{name}", item) for name, item in attributes.items() if id(item) not in shown]


def wide_copy(tensor: Tensor) -> Tensor:
    """:func:`copied_tensor` in fp64 (complex128), where the tensor is floating (complex)."""
    return copied_tensor(tensor, WIDER.get(tensor.dtype))


def copied_tensor(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A leaf with the same values, strides and ``requires_grad``."""
    source = tensor.detach()
    dtype = dtype or source.dtype
    if source.layout == torch.strided and source.numel() and type(source) in (Tensor, nn.Parameter):
        span = 1 + sum((size - 1) * stride for size, stride in zip(source.shape, source.stride(), strict=True))
        flat = source.as_strided((span,), (1,), source.storage_offset())
        made = flat.to(dtype, copy=True).as_strided(source.shape, source.stride())
    else:
        made = source.to(dtype, copy=True)
    return made.requires_grad_(tensor.requires_grad)
