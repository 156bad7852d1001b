"""Activation times: the gated half of SwiGLU, GEGLU and their kin, from two tensors or from one that holds both.

Formula
-------
``y = act(gate) · up``, computed in fp32 and rounded once. ``act`` is one of ``silu`` (Llama, Qwen,
Mistral), ``gelu`` (by erf: GEGLU of T5 v1.1 and of diffusers), ``gelu_tanh`` (Gemma), ``sigmoid`` (GLU), ``relu``
(ReGLU), ``relu_squared``, ``quick_gelu``, ``tanh`` and ``identity``. ``silu_mul`` and ``gelu_mul`` are short for
the usual ones.

Without ``up``, ``gate`` is packed: the halves of its last dimension are gate and up (Phi-3, merged gate_up
projections), or with ``gate_first=False`` up and gate (diffusers' GEGLU, ``F.glu``).

Shapes and dtypes
-----------------
``gate`` and ``up``: (…, N), or ``gate`` (…, 2·N) alone; result (…, N), contiguous, in the promoted dtype. fp32, bf16
and fp16 fused, fp64 by the reference. The rows of each may lie at any one stride: halves of a wider tensor are read in
place. Shapes that broadcast run fused on a CPU only. Gradients to both.

Bytes moved
-----------
Forward: gate and up read, the product written: 3 accesses an element instead of 5 for two kernels. Backward: 5 (the
gradient, gate and up read, two gradients written) instead of 8 to 10, as the activation is recomputed and never kept.
From a packed tensor the gradient is written packed: no ``cat``, and no zeros for the other half.

When it loses
-------------
At tiny shapes on a CPU, where the call costs more than two ATen kernels. Inside a graph that ``torch.compile``
compiles as a whole the compiler fuses it too, with its neighbours. On a GPU, where the projection that makes gate and
up is a GEMM of ours, its epilogue saves one more pass.

Source
------
Shazeer 2020, "GLU Variants Improve Transformer".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements._activations import ACTIVATIONS, activation_reason, find_activation
from fused_replacements._dispatched import Kernels
from fused_replacements._layout import wide
from fused_replacements._op import FusedOp
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import broadcastable, first_reason, floating, same_device


def _definition(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    product = ACTIVATIONS[activation](wide(gate)) * wide(up)
    return product.to(torch.promote_types(gate.dtype, up.dtype))


def _halves(packed: Tensor, gate_first: bool, half: int) -> tuple[Tensor, Tensor]:
    first, second = packed.narrow(-1, 0, half), packed.narrow(-1, half, half)
    return (first, second) if gate_first else (second, first)


def _packed_definition(packed: Tensor, activation: str, gate_first: bool) -> Tensor:
    return _definition(*_halves(packed, gate_first, packed.size(-1) // 2), activation)


def _misfit(gate: Tensor, up: Tensor, *_: object) -> str | None:
    return broadcastable(gate=gate, up=up)


OP = FusedOp(
    "act_mul(Tensor gate, Tensor up, str activation) -> Tensor",
    _definition,
    forward=Kernels("act_mul", "forward"),
    backward=Kernels("act_mul", "backward", "refuses_backward"),
    misfit=_misfit,
)


def _packed_gradient(
    grad: Tensor, packed: Tensor, activation: str, gate_first: bool, needs: Sequence[bool]
) -> list[Tensor]:
    """Both gradients side by side: derived from ``narrow``, each would be padded with zeros, and the two added."""
    # the width is the gradient's: to the compiler half of the other is a symbol of its own, and loops don't fuse
    gate, up = (half.detach() for half in _halves(packed, gate_first, grad.size(-1)))
    dgate, dup = OP.gradients([grad], [gate, up, activation], [True, True], False)
    return [torch.cat([dgate, dup] if gate_first else [dup, dgate], -1)]


PACKED = FusedOp(
    "act_mul_packed(Tensor gate, str activation, bool gate_first) -> Tensor",
    _packed_definition,
    forward=Kernels("act_mul", "forward_packed", "refuses_packed"),
    backward=Kernels("act_mul", "backward_packed", "refuses_packed_backward"),
    gradient=_packed_gradient,
)


def act_mul(gate: Tensor, up: Tensor | None = None, activation: str = "silu", *, gate_first: bool = True) -> Tensor:
    """``activation(gate) · up``, (…, N), in one kernel. Without ``up``, ``gate`` (…, 2·N) holds both halves.

    Raises:
        ValueError: no activation is called so, the shapes don't fit, or a packed tensor has no two halves.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(activation_reason(activation))
    if up is not None:
        return OP(gate, up, activation)  # type: ignore[no-any-return]
    if gate.dim() == 0 or gate.size(-1) % 2:
        raise ValueError(_no_halves(gate))
    return PACKED(gate, activation, gate_first)  # type: ignore[no-any-return]


