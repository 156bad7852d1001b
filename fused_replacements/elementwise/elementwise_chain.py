"""Elementwise chain: any function of elementwise ops as one kernel forward and one backward, made by the compiler.

Formula
-------
``elementwise_chain(fn, *arguments)`` is ``fn(*arguments)``. ``fn`` is a Python function or an ``fx.GraphModule`` of
tensors and numbers; its graph is traced once for each combination of dtypes, ranks and numbers, every op in it is
checked to be elementwise, and the whole is compiled: C++ on a CPU, Triton on a GPU. Backward is the derivative of
``fn``, compiled likewise. ``Chain(fn)`` is the prepared form: it keeps what was compiled, and looks up less.

Shapes and dtypes
-----------------
Any shapes that broadcast, at any strides; results are contiguous. Any dtypes; a call with fp64 runs as the reference.
Several outputs, in tuples, lists or dicts. Each distinct number among the arguments is compiled in: pass what changes
from call to call as a tensor of no dimensions. Under autocast the casts of the eager code are part of the kernel. Under
``torch.compile`` the function is inlined into the graph around it. Gradients to every tensor argument.

What isn't elementwise runs as it is, unfused, with one warning that names the op: reductions, products of matrices,
gathers, concatenations, random numbers, in-place ops, branches on values, and tensors that ``fn`` reads but doesn't
get as arguments (they would be frozen, and have no gradient). ``fn`` has to be pure: what it reads from outside, a
global number, is read once. Where it decides by sizes, as ``chunk`` does, a kernel is built for each way it goes.

Bytes moved
-----------
Each input read once, each output written once. A chain of n ops with one operand each moves 2n accesses an element; one
kernel moves 2. Backward reads the inputs and the gradients, recomputes what lies between, and writes one gradient each.

When it loses
-------------
Where an input is broadcast and learns, its gradient is a sum, which the compiler may put in a kernel of its own. Chains
of one op. On a CPU, chains whose time is a tanh: PyTorch's own comes from MKL and is faster than the compiler's vectors
(0.6 to 0.8 times eager, where chains of sigmoid, products and sums are 2.3 to 2.4 times as fast). At a few elements a
call costs some 5 µs over eager, with gradients 20 to 40. Functions made anew at each call (a lambda over a changing
number) are compiled for each number.

Source
------
PyTorch's Inductor compiler, called on the chain alone.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree

from fused_replacements._compiled import CompiledKernels, layout_class
from fused_replacements._dispatched import Kernels, Op
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements.elementwise._chain_graph import NotElementwise, Sizes, chain_graph

Function = Callable[..., Any]
MOST_FORMS: Final = 64
"""Combinations of dtypes, ranks and numbers that one chain is compiled for. Ops of the dispatcher are never freed."""
MOST_BRANCHES: Final = 8
"""Ways that one form may go by its sizes, at one layout."""
MOST_CHAINS: Final = 512
"""Functions that ``elementwise_chain`` remembers; ``Chain`` objects are not counted."""

_numbers = itertools.count(1)
_lock = threading.RLock()


class _Branches:
    """The ways that a function was seen to go, by layouts and sizes; each has kernels of its own."""

    def __init__(self, name: str, definition: Function) -> None:
        self._name, self._definition = name, definition
        self._seen: dict[object, list[Sizes]] = {}

    def of(self, tensors: Sequence[Tensor]) -> object | None:
        """Which way these tensors take, or None where the function itself has to run: it raises what it raises."""
        if not self._fit(tensors):
            return None
        layouts = tuple(map(layout_class, tensors))
        seen = self._seen.setdefault(layouts, [])
        for way, sizes in enumerate(seen):
            if sizes.broken(tensors) is None:
                return (layouts, way)
        try:
            if len(seen) >= MOST_BRANCHES:
                raise NotElementwise(f"what it does depends on sizes, in more than {MOST_BRANCHES} ways")
            seen.append(chain_graph(self._definition, tensors).sizes)
        except NotElementwise as refusal:
            say_unfused(self._name, str(refusal))
            return None
        return (layouts, len(seen) - 1)

    def _fit(self, tensors: Sequence[Tensor]) -> bool:
        shapes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]
        try:
            with torch.no_grad():
                self._definition(*shapes)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return False
        return True


class _BranchingKernels(CompiledKernels):
    """Compiled kernels of a function that isn't ours: compiled code looks at no sizes, so they are looked at first."""

    def __init__(self, definition: Function, count: int, branches: _Branches, inputs: Callable[..., Any]) -> None:
        super().__init__(definition, count)
        self._count, self._branches, self._inputs = count, branches, inputs
        self._by_way: dict[object, CompiledKernels] = {}

    @property
    def built(self) -> int:
        return sum(kernels.built for kernels in self._by_way.values())

    def _of_class(self, arguments: Sequence[Any]) -> Any:
        way = self._branches.of(self._inputs(arguments))
        if way is None:
            return None
        return self._by_way.setdefault(way, CompiledKernels(self._definition, self._count))._of_class(arguments)


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
    """

    def __init__(self, fn: Function) -> None:
        self.fn = fn
        self.name: Final = "elementwise_chain" + _slug(fn)
        self._forms: dict[object, _Form | _Refused] = {}

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.fn(*arguments)
        key = _key(arguments)
        form = self._forms.get(key)
        return self._first_call(key, arguments) if form is None else form(arguments)

    def supports(self, *arguments: Any) -> str | None:
        """None, or why these arguments would not run as one kernel. Reads no values; works on fake tensors."""
        form = self._forms.get(_key(arguments))
        if isinstance(form, _Refused):
            return form.reason
        try:
            chain_graph(self.fn, arguments, _autocast(arguments))
        except NotElementwise as refusal:
            return str(refusal)
        return None

    def ops(self) -> tuple[FusedOp, ...]:
        """The ops that were made so far: one for each combination of dtypes, ranks and numbers that was met."""
        return tuple(form.op for form in self._forms.values() if isinstance(form, _Form))

    def _first_call(self, key: object, arguments: Sequence[Any]) -> Any:
        with _lock:
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
            traced = chain_graph(self.fn, arguments, autocast)
        except NotElementwise as refusal:
            return _Refused(_described(self.name, self.fn), self.fn, str(refusal))
        places = tuple(i for i, argument in enumerate(arguments) if isinstance(argument, Tensor))
        constants = [None if i in places else argument for i, argument in enumerate(arguments)]
        op = _op(self.name, _of_tensors(self.fn, constants, places, autocast), places, len(traced.outputs))
        return _Form(op, places, None if traced.structure.is_leaf() else traced.structure)


def _of_tensors(
    fn: Function, constants: Sequence[Any], places: Sequence[int], autocast: tuple[str, torch.dtype] | None
) -> Function:
    """``fn`` of its tensors alone, with its outputs flat."""

    def definition(*tensors: Tensor) -> Any:
        arguments = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            arguments[place] = tensor
        if autocast is None:
            outputs = fn(*arguments)
        else:
            with torch.autocast(*autocast, cache_enabled=False):
                outputs = fn(*arguments)
        flat = _pytree.tree_leaves(outputs)
        return flat[0] if len(flat) == 1 else tuple(flat)

    return definition


@dataclass(frozen=True)
class _Compiler(Kernels):
    """What runs on a GPU: the compiler's kernel, as on a CPU. There it is Triton that the compiler writes."""

    made: list[Op] = field(default_factory=list)
    """The op, once there is one."""

    @property
    def launch(self) -> Function:
        return lambda *arguments: self.made[0].run_compiled(arguments)

    @property
    def refuses(self) -> Callable[..., str | None]:
        return lambda *_: None


