"""Fused kernels for the operations that PyTorch models run as many small ones.

>>> from fused_replacements import rms_norm
>>> y = rms_norm(x, weight, eps=1e-6)

Each is a differentiable op that runs a Triton kernel on a GPU and a compiled kernel on a CPU, works eagerly and under
``torch.compile``, and never writes to its inputs. ``find(name)`` gives a replacement with its definition in plain
PyTorch and ``supports``, which says what it can't fuse, and why.
"""

from __future__ import annotations

from typing import Any

from fused_replacements._paths import HAVE_TRITON, Unfused, cpu_path
from fused_replacements._registry import HOME, Provider, Replacement, Sample, find, providers, replacements

__all__ = [
    "HAVE_TRITON",
    "Provider",
    "Replacement",
    "Sample",
    "Unfused",
    "cpu_path",
    "find",
    "providers",
    "replacements",
    *HOME,
]


def __getattr__(name: str) -> Any:
    if name in HOME:
        return find(name).function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
