"""From what a rule matched to calls of the replacement that it names.

An adapter gets a :class:`~auditor.patching.site.SiteView` and yields calls that may compute the site. Where the graph
does not say which of several variants a model means (which gelu, where a norm goes back to bf16) it yields them all:
each is held against the site itself on random inputs, and only what agrees is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from auditor.patching.adapters import activations, linears, norms
from auditor.patching.adapters.attention import attention
from auditor.patching.adapters.losses import cross_entropy
from auditor.patching.adapters.rope import rope
from auditor.patching.adapters.softmax import softmax
from auditor.patching.adapters.wanted import Wanted
from auditor.patching.site import SiteView

Adapter = Callable[[SiteView], Iterator[Wanted]]

ADAPTERS: dict[str, Adapter] = {
    "rms_norm": norms.rms_norm,
    "add_rms_norm": norms.add_rms_norm,
    "layer_norm": norms.layer_norm,
    "softmax": softmax,
    "cross_entropy": cross_entropy,
    "rope": rope,
    "act_mul": activations.act_mul,
    "linear_epilogue": linears.linear_epilogue,
    "packed_linear": linears.packed_linear,
    "attention": attention,
}
"""By the name that a rule gives its replacement."""

__all__ = ["ADAPTERS", "Adapter", "Wanted"]