def _no_halves(packed: Tensor) -> str | None:
    if packed.dim() and not packed.size(-1) % 2:
        return None
    return f"a packed tensor of shape {tuple(packed.shape)} has no two halves; its last size must be even"


def silu_mul(gate: Tensor, up: Tensor | None = None) -> Tensor:
    """``silu(gate) · up``: SwiGLU. Without ``up``, the halves of ``gate`` are gate and up."""
    return act_mul(gate, up, "silu")


def gelu_mul(gate: Tensor, up: Tensor | None = None, approximate: Literal["none", "tanh"] = "none") -> Tensor:
    """``gelu(gate) · up``: GEGLU, with ``approximate`` as in ``F.gelu``. Without ``up``, ``gate`` holds both halves.

    Raises:
        ValueError: ``approximate`` is neither.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is {approximate!r}; it may be 'none' or 'tanh'")
    return act_mul(gate, up, "gelu_tanh" if approximate == "tanh" else "gelu")


def reference(gate: Tensor, up: Tensor | None = None, activation: str = "silu", *, gate_first: bool = True) -> Tensor:
    """The definition, op by op."""
    find_activation(activation)
    return _packed_definition(gate, activation, gate_first) if up is None else _definition(gate, up, activation)


def supports(
    gate: Tensor, up: Tensor | None = None, activation: str = "silu", *, gate_first: bool = True
) -> str | None:
    """None, or why these arguments would not run fused."""
    if activation not in ACTIVATIONS:
        return activation_reason(activation)
    if up is None:
        return first_reason(
            floating(gate=gate),
            _no_halves(gate),
            PACKED.refuses(gate, activation, gate_first),
        )
    return first_reason(
        floating(gate=gate, up=up),
        same_device(gate=gate, up=up),
        _misfit(gate, up),
        OP.refuses(gate, up, activation),
    )


def _glu(gate: Tensor, *_: Any, **__: Any) -> Tensor:
    return F.glu(gate)


def _glu_supports(
    gate: Tensor, up: Tensor | None = None, activation: str = "silu", *, gate_first: bool = True
) -> str | None:
    if up is not None or gate_first or activation != "sigmoid":
        return "F.glu takes one packed tensor, up before gate, and knows sigmoid only"
    return supports(gate, up, activation, gate_first=gate_first)


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """The variants that models use: two tensors and packed, both orders, and the usual activations."""

    def random(size: int) -> Tensor:
        return torch.randn(rows, size, dtype=dtype, device=device)

    yield Sample("silu", (random(width), random(width)))
    yield Sample("gelu", (random(width), random(width), "gelu"))
    yield Sample("gelu_tanh", (random(width), random(width), "gelu_tanh"))
    yield Sample("silu, packed", (random(2 * width),))
    yield Sample("gelu, packed, up first", (random(2 * width), None, "gelu"), {"gate_first": False})
    yield Sample("sigmoid, packed, up first", (random(2 * width), None, "sigmoid"), {"gate_first": False})


REPLACEMENT = Replacement(
    name="act_mul",
    family="elementwise",
    function=act_mul,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP, PACKED),
    alternatives=(Provider("pytorch", _glu, _glu_supports),),
)
