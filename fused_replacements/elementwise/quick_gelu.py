"""QuickGELU: ``x · sigmoid(1.702 · x)``, in one kernel.

Formula
-------
``y = x · sigmoid(1.702 · x)``, computed in fp32 and rounded once: eager code rounds three times in bf16.

Shapes and dtypes
-----------------
``x``: any shape (…, N); result the same, contiguous, in the dtype of ``x``. fp32, bf16 and fp16 fused, fp64 by the
reference. A contiguous tensor is read as one row, any other row by row at one stride.

Bytes moved
-----------
Forward: ``x`` read, ``y`` written: 2 accesses an element instead of 7 for the three kernels of the formula. Backward: 3
(the gradient and ``x`` read, one gradient written) instead of 11 or more. Only ``x`` is kept for backward; eager code
keeps the sigmoid too.

When it loses
-------------
At tiny shapes on a CPU, where the call costs more than three ATen kernels. After a linear layer ``linear_epilogue``
does it without a pass of its own, and ``torch.compile`` over the whole block fuses it as well.

Source
------
Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"; used by CLIP, and by what is built on it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fused_replacements import _activations
from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import first_reason, floating


def _definition(x: Tensor, activation: str) -> Tensor:
    return _activations.ACTIVATIONS[activation](wide(x)).to(x.dtype)


OP = FusedOp(
    "quick_gelu(Tensor x, str activation) -> Tensor",
    _definition,
    forward=Kernels("activation", "forward"),
    backward=Kernels("activation", "backward", "refuses_backward"),
)


def quick_gelu(x: Tensor) -> Tensor:
    """``x · sigmoid(1.702 · x)`` of ``x`` (…, N), in one kernel."""
    return OP(x, "quick_gelu")  # type: ignore[no-any-return]


def reference(x: Tensor) -> Tensor:
    """The definition, op by op."""
    return _definition(x, "quick_gelu")


def supports(x: Tensor) -> str | None:
    """None, or why this argument would not run fused."""
    return first_reason(floating(x=x), OP.refuses(x, "quick_gelu"))


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The output of an up projection, and with a dimension for heads or batch."""
    yield Sample("rows", (torch.randn(rows, width, dtype=dtype, device=device),))
    yield Sample("batch of rows", (torch.randn(2, rows, width, dtype=dtype, device=device),))


REPLACEMENT = Replacement(
    name="quick_gelu",
    family="elementwise",
    function=quick_gelu,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
