"""An activation times a second tensor of its size."""

from __future__ import annotations

from collections.abc import Iterator

from torch.nn.functional import gelu

from auditor.graph.nodes import Node
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.site import SiteView

_SPELLINGS = {
    "silu": ("silu",), "quick_gelu": ("quick_gelu",), "relu": ("relu",), "sigmoid": ("sigmoid",), "tanh": ("tanh",),
    "gelu": ("gelu", "gelu_tanh"),
}  # fmt: skip
"""Canonical kind to the names that the library has for it. The graph does not keep which gelu it is."""


def act_mul(view: SiteView) -> Iterator[Wanted]:
    """``activation(gate) · up``."""
    gate, up = view.tensor("gate"), view.tensor("up")
    results = view.results(view.sink())
    for name in _activations(view):
        yield Wanted("act_mul", (gate, up), {"activation": name}, results)


def _activations(view: SiteView) -> tuple[str, ...]:
    if view.has("inner"):
        return ("gelu_tanh",)
    if view.has("c_root_half"):
        return ("gelu",)
    return names_of(view, view.call("act")) if view.has("act") else ("silu",)


def names_of(view: SiteView, node: Node) -> tuple[str, ...]:
    """What the library may call the activation ``node``. Of the two gelus the FX node tells which."""
    names = _SPELLINGS.get(node.kind, ())
    called = view.node_of(node.op)
    if node.kind != "gelu" or called.target is not gelu:
        return names
    approximate = called.args[1] if len(called.args) > 1 else called.kwargs.get("approximate", "none")
    return ("gelu",) if approximate == "none" else ("gelu_tanh",)