def _op(name: str, definition: Function, places: Sequence[int], outputs: int) -> FusedOp:
    """The dispatcher's op of a chain whose arguments at ``places`` are tensors."""
    arguments = ", ".join(f"Tensor x{i}" for i in places)
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    forward, backward = _Compiler("elementwise_chain", "forward"), _Compiler("elementwise_chain", "backward")
    schema = f"{name}_{next(_numbers)}({arguments}) -> {results}"
    op = FusedOp(schema, definition, forward=forward, backward=backward)
    forward.made.append(op.forward)
    backward.made.append(op.backward)
    branches = _Branches(op.name, definition)
    op.forward.compiled = _BranchingKernels(definition, len(places), branches, list)
    derived = op.backward.definition, len(op.backward.schema.arguments)
    op.backward.compiled = _BranchingKernels(*derived, branches, lambda arguments: op.split(arguments)[1])
    return op


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


def _autocast(arguments: Sequence[Any]) -> tuple[str, torch.dtype] | None:
    """Device type and dtype of the autocast that is on, if one is."""
    if not torch._C._is_any_autocast_enabled():
        return None
    device: str = next((a.device.type for a in arguments if isinstance(a, Tensor)), "cpu")
    return (device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None


_chains: dict[object, Chain] = {}


def _identity(fn: Function) -> object:
    """Equal for two functions of the same code, closure and defaults: a lambda in a loop is compiled once.

    Code, and an object in a closure, count as themselves; the chain that is kept keeps them alive, so that an id stays
    what it is.
    """
    if type(fn) is not FunctionType:
        return fn
    if fn.__closure__ is None and fn.__defaults__ is None and fn.__kwdefaults__ is None:
        return (id(fn.__code__), id(fn.__globals__))
    try:
        held = [cell.cell_contents for cell in fn.__closure__ or ()]
    except ValueError:  # a cell that isn't filled yet
        return fn
    held += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    return (id(fn.__code__), id(fn.__globals__), *map(_value, held))


def _value(value: object) -> object:
    return (type(value), repr(value)) if isinstance(value, (int, float, str, type(None))) else id(value)


def _chain_of(fn: Function) -> Chain | None:
    identity = _identity(fn)
    chain = _chains.get(identity)
    if chain is None and len(_chains) < MOST_CHAINS:
        with _lock:
            chain = _chains.setdefault(identity, Chain(fn))
    return chain


def elementwise_chain(fn: Function, *arguments: Any) -> Any:
    """``fn(*arguments)`` as one kernel; see the module for what ``fn`` may do.

    Args:
        fn: a pure function of tensors and numbers.
        arguments: its arguments: tensors, numbers, None, strings.
    """
    if torch.compiler.is_compiling():
        return fn(*arguments)
    chain = _chain_of(fn)
    if chain is None:
        say_unfused("elementwise_chain", f"over {MOST_CHAINS} different functions were given to it")
        return fn(*arguments)
    return chain(*arguments)


def reference(fn: Function, *arguments: Any) -> Any:
    """The definition: ``fn`` itself."""
    return fn(*arguments)


def supports(fn: Function, *arguments: Any) -> str | None:
    """None, or why ``fn`` of these arguments can't be one kernel: the op and what is wrong with it."""
    return (_chains.get(_identity(fn)) or Chain(fn)).supports(*arguments)


def _scaled_tanh(x: Tensor) -> Tensor:
    return torch.tanh(x * 0.5 + 0.25) * 1.5


def _soft_cap(x: Tensor, cap: float) -> Tensor:
    return cap * torch.tanh(x / cap)


def _modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return x * (1 + scale) + shift


def _swish_by_hand(gate: Tensor, up: Tensor) -> Tensor:
    return gate * torch.sigmoid(gate) * up


def _residual_gate(x: Tensor, residual: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
    total = residual + x * torch.sigmoid(gate)
    return total, F.gelu(total)


def _masked(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, x.clamp(-2.0, 2.0), 0.0).nan_to_num()


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """Chains that models write: scalars, tensor operands, broadcast rows, a mask, two outputs."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    yield Sample("gate by hand", (_swish_by_hand, random(rows, width), random(rows, width)))
    yield Sample("scalars", (_scaled_tanh, random(rows, width)))
    yield Sample("soft cap", (_soft_cap, random(rows, width), 30.0))
    yield Sample("modulation", (_modulate, random(rows, width), random(rows, 1), random(rows, 1)))
    yield Sample("two outputs", (_residual_gate, random(rows, width), random(rows, width), random(rows, width)))
    yield Sample("masked", (_masked, random(rows, width), random(rows, width) > 0))


REPLACEMENT = Replacement(
    name="elementwise_chain",
    family="elementwise",
    function=elementwise_chain,
    reference=reference,
    supports=supports,
    samples=samples,
)
