"""A call that could stand in for a region, and the counted form in which it enters a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import fx


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
    """The function of one site in a rewritten graph. It counts: applied but never called is an error."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.__name__ = self.__qualname__ = name
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.function(*args, **kwargs)


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
