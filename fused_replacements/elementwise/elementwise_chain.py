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

``Chain(fn, rows=True)`` takes reductions, softmax, norms, concatenations, rolls and flips as well. What is rolled is
compiled for the first sizes that come, as places modulo a known size are found twice as fast, and then for all.

Bytes moved
-----------
Each input read once, each output written once. A chain of n ops with one operand each moves 2n accesses an element; one
kernel moves 2. Backward reads the inputs and the gradients, recomputes what lies between, and writes one gradient each.
On a CPU a power, an exponential and the like of values that are broadcast are taken once and stored, before the loop.

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

import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements._paths import say_unfused
from fused_replacements._registry import Replacement, Sample
from fused_replacements.elementwise._chain import Chain

__all__ = ["REPLACEMENT", "Chain", "elementwise_chain", "reference", "samples", "supports"]

Function = Callable[..., Any]
MOST_CHAINS: Final = 512
"""Functions that ``elementwise_chain`` remembers; ``Chain`` objects are not counted."""

_lock = threading.Lock()
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
