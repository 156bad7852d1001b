"""Squared ReLU: ``relu(x)²``, in one kernel.

Formula
-------
``y = max(x, 0)²``, computed in fp32 and rounded once. A NaN stays a NaN.

Shapes and dtypes
-----------------
``x``: any shape (…, N); result the same, contiguous, in the dtype of ``x``. fp32, bf16 and fp16 fused, fp64 by the
reference. A contiguous tensor is read as one row, any other row by row at one stride.

Bytes moved
-----------
Forward: ``x`` read, ``y`` written: 2 accesses an element instead of 4 for ``F.relu(x).square()``. Backward: 3 (the
gradient and ``x`` read, one gradient written) instead of 6 to 8. Only ``x`` is kept for backward, where eager code
keeps the rectified tensor: as much.

When it loses
-------------
At tiny shapes on a CPU, where the call costs more than two ATen kernels. After a linear layer ``linear_epilogue`` does
it without a pass of its own, and ``torch.compile`` over the whole block fuses it as well.

Source
------
So et al. 2021, "Primer: Searching for Efficient Transformers for Language Modeling"; used by Nemotron and RWKV.
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
    "relu_squared(Tensor x, str activation) -> Tensor",
    _definition,
    forward=Kernels("activation", "forward"),
    backward=Kernels("activation", "backward", "refuses_backward"),
)


def relu_squared(x: Tensor) -> Tensor:
    """``max(x, 0)²`` of ``x`` (…, N), in one kernel."""
    return OP(x, "relu_squared")  # type: ignore[no-any-return]


def reference(x: Tensor) -> Tensor:
    """The definition, op by op."""
    return _definition(x, "relu_squared")


def supports(x: Tensor) -> str | None:
    """None, or why this argument would not run fused."""
    return first_reason(floating(x=x), OP.refuses(x, "relu_squared"))


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The output of an up projection, and with a dimension for heads or batch."""
    yield Sample("rows", (torch.randn(rows, width, dtype=dtype, device=device),))
    yield Sample("batch of rows", (torch.randn(2, rows, width, dtype=dtype, device=device),))


REPLACEMENT = Replacement(
    name="relu_squared",
    family="elementwise",
    function=relu_squared,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
