"""Bias and activation: ``act(x + bias)``, in one kernel.

Formula
-------
``y = act(x + bias)``, computed in fp32 and rounded once. ``act`` is one of ``gelu`` (BERT,
GPT-NeoX), ``gelu_tanh`` (GPT-2), ``relu`` (OPT),
``quick_gelu`` (CLIP), ``silu``, ``relu_squared``, ``sigmoid``, ``tanh``, ``identity``.

Shapes and dtypes
-----------------
``x``: (…, N), rows at any one stride; ``bias``: (N,); result (…, N), contiguous, in the promoted dtype. fp32, bf16 and
fp16 fused, fp64 by the reference. A bias of another shape runs fused on a CPU only. Gradients to both; that of the
bias, a sum over all rows, is accumulated in fp32 whatever its dtype, always in the same order.

Bytes moved
-----------
Forward: ``x`` read, ``y`` written: 2 accesses an element instead of 4. Backward: 3 (the gradient and ``x`` read, one
gradient written) instead of 4, as the sum for the bias is taken on the way; 1 less where ``x`` needs no gradient.
``x`` is kept for backward, where eager code keeps ``x + bias``: as much.

When it loses
-------------
Where ``x`` comes from a matrix product: ``addmm`` and ``linear_epilogue`` add the bias in its epilogue, and save the
pass altogether. At tiny shapes on a CPU the call costs more than two ATen kernels.

Source
------
Shoeybi et al. 2019, "Megatron-LM", where bias and GELU are one fused function.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fused_replacements._activations import ACTIVATIONS, activation_reason, find_activation
from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._registry import Replacement, Sample
from fused_replacements._supports import broadcastable, first_reason, floating, same_device


def _definition(x: Tensor, bias: Tensor, activation: str) -> Tensor:
    y = ACTIVATIONS[activation](wide(x) + wide(bias))
    return y.to(torch.promote_types(x.dtype, bias.dtype))


def _misfit(x: Tensor, bias: Tensor, *_: object) -> str | None:
    return broadcastable(x=x, bias=bias)


OP = FusedOp(
    "bias_act(Tensor x, Tensor bias, str activation) -> Tensor",
    _definition,
    forward=Kernels("bias_act", "forward"),
    backward=Kernels("bias_act", "backward", "refuses_backward"),
    misfit=_misfit,
)


def bias_act(x: Tensor, bias: Tensor, activation: str = "gelu") -> Tensor:
    """``activation(x + bias)`` for ``x`` (…, N) and ``bias`` (N,), in one kernel.

    Raises:
        ValueError: no activation is called so, or the shapes don't fit.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(activation_reason(activation))
    return OP(x, bias, activation)  # type: ignore[no-any-return]


def reference(x: Tensor, bias: Tensor, activation: str = "gelu") -> Tensor:
    """The definition, op by op."""
    find_activation(activation)
    return _definition(x, bias, activation)


def supports(x: Tensor, bias: Tensor, activation: str = "gelu") -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        activation_reason(activation),
        floating(x=x, bias=bias),
        same_device(x=x, bias=bias),
        _misfit(x, bias),
        OP.refuses(x, bias, activation),
    )


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The activations that models put after a bias."""
    for activation in ("gelu", "gelu_tanh", "relu", "quick_gelu"):
        x = torch.randn(rows, width, dtype=dtype, device=device)
        yield Sample(activation, (x, torch.randn(width, dtype=dtype, device=device), activation))


REPLACEMENT = Replacement(
    name="bias_act",
    family="elementwise",
    function=bias_act,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
)
