"""The op of a chain: an op like any other, but that its definition is a user's, whom sizes may lead anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import _pytree

from fused_replacements._compiled import Admits, CompiledKernels
from fused_replacements._dispatched import Kernels, Op
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements.elementwise._chain_graph import Autocast, NotElementwise, chain_graph

Function = Callable[..., Any]
MOST_WAYS: Final = 8
"""Ways that one form may go by its sizes, at one layout."""

_numbers = itertools.count(1)


def of_tensors(fn: Function, constants: Sequence[Any], places: Sequence[int], autocast: Autocast) -> Function:
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


def _admits(name: str, function: Function, inputs: Function, rows: bool) -> Admits:
    """Looks at what a function that isn't ours does at new sizes, before it is compiled for them.

    ``inputs`` takes its tensors from the arguments of the op, or of the op of its gradient. Sizes that don't fit are
    left to the function itself, which raises what it raises.
    """

    def admits(arguments: Sequence[Any], known: int) -> bool:
        tensors = inputs(arguments)
        if not _fit(function, tensors):
            return False
        try:
            if known >= MOST_WAYS:
                raise NotElementwise(f"what it does depends on sizes, in more than {MOST_WAYS} ways")
            chain_graph(function, tensors, rows=rows)
        except NotElementwise as refusal:
            say_unfused(name, str(refusal))
            return False
        return True

    return admits


def _fit(function: Function, tensors: Sequence[Tensor]) -> bool:
    """Whether ``function`` takes tensors of these shapes."""
    shapes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta") for t in tensors]
    try:
        with torch.no_grad():
            function(*shapes)
    except (RuntimeError, ValueError, IndexError, TypeError):
        return False
    return True


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


def chain_op(
    name: str, definition: Function, places: Sequence[int], outputs: int, *, rows: bool, shifts: bool
) -> FusedOp:
    """The dispatcher's op of a chain whose arguments at ``places`` are tensors.

    One that ``shifts`` has places modulo a size in its loops: with the size known they are twice as fast.
    """
    arguments = ", ".join(f"Tensor x{i}" for i in places)
    results = "Tensor" if outputs == 1 else f"({', '.join(['Tensor'] * outputs)})"
    forward, backward = _Compiler("elementwise_chain", "forward"), _Compiler("elementwise_chain", "backward")
    schema = f"{name}_{next(_numbers)}({arguments}) -> {results}"
    op = FusedOp(schema, definition, forward=forward, backward=backward)
    op.forward.floating = ()  # the function may count, compare and choose
    forward.made.append(op.forward)
    backward.made.append(op.backward)
    exact = 1 if shifts else 0
    count, derived = len(op.backward.schema.arguments), op.backward.definition
    op.forward.compiled = CompiledKernels(
        definition, len(places), _admits(op.name, definition, list, rows), exact=exact
    )
    inputs = _admits(op.name, definition, lambda arguments: op.split(arguments)[1], rows)
    op.backward.compiled = CompiledKernels(derived, count, inputs, exact=exact)
    return op
