"""What the library holds: one ``Replacement`` for each name that a rule can name, and who can provide it.

A replacement is its definition. An implementation of it is a ``Provider``: this library's op, PyTorch's own fused op,
or an installed package that announces itself under the entry-point group ``fused_replacements.providers``. Which one
is used is measured at the site; nothing here prefers one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Final, Literal

import torch

from fused_replacements._op import FusedOp

Family = Literal["reduction", "elementwise", "epilogue", "prologue", "horizontal", "algorithmic", "optimizer"]
PROVIDERS_GROUP: Final = "fused_replacements.providers"


@dataclass(frozen=True)
class Sample:
    """One call of a replacement: a variant that real models use, at a given size."""

    label: str
    """The variant, as the docs and tables name it: ``llama casting``, ``causal mask``."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Provider:
    """One implementation of a replacement, called with the replacement's own arguments."""

    name: str
    """``triton`` (this library), ``pytorch``, or the name of the package that it comes from."""
    function: Callable[..., Any]
    supports: Callable[..., str | None]
    """None, or why it can't take these arguments. It reads shapes, dtypes, strides and devices, never values."""


@dataclass(frozen=True)
class Replacement:
    """A fused implementation that a rule can name."""

    name: str
    family: Family
    function: Callable[..., Any]
    """What a user imports. It may be called with anything: what it can't fuse it runs as the reference, and says so."""
    reference: Callable[..., Any]
    """The definition in plain PyTorch, with the arguments of ``function``."""
    supports: Callable[..., str | None]
    """None, or why these arguments would not run fused."""
    samples: Callable[[int, int, torch.dtype, torch.device], Iterable[Sample]]
    """``(rows, width, dtype, device)`` to one call for each variant, with random weights."""
    ops: tuple[FusedOp, ...] = ()
    alternatives: tuple[Provider, ...] = ()
    """PyTorch's own fused ops that compute the same."""
    has_backward: bool = True

    @property
    def doc(self) -> str:
        """Its page: the docstring of the module that defines it."""
        return importlib.import_module(self.function.__module__).__doc__ or ""


HOME: Final[Mapping[str, str]] = {
    "rms_norm": "reduction",
    "add_rms_norm": "reduction",
    "layer_norm": "reduction",
    "add_layer_norm": "reduction",
    "softmax": "reduction",
    "cross_entropy": "reduction",
    "linear_cross_entropy": "reduction",
    "qk_norm_rope": "reduction",
    "act_mul": "elementwise",
    "relu_squared": "elementwise",
    "quick_gelu": "elementwise",
    "bias_act": "elementwise",
    "dropout_add": "elementwise",
    "rope": "elementwise",
    "elementwise_chain": "elementwise",
    "linear_epilogue": "epilogue",
    "int8_linear": "prologue",
    "int4_linear": "prologue",
    "packed_linear": "horizontal",
    "attention": "algorithmic",
    "flash_attention": "algorithmic",
    "fused_optimizer": "optimizer",
}
"""Family of each replacement. ``fused_replacements/<family>/<name>.py`` defines it."""


@cache
def find(name: str) -> Replacement:
    """The replacement called ``name``. KeyError, which lists the names, where there is none."""
    if name not in HOME:
        raise KeyError(f"no replacement is called {name!r}; there are {', '.join(HOME)}")
    module = importlib.import_module(f"fused_replacements.{HOME[name]}.{name}")
    replacement: Replacement = module.REPLACEMENT
    return replacement


def replacements() -> Iterator[Replacement]:
    """Every replacement, by family."""
    return (find(name) for name in HOME)


def providers(name: str) -> tuple[Provider, ...]:
    """Who can compute the replacement ``name``: this library first, then PyTorch, then installed packages.

    An entry point of the group ``fused_replacements.providers`` is named after the replacement, and loads a
    ``Provider``. One that fails to load is skipped with a warning: a broken package must not break a model.
    """
    _warn_of_unknown_names()
    replacement = find(name)
    own = Provider("triton", replacement.function, replacement.supports)
    return (own, *replacement.alternatives, *_installed(name))


@cache
def _warn_of_unknown_names() -> None:
    """Say, once, which installed providers are for no replacement that there is."""
    from fused_replacements._paths import warn_provider

    for entry in entry_points(group=PROVIDERS_GROUP):
        if entry.name not in HOME:
            warn_provider(entry.value, f"no replacement is called {entry.name!r}")


def _installed(name: str) -> Iterator[Provider]:
    from fused_replacements._paths import warn_provider

    for entry in entry_points(group=PROVIDERS_GROUP, name=name):
        try:
            loaded = entry.load()
        except Exception as error:  # whatever the other package raises on import
            warn_provider(entry.value, f"{type(error).__name__}: {error}")
            continue
        if isinstance(loaded, Provider):
            yield loaded
        else:
            warn_provider(entry.value, f"it is a {type(loaded).__name__}, not a fused_replacements.Provider")
