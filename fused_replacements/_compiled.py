"""CPU kernels: the PyTorch compiler turns a reference into C++, once for each class of inputs, cached on disk.

A kernel is built for dtypes, ranks, the pattern of size-1 and contiguous dimensions and the constants; sizes stay
symbolic, so that a new sequence length compiles nothing, unless the definition asks about sizes and gets another
answer. ``torch.compile`` itself costs 15 to 40 µs a call for its guards; the inner graph is called here directly, which
costs about 5.

Inductor keeps what it built under ``TORCHINDUCTOR_CACHE_DIR``, so a second process links instead of compiling.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from fused_replacements._hoisted import hoist
from fused_replacements._sizes import Conditions

Argument = Any  # a tensor, a list of tensors, None, or a constant: float, int, bool, str, list of bool
Definition = Callable[..., Any]  # a plain PyTorch function of such arguments
Boxed = Callable[[list[Tensor]], Sequence[Tensor]]  # a compiled graph: it empties the list that it is given
Admits = Callable[[Sequence[Argument], int], bool]

SERIAL_ELEMENTS = 32768
"""At or below it a kernel runs on one thread: at::internal::GRAIN_SIZE of ATen's own elementwise loops."""

_lock = threading.RLock()
_UNKNOWN = object()


def leaves(arguments: Sequence[Argument]) -> list[Tensor]:
    """Every tensor of ``arguments`` in order, those in lists included."""
    found: list[Tensor] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found.extend(item for item in argument if isinstance(item, Tensor))
    return found


def with_leaves(arguments: Sequence[Argument], tensors: Sequence[Tensor]) -> list[Argument]:
    """``arguments`` with its tensors exchanged for ``tensors``, in order."""
    rest = iter(tensors)

    def exchanged(argument: Argument) -> Argument:
        if isinstance(argument, Tensor):
            return next(rest)
        if isinstance(argument, (list, tuple)):
            return [exchanged(item) for item in argument]
        return argument

    return [exchanged(argument) for argument in arguments]


def layout_class(tensor: Tensor) -> tuple[object, ...]:
    """What a kernel may rely on: dtype, which sizes are 1, which strides are 0 or 1, and whether all is contiguous."""
    contiguous = tensor.is_contiguous()
    ones = tuple(size == 1 for size in tensor.shape)
    strides = None if contiguous else tuple(min(stride, 2) for stride in tensor.stride())
    return (tensor.dtype, ones, strides)


def build(
    definition: Definition, arguments: Sequence[Argument], threads: int, *, exact: bool = False
) -> tuple[Boxed, Conditions]:
    """The compiled graph of ``definition`` for arguments of the class of these, on ``threads`` threads.

    With it come the conditions on sizes and strides under which it is right for others of the class. An ``exact`` one
    is right for these sizes only.

    Raises:
        Exception: whatever the compiler raises where it can't: no C++ compiler, an op that it doesn't know.
    """
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = definition(*with_leaves(arguments, tensors))
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        return tuple(output.contiguous() for output in outputs)

    with torch.no_grad():
        mode, fakes = _symbolic(leaves(arguments), exact=exact)
        # the mode is entered too: what a definition makes itself (arange, a scalar) must be fake as well
        with mode, torch._guards.tracing(torch._guards.TracingContext(mode)):
            graph = make_fx(flat, decomposition_table=select_decomp_table())(*fakes)
            if all(fake.device.type == "cpu" for fake in fakes):  # on a GPU it would be a kernel of its own
                hoist(graph)
            # the number of threads is part of the key of Inductor's own cache, the sizes at hand are not
            with config.patch({"cpp.threads": threads, "size_asserts": False}):
                compiled = compile_fx_inner(graph, fakes)
    inner = getattr(compiled, "current_callable", None)
    return inner if callable(inner) else compiled, Conditions(mode.shape_env, fakes)


def _symbolic(tensors: Sequence[Tensor], *, exact: bool = False) -> tuple[Any, list[Tensor]]:
    """Fake tensors whose sizes are symbols, but for sizes of 1: those are what broadcasts, and stay; or ``exact``."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False))

    def fake(tensor: Tensor) -> Tensor:
        dims = [DimDynamic.STATIC if exact or size == 1 else DimDynamic.DYNAMIC for size in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims, constraint_sizes=[None] * tensor.dim())
        return mode.from_tensor(tensor.detach(), symbolic_context=context)

    return mode, [fake(tensor) for tensor in tensors]


def _in_clean_thread(work: Callable[[], tuple[Boxed, Conditions]]) -> tuple[Boxed, Conditions]:
    """``work`` with none of the caller's thread-local state: modes, autocast, inference mode, skipped dispatch keys.

    All of those would otherwise be traced into the kernel that later callers share.
    """
    with warnings.catch_warnings(), ThreadPoolExecutor(1, "fused-replacements-build") as pool:
        warnings.simplefilter("ignore")  # what the compiler deprecates in itself is nothing to the caller
        return pool.submit(work).result()


def _described(argument: Argument) -> object:
    if type(argument) is list and (not argument or type(argument[0]) is bool):
        return tuple(argument)  # which gradients are wanted: every backward call has it
    if isinstance(argument, Tensor):
        return (argument.shape, argument.stride(), argument.dtype)
    return tuple(map(_described, argument)) if isinstance(argument, (list, tuple)) else argument


def shape_key(count: int) -> Callable[..., object]:
    """A function of (threads, ``count`` arguments) that gives a key of their shapes, strides, dtypes and constants.

    It runs at every call, so its source is written out for the number of arguments, as ``namedtuple`` does: a loop
    would cost 1 µs more.
    """
    names = [f"a{i}" for i in range(count)]
    tensor = "({0}.shape, {0}.stride(), {0}.dtype) if type({0}) in tensors"
    part = f"{tensor} else {{0}} if type({{0}}) in plain else described({{0}})"
    source = f"lambda threads, {', '.join(names)}: (threads, {', '.join(part.format(name) for name in names)})"
    scope = {
        "tensors": frozenset({Tensor, torch.nn.Parameter}),
        "plain": frozenset({type(None), float, int, bool, str, torch.dtype}),
        "described": _described,
    }
    key: Callable[..., object] = eval(source, scope)  # made of numbers only
    return key


def _class_part(argument: Argument) -> object:
    if isinstance(argument, Tensor):
        return layout_class(argument)
    if isinstance(argument, (list, tuple)):
        return tuple(map(_class_part, argument))
    return repr(argument)  # 1 and True are one key, and two constants


class Toolchain:
    """What the compiler needs of this machine. One mutable place: what isn't there is looked for once in a process."""

    failure: str | None = None
    """Why no kernel can be compiled at all: no C++ compiler, no directory for its files."""


