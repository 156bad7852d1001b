"""What an adapter yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import fx


@dataclass(frozen=True)
class Wanted:
    """A call of a replacement, whoever provides it. ``results``: which leaf of it each output of the region is."""

    replacement: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: tuple[int, ...] = (0,)
    faithful: bool = False
    """It rounds where the separate ops do: in 16 bits nearly every element must be the same."""
    buffers: tuple[tuple[fx.Node, ...], ...] = ()
    """Arguments that lie one behind the other in one buffer, once ``prepare`` was called."""
    prepare: Callable[[], Callable[[], None]] | None = None
    """What the live model needs for it; returns what undoes that."""

    @property
    def options(self) -> dict[str, Any]:
        """The constants among its keyword arguments: what tells it from the adapter's other calls."""
        plain = (int, float, str, bool)
        return {name: value for name, value in self.kwargs.items() if isinstance(value, plain)}
