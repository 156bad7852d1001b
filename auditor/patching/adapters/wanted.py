"""What an adapter yields."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Wanted:
    """A call of a replacement, whoever provides it. ``results``: which leaf of it each output of the region is."""

    replacement: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    results: tuple[int, ...] = (0,)
    faithful: bool = False
    """It rounds where the separate ops do: in 16 bits nearly every element must be the same."""

    @property
    def options(self) -> dict[str, Any]:
        """The constants among its keyword arguments: what tells it from the adapter's other calls."""
        plain = (int, float, str, bool)
        return {name: value for name, value in self.kwargs.items() if isinstance(value, plain)}
