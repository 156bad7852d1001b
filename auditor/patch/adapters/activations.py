"""An activation times a second tensor of its size."""

from __future__ import annotations

from collections.abc import Iterator

from auditor.patch.adapters.wanted import Wanted
from auditor.patch.site import SiteView

_SPELLINGS = {
    "silu": ("silu",), "gelu": ("gelu", "gelu_tanh"), "quick_gelu": ("quick_gelu",), "relu": ("relu",),
    "sigmoid": ("sigmoid",),
}  # fmt: skip
"""Canonical kind to the names that the library has for it. The graph does not keep which gelu it is."""


def act_mul(view: SiteView) -> Iterator[Wanted]:
    """``activation(gate) · up``."""
    match = view.region.site.match
    assert match is not None
    gate, up = view.tensor("gate"), view.tensor("up")
    results = view.results(match.sink.outs[0])
    for name in _activations(view):
        yield Wanted("act_mul", (gate, up), {"activation": name}, results)


def _activations(view: SiteView) -> tuple[str, ...]:
    if view.has("inner"):
        return ("gelu_tanh",)
    if view.has("c_root_half"):
        return ("gelu",)
    if view.has("act"):
        return _SPELLINGS.get(view.call("act").kind, ())
    return ("silu",)
