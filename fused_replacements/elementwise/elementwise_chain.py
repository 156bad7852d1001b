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
gathers, concatenations, random numbers, in-place ops, branches on values or sizes, and tensors that ``fn`` reads but
doesn't get as arguments (they would be frozen, and have no gradient). ``fn`` has to be pure: what it reads from outside,
a global number, is read once.

Bytes moved
-----------
Each input read once, each output written once. A chain of n ops with one operand each moves 2n accesses an element; one
kernel moves 2. Backward reads the inputs and the gradients, recomputes what lies between, and writes one gradient each.

When it loses
-------------
Where an input is broadcast and learns, its gradient is a sum, which the compiler may put in a kernel of its own. Chains
of one op. A chain of expensive functions on few elements recomputes them in backward. Functions made anew at each call
(a lambda over a changing number) are compiled for each number.

Source
------
PyTorch's Inductor compiler, called on the chain alone.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils import _pytree

from fused_replacements._compiled import CompiledKernels
from fused_replacements._op import Composed, FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements.elementwise._chain_graph import NotElementwise, Sizes, chain_graph

Function = Callable[..., Any]
MOST_FORMS: Final = 64
"""Combinations of dtypes, ranks and numbers that one chain is compiled for. Ops of the dispatcher are never freed."""
MOST_CHAINS: Final = 512
"""Functions that ``elementwise_chain`` remembers; ``Chain`` objects are not counted."""

_numbers = itertools.count(1)
_lock = threading.RLock()


class _CheckedKernels(CompiledKernels):
    """Compiled kernels of a function that isn't ours. New shapes are looked at first: compiled code does not.

    None, for shapes that don't fit each other and for those where the function decides otherwise, makes the op run the
    function itself, which raises what it raises.
    """

    def __init__(self, name: str, definition: Function, count: int, sizes: Sizes) -> None:
        super().__init__(definition, count)
        self._name, self._sizes = name, sizes

    def _of_class(self, arguments: Sequence[Any]) -> Any:
        shapes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in arguments]
        try:
            with torch.no_grad():
                self._definition(*shapes)
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None
        reason = self._sizes.broken(arguments)
        if reason is not None:
            say_unfused(self._name, reason)
            return None
        return super()._of_class(arguments)


@dataclass(frozen=True)
class _Form:
    """A chain for one combination of dtypes, ranks and numbers."""

    op: FusedOp
    places: tuple[int, ...]
    """Which arguments are tensors."""
    sizes: Sizes
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
        say_unfused(self.name, self.reason)
        return self.function(*arguments)


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
        return self._form(arguments)(arguments)

    def supports(self, *arguments: Any) -> str | None:
        """None, or why these arguments would not run as one kernel. Reads no values; works on fake tensors."""
        form = self._forms.get(_key(arguments))
        if isinstance(form, _Form):
            return form.sizes.broken([arguments[i] for i in form.places])
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

    def _form(self, arguments: Sequence[Any]) -> _Form | _Refused:
        key = _key(arguments)
        form = self._forms.get(key)
        if form is None:
            with _lock:
                form = self._forms.get(key)
                if form is None:
                    form = self._forms[key] = self._prepared(arguments)
        return form

    def _prepared(self, arguments: Sequence[Any]) -> _Form | _Refused:
        if len(self._forms) >= MOST_FORMS:
            reason = f"it was called with over {MOST_FORMS} combinations of dtypes, ranks and numbers"
            return _Refused(self.name, self.fn, reason)
        autocast = _autocast(arguments)
        try:
            traced = chain_graph(self.fn, arguments, autocast)
        except NotElementwise as refusal:
            return _Refused(self.name, self.fn, str(refusal))
        places = tuple(i for i, argument in enumerate(arguments) if isinstance(argument, Tensor))
        constants = [None if i in places else argument for i, argument in enumerate(arguments)]
        op = _op(self.name, _of_tensors(self.fn, constants, places, autocast), places, len(traced.outputs), traced.sizes)
        return _Form(op, places, traced.sizes, None if traced.structure.is_leaf() else traced.structure)


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


def _op(name: str, definition: Function, places: Sequence[int], outputs: int, sizes: Sizes) -> FusedOp:
    """The dispatcher's op. ``Composed`` because the compiler serves every device; Triton's launchers are not asked."""
    made: list[FusedOp] = []
    arguments = ", ".join(f"Tensor x{i}" for i in places)
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    op = FusedOp(
        f"{name}_{next(_numbers)}({arguments}) -> {results}",
        definition,
        forward=Composed(lambda *a: made[0].forward.run_compiled(a)),
        backward=Composed(lambda *a: made[0].backward.run_compiled(a)),
    )
    made.append(op)
    op.forward.compiled = _CheckedKernels(op.name, definition, len(places), sizes)
    return op


def _slug(fn: Function) -> str:
    """What a profile shows of the name of ``fn``: nothing of a lambda's."""
    name = re.sub(r"\W", "", getattr(fn, "__name__", type(fn).__name__)).strip("_")
    return f"_{name}" if name and name != "lambda" else ""


def _key(arguments: Sequence[Any]) -> object:
    """Dtypes and ranks of tensors, types and values of the rest: 1, 1.0, True and -0.0 are four numbers."""
    parts: list[object] = [_autocast(arguments)]
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

    An object in a closure counts as itself; the chain that is kept keeps it alive, so that its id stays its own.
    """
    code = getattr(fn, "__code__", None)
    if code is None or getattr(fn, "__self__", None) is not None:
        return fn
    try:
        cells = [cell.cell_contents for cell in fn.__closure__ or ()]  # type: ignore[attr-defined]
    except ValueError:  # a cell that isn't filled yet
        return fn
    return (code, *map(_value, (*cells, *(fn.__defaults__ or ()))), id(fn.__globals__))  # type: ignore[attr-defined]


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
