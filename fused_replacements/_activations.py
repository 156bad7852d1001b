"""The activations that models use between their matrix products, by name, in plain PyTorch.

Each maps a tensor of any shape to one of the same shape, in the precision that it is given: a definition that has to
compute in fp32 widens first. ``kernels/_activations.py`` holds the same names for Triton.

Sources: GELU, Hendrycks and Gimpel (2016), with its tanh and its sigmoid (QuickGELU, as CLIP uses it) approximations;
SiLU, Elfwing et al. (2017); squared ReLU, So et al. (Primer, 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


def identity(x: Tensor) -> Tensor:
    """``x`` itself, not a copy."""
    return x


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return F.relu(x)


def relu_squared(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    return F.relu(x).square()


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return torch.tanh(x)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), also called swish."""
    return F.silu(x)


def gelu(x: Tensor) -> Tensor:
    """x · Φ(x), with the normal distribution's Φ by erf."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 · x³))), also called gelu_new and gelu_pytorch_tanh."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    """x · sigmoid(1.702 · x)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: Final[Mapping[str, Activation]] = MappingProxyType(
    {
        function.__name__: function
        for function in (identity, relu, relu_squared, sigmoid, tanh, silu, gelu, gelu_tanh, quick_gelu)
    }
)


def activation_reason(name: str) -> str | None:
    """None, or that no activation is called ``name``, with the names that there are."""
    return None if name in ACTIVATIONS else f"no activation is called {name!r}; there are {', '.join(ACTIVATIONS)}"


def find_activation(name: str) -> Activation:
    """The activation called ``name``. ValueError, which lists the names, where there is none."""
    try:
        return ACTIVATIONS[name]
    except KeyError:
        raise ValueError(activation_reason(name)) from None
