"""The same calls by Liger-Kernel, where it is installed and computes the same (https://github.com/linkedin/Liger-Kernel).

Only names that take our arguments to Liger's public functions; a variant that Liger lacks has no figure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from replacement_calls import Call, Implementation

Arguments = Mapping[str, Any]


class Adapter(NamedTuple):
    function: str
    """In ``liger_kernel.transformers.functional``."""
    same: Callable[[Arguments], bool]
    """Whether Liger computes what these arguments ask for."""
    arguments: Callable[[Arguments], tuple[Any, ...]]


def _positive_norm(a: Arguments) -> bool:
    return a["weight"] is not None and a.get("gate") is None


ADAPTERS: Final[Mapping[str, tuple[Adapter, ...]]] = {
    "rms_norm": (
        Adapter(
            "liger_rms_norm",
            _positive_norm,
            lambda a: (a["x"], a["weight"], a["eps"], a["offset"], a["cast"], False),
        ),
    ),
    "add_rms_norm": (
        Adapter(
            "liger_fused_add_rms_norm",
            lambda a: _positive_norm(a) and a["x"].dtype == a["residual"].dtype,
            lambda a: (a["x"], a["residual"], a["weight"], a["eps"], a["offset"], a["cast"], False),
        ),
    ),
    "layer_norm": (
        Adapter(
            "liger_layer_norm",
            lambda a: a["weight"] is not None and a["bias"] is not None and not a["offset"] and a["cast"] == "torch",
            lambda a: (a["x"], a["weight"], a["bias"], a["eps"]),
        ),
    ),
    "act_mul": (
        Adapter(
            "liger_swiglu",
            lambda a: a["up"] is not None and a["activation"] == "silu",
            lambda a: (a["gate"], a["up"]),
        ),
        Adapter(
            "liger_geglu",
            lambda a: a["up"] is not None and a["activation"] == "gelu_tanh",
            lambda a: (a["gate"], a["up"]),
        ),
    ),
    "relu_squared": (Adapter("liger_relu_squared", lambda a: len(a) == 1, lambda a: tuple(a.values())),),
}
"""Softmax, rope and the losses are left out: Liger's take other arguments, or write to their inputs."""


def liger(call: Call) -> Implementation | None:
    """Liger's implementation of ``call``, which takes its arguments from there; None where there is none."""
    adapters = ADAPTERS.get(call.replacement.name, ())
    if not adapters or find_spec("liger_kernel") is None:
        return None
    bound = inspect.signature(call.replacement.function).bind(*call.sample.args, **call.sample.kwargs)
    bound.apply_defaults()
    for adapter in adapters:
        if adapter.same(bound.arguments):
            function = getattr(import_module("liger_kernel.transformers.functional"), adapter.function)
            arguments = adapter.arguments(bound.arguments)
            return lambda *_, **__: function(*arguments)
    return None
