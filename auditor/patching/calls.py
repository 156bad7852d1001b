"""A call that could stand in for a region, and the counted form in which it enters a graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import checkpoint

PASSED_ON: tuple[type[Exception], ...] = (
    torch.OutOfMemoryError,  # the separate ops need as much and more
    *filter(None, [getattr(checkpoint, "_StopRecomputationError", None)]),  # no error: all that was lost is there again
)


@dataclass(frozen=True)
class Nested:
    """A call that makes an argument of another: a view, or an op that stays apart."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Proposal:
    """One way to compute a region.

    ``args`` and ``kwargs`` hold nodes of the FX graph, ``Nested`` calls and constants. ``results`` says for each
    output of the region which leaf of the result it is.
    """

    replacement: str
    provider: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: tuple[int, ...] = (0,)
    options: dict[str, Any] = field(default_factory=dict)
    """What tells it from other proposals of the same replacement, in words of the plan: ``cast: llama``."""
    tier: int = 2
    several: bool = False
    """The function returns a tuple."""
    faithful: bool = False
    """It rounds where the separate ops do."""
    buffers: tuple[tuple[fx.Node, ...], ...] = ()
    """Arguments that lie one behind the other in one buffer, once ``prepare`` was called."""
    prepare: Callable[[], Callable[[], None]] | None = None
    """What the live model needs for it; returns what undoes that."""

    def with_nodes(self, value_of: Callable[[fx.Node], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with each node exchanged for ``value_of(node)`` and nested calls made."""

        def made(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                return value_of(argument)
            if isinstance(argument, Nested):
                return argument.function(*map(made, argument.args))
            if isinstance(argument, (tuple, list)):
                return type(argument)(map(made, argument))
            return argument

        return tuple(map(made, self.args)), {name: made(value) for name, value in self.kwargs.items()}

    def run(self, value_of: Callable[[fx.Node], Any]) -> tuple[Any, ...]:
        """The outputs of the region, computed from the values of its inputs."""
        args, kwargs = self.with_nodes(value_of)
        result = self.function(*args, **kwargs)
        leaves = result if isinstance(result, (tuple, list)) else (result,)
        return tuple(leaves[i] for i in self.results)


class SiteCall:
    """The function of one site in a rewritten graph. It counts: applied but never called is an error.

    Where the function raises, the separate ops run in its place, as the model would without it; that is warned of once
    and kept in ``failure``. Only what the function itself computed counts as a call.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], separate: Callable[..., Any] | None = None,
        places: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.function, self.separate, self.places = function, separate, places
        self.calls = 0
        self.failure = ""
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    def __call__(self, inputs: tuple[Any, ...], *args: Any, **kwargs: Any) -> Any:
        """``inputs`` are the tensors that the separate ops read; the rest is the function's."""
        try:
            result = self.function(*args, **kwargs)
        except PASSED_ON:
            raise
        except Exception as error:  # whatever a provider raises
            if self.separate is None:
                raise
            self._warn(error)
            return self._in_form(self.separate(*inputs))
        self.calls += 1
        return result

    def _warn(self, error: Exception) -> None:
        text = str(error).splitlines()[0][:200] if str(error) else "no message"
        if not self.failure:
            self.failure = f"it failed when it ran: {type(error).__name__}: {text}"
            warnings.warn(f"{self.__name__}: {self.failure}; the separate ops ran in its place.", stacklevel=3)

    def _in_form(self, outputs: Any) -> Any:
        """``outputs`` of the region as the function would have returned them."""
        if self.places is None:
            return outputs[0] if isinstance(outputs, tuple) else outputs
        leaves: list[Any] = [None] * (max(self.places) + 1)
        for place, leaf in zip(self.places, outputs if isinstance(outputs, tuple) else (outputs,), strict=True):
            leaves[place] = leaf
        return tuple(leaves)


def nodes_of(argument: Any) -> Iterator[fx.Node]:
    """Every node that an argument of a proposal reads."""
    if isinstance(argument, fx.Node):
        yield argument
    elif isinstance(argument, Nested):
        yield from nodes_of(argument.args)
    elif isinstance(argument, (tuple, list)):
        for item in argument:
            yield from nodes_of(item)
    elif isinstance(argument, dict):
        yield from nodes_of(tuple(argument.values()))
