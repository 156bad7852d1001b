"""Strides: when the rows of a tensor can be walked by a kernel with one row stride, and new tensors for its outputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def row_stride(x: Tensor) -> int | None:
    """Elements from one row to the next, where ``x`` is read as (rows, width); None where no single number says it.

    A row is the last dimension, which must have stride 1. A slice of a wider tensor has such a stride, a transposed
    or broadcast tensor has not: a kernel would have to copy it.
    """
    if x.dim() == 0 or (x.stride(-1) != 1 and x.size(-1) > 1):
        return None
    if not x.numel():
        return x.size(-1)
    stride = expected = None
    for size, step in zip(reversed(x.shape[:-1]), reversed(x.stride()[:-1]), strict=True):
        if size == 1:
            continue
        if stride is None:
            stride = expected = step
        if step != expected:
            return None
        expected = step * size
    return x.size(-1) if stride is None else stride


def rows(x: Tensor) -> int:
    """How many rows ``x`` has: the product of all sizes but the last."""
    return x.numel() // x.size(-1) if x.size(-1) else 0


def row_refusal(**tensors: Tensor | None) -> str | None:
    """Why a row kernel can't read one of ``tensors`` without a copy, or None."""
    for name, tensor in tensors.items():
        if tensor is not None and row_stride(tensor) is None:
            return (
                f"the rows of {name} do not lie at one stride (shape {tuple(tensor.shape)}, strides {tensor.stride()})"
            )
    return None


def new(like: Tensor, shape: Sequence[int] | torch.Size | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """An output of a kernel: contiguous, on the device of ``like``. The one place where kernels allocate."""
    return torch.empty(like.shape if shape is None else shape, dtype=dtype or like.dtype, device=like.device)


def wide(x: Tensor) -> Tensor:
    """``x`` in the precision that a definition computes in: fp32, or fp64 where ``x`` is fp64."""
    return x if x.dtype is torch.float64 else x.float()
