"""What the products with a weight of integers share: their launches, their backward and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._gemm import GemmLaunch, matrix_refusal, precision, strides
from fused_replacements.kernels._launch import on


def is_full(x: Tensor) -> bool:
    """Whether products of ``x`` are of full fp32: no tensor cores, and both operands of a trip in registers."""
    return x.dtype is torch.float32 and precision(x.dtype) == "ieee"


def refusal(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> str | None:
    """A weight, scale or zero point whose rows are not contiguous, or an input whose rows lie at no single stride."""
    return matrix_refusal(x=x) or _layout.row_refusal(weight=values, scale=scale, zero=zero, bias=bias)


def backward_refusal(
    dy: Tensor | None, x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None,
    needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As ``refusal``, and the incoming gradient has strides of its own."""
    return refusal(x, values, scale, zero, bias) or matrix_refusal(gradient=dy)


def launch(
    kernel: Any, tile: GemmLaunch, source: Tensor, operands: Sequence[Tensor | None], out: Tensor, depth: int,
    row_steps: Sequence[int], **constants: Any,
) -> Tensor:  # fmt: skip
    """``out`` of (…, columns), from ``source`` and ``operands``: the parts of the weight, and a bias.

    ``depth`` is what the product sums over, ``row_steps`` lead to the next row of each part of the weight.
    """
    rows, columns = _layout.rows(out), out.size(-1)
    if out.numel():
        with on(out):
            kernel[tile.grid(rows, columns)](
                source, *operands, out, rows, columns, depth, *strides(source), *row_steps,
                PRECISION=precision(source.dtype), **tile.constants, **constants, **tile.options,
            )  # fmt: skip
    return out


def gradients(
    dy: Tensor, bias: Tensor | None, needs: Sequence[bool], input_gradient: Callable[[], Tensor]
) -> list[Tensor]:
    """The gradients that ``needs`` asks for, of the input and of ``bias``."""
    found = [input_gradient()] if needs[0] else []
    if bias is not None and needs[1]:
        found.append(dy.reshape(-1, dy.size(-1)).sum(0, dtype=torch.float32).to(bias.dtype))
    return found