def reason_of(error: BaseException) -> str:
    """What a compiler's error of many lines says, in one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    said = next((f": {line}" for line in lines[1:] if "error:" in line), "")
    return lines[0][:200] + said[:200]


def _is_of_toolchain(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return True
    from torch._inductor.exc import InductorError, InvalidCxxCompiler

    inner = error.inner_exception if isinstance(error, InductorError) else error
    return isinstance(inner, (OSError, InvalidCxxCompiler))


class CompiledKernels:
    """The compiled kernels of one definition, found by the shapes at hand, then by their class, then built.

    Args:
        definition: what they compute.
        count: how many arguments it has.
        admits: asked with arguments for which none of the kernels of their class is right, and how many those are;
            where it says no, none is built and the definition itself is to run.
        misfit: asked with arguments of new shapes; where it has a reason there is no kernel for them.
        examine: called with arguments of new shapes; it raises where the definition is not for them.
        exact: so many kernels are built for the very sizes at hand, before one is for all sizes.
    """

    def __init__(
        self,
        definition: Definition,
        count: int,
        admits: Admits | None = None,
        misfit: Callable[..., str | None] | None = None,
        examine: Callable[[Sequence[Argument]], None] | None = None,
        exact: int = 0,
    ) -> None:
        self._definition = definition
        self._admits = admits
        self._misfit = misfit
        self._examine = examine
        self._exact_left = exact
        self._given_up: set[object] = set()
        self._shapes_of = shape_key(count)
        self._by_shape: dict[object, Boxed | None] = {}
        self._by_class: dict[object, list[tuple[Boxed, Conditions]]] = {}

    def find(self, arguments: Sequence[Argument]) -> Boxed | None:
        """The kernel for ``arguments``, or None where the definition itself is to run.

        That is fp64, nothing to compute, what doesn't fit, isn't admitted or was given up. Raises what ``examine``
        and the compiler raise.
        """
        key = self._shapes_of(torch.get_num_threads(), *arguments)
        kernel = self._by_shape.get(key, _UNKNOWN)
        if kernel is _UNKNOWN:
            if self._examine is not None:
                self._examine(arguments)
            plain = any(tensor.dtype is torch.float64 or not tensor.numel() for tensor in leaves(arguments))
            unfit = self._misfit is not None and self._misfit(*arguments) is not None
            kernel = None if plain or unfit else self._of_class(arguments)
            if len(self._by_shape) > 4096:  # a generating loop meets a new length at every step
                self._by_shape.clear()
            self._by_shape[key] = kernel
        return kernel  # type: ignore[return-value]

    @property
    def built(self) -> int:
        """How many kernels there are: it must not grow with the sequence length."""
        return sum(map(len, self._by_class.values()))

    def give_up(self, arguments: Sequence[Argument]) -> None:
        """Compile nothing more for the class of ``arguments``: the definition takes them, the compiler doesn't."""
        self._given_up.add(self._class_key(arguments)[0])

    def _class_key(self, arguments: Sequence[Argument]) -> tuple[object, int]:
        """The class of ``arguments``, and the threads that a kernel for it runs on."""
        small = max((tensor.numel() for tensor in leaves(arguments)), default=0) <= SERIAL_ELEMENTS
        threads = 1 if small else torch.get_num_threads()
        return (threads, *map(_class_part, arguments)), threads

    def _of_class(self, arguments: Sequence[Argument]) -> Boxed | None:
        key, threads = self._class_key(arguments)
        tensors = leaves(arguments)
        with _lock:
            if key in self._given_up:
                return None
            known = self._by_class.setdefault(key, [])
            for kernel, conditions in known:
                if conditions.hold(tensors):
                    return kernel
            if self._admits is not None and not self._admits(arguments, len(known)):
                return None
            if self._exact_left:
                self._exact_left -= 1
                return self._built(arguments, threads, exact=True)[0]
            known.append(self._built(arguments, threads))
            return known[-1][0]

    def _built(
        self, arguments: Sequence[Argument], threads: int, *, exact: bool = False
    ) -> tuple[Boxed, Conditions]:  # fmt: skip
        if Toolchain.failure is not None:
            raise RuntimeError(Toolchain.failure)
        try:
            return _in_clean_thread(lambda: build(self._definition, arguments, threads, exact=exact))
        except Exception as error:
            if _is_of_toolchain(error):
                Toolchain.failure = reason_of(error)
            raise
