"""The questions that every ``supports`` asks. Each answers None or one clause, and never reads a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

FUSED_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


def first_reason(*reasons: str | None) -> str | None:
    """The first of ``reasons`` that is one."""
    return next((reason for reason in reasons if reason is not None), None)


def floating(**tensors: Tensor | None) -> str | None:
    """Every tensor has a dtype that kernels are built for."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FUSED_DTYPES:
            return f"{name} is {_name(tensor.dtype)}, and only {', '.join(map(_name, FUSED_DTYPES))} run fused"
    return None


def row_width(x: Tensor, **vectors: Tensor | None) -> str | None:
    """``x`` has a last dimension, and every vector has its size."""
    if x.dim() == 0:
        return "x is a scalar, and has no rows"
    for name, vector in vectors.items():
        if vector is not None and tuple(vector.shape) != (x.size(-1),):
            return f"{name} has shape {tuple(vector.shape)}, and the rows of x have {x.size(-1)} elements"
    return None


def same_shape(**tensors: Tensor | None) -> str | None:
    """All tensors have one shape: a broadcast operand would need strides that row kernels don't take."""
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, tensor in present[1:]:
        if tensor.shape != present[0][1].shape:
            return f"{name} has shape {tuple(tensor.shape)}, and {present[0][0]} {tuple(present[0][1].shape)}"
    return None


def broadcastable(**tensors: Tensor | None) -> str | None:
    """Every tensor can be broadcast to the shape of the first, or the first to theirs."""
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, tensor in present[1:]:
        pairs = zip(reversed(tensor.shape), reversed(present[0][1].shape), strict=False)
        if any(mine != its and 1 not in (mine, its) for mine, its in pairs):
            return f"{name} has shape {tuple(tensor.shape)}, and {present[0][0]} {tuple(present[0][1].shape)}"
    return None


def one_of(name: str, value: object, words: Sequence[str]) -> str | None:
    """``value``, of the argument ``name``, is one of ``words``."""
    if isinstance(value, str) and value in words:
        return None
    return f"{name} is {value!r}; it may be {', '.join(map(repr, words[:-1]))} or {words[-1]!r}"


def same_device(**tensors: Tensor | None) -> str | None:
    """All tensors lie on one device."""
    present = [(name, tensor) for name, tensor in tensors.items() if tensor is not None]
    for name, tensor in present[1:]:
        if tensor.device != present[0][1].device:
            return f"{name} is on {tensor.device}, and {present[0][0]} on {present[0][1].device}"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
