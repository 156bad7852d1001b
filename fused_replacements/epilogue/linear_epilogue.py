"""Linear layer with its epilogue: bias, activation and residual are added while the product is still in registers.

Formula
-------
``y = activation(x @ Wᵀ + bias) + residual``; with ``conv1d`` the weight lies as in GPT-2's ``Conv1D``, and the product
is ``x @ W``. Activations: identity, relu, relu_squared, sigmoid, tanh, silu, gelu, gelu_tanh, quick_gelu. Bias and
residual may be left out. Bias, activation and residual are applied to the fp32 sum, which is rounded once.

Shapes and dtypes
-----------------
``x``: (…, K); ``weight``: (N, K), or (K, N) with ``conv1d``; ``bias``: (N,); ``residual``: (…, N), like the result. All
operands of the product have one dtype: fp32, bf16 or fp16, fp64 by the reference. The result has the promoted dtype of
``x`` and ``residual``. Rows and columns of ``x``, ``weight`` and ``residual`` may lie at any stride, if all rows lie at
one. Under autocast ``x``, ``weight`` and ``bias`` are cast, as ``F.linear`` casts them. Gradients to all four.

Bytes moved
-----------
Behind the product, for each element of the result: eager code writes it, reads and writes it for the activation, and
reads two and writes one for the residual: 6 accesses. Here 2: the residual read, the result written. For training the
pre-activation is written too, in the dtype of ``x``, as eager autograd keeps it: to recompute it would take the product
again, a third more arithmetic. Nothing is kept for ``identity``. Backward reads it and the gradient once, and sums the
bias gradient in fp32 in the same pass; eager reads the gradient once more for that. The residual's gradient is the
incoming one, not a copy.

When it loses
-------------
The product itself is Triton's, and a vendor's library can be faster on a shape that it is tuned for: one token with a
long K and a short N (there is no split along K), fp32 without TF32 (no matrix instructions). A wide K makes the
epilogue a small part of the whole: the gain is at most 4 accesses to K multiply-adds. PyTorch's own fused epilogue
(``torch._addmm_activation``, relu and gelu_tanh, no residual, no gradient) is offered beside it.
On a CPU inference runs oneDNN's linear with a post-op, where it has the activation, else and for training a product of
PyTorch and one compiled kernel behind it.

Source
------
Epilogues in registers as in CUTLASS, tiles in groups for the L2 cache as in Triton's tutorial on matrix products
(Tillet et al. 2019). ``Conv1D`` is the layer of GPT-2 (Radford et al. 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._activations import ACTIVATIONS, activation_reason, find_activation
from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import broadcastable, first_reason, floating, same_device

ONEDNN: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "identity": ("none", ""),
        "relu": ("relu", ""),
        "sigmoid": ("sigmoid", ""),
        "tanh": ("tanh", ""),
        "silu": ("swish", ""),
        "gelu": ("gelu", "none"),
        "gelu_tanh": ("gelu", "tanh"),
    }
)
"""The post-ops of oneDNN's linear by our names: its attribute and algorithm."""


def _definition(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, conv1d: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    z = F.linear(x, weight.t() if conv1d else weight, bias)
    y = ACTIVATIONS[activation](z)
    y = y if residual is None else y + residual
    return y, z if keep else x.new_empty(0)


def _gradient(*arguments: Any) -> list[Tensor]:
    """The slope on the kept pre-activation, then three products. Only what ``needs`` asks for."""
    (grad,), (x, weight, bias, _, activation, conv1d, keep), (kept,), needs = OP.split(arguments)
    z = kept if keep else F.linear(x, weight.t() if conv1d else weight, bias)
    wide = _slope_product(_layout.wide(grad), _layout.wide(z), activation)
    flat, dz = x.reshape(-1, x.size(-1)), wide.to(x.dtype).reshape(-1, wide.size(-1))
    gradients: list[Callable[[], Tensor]] = [
        lambda: (dz @ (weight.t() if conv1d else weight)).view(x.shape),
        lambda: flat.t() @ dz if conv1d else dz.t() @ flat,
        lambda: wide.reshape(dz.shape).sum(0).to(bias.dtype),
    ]
    return [gradient() for gradient, need in zip(gradients, needs, strict=True) if need]


def _slope_product(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    if activation == "identity":
        return grad
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (product,) = torch.autograd.grad(ACTIVATIONS[activation](z), z, grad)
    return product


def _on_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, conv1d: bool, keep: bool
) -> tuple[Tensor, Tensor]:
    """oneDNN's product with its post-op, where there is one and it is the faster; else the compiled definition."""
    laid = weight.t() if conv1d else weight
    if not keep and _onednn_serves(x, residual, activation):
        if residual is None:
            attribute, algorithm = ONEDNN[activation]
            y = torch.ops.mkldnn._linear_pointwise(x, laid, bias, attribute, [], algorithm)
        else:
            y = torch.ops.mkldnn._linear_pointwise.binary(x, residual, laid, bias, "add")
        return y, x.new_empty(0)
    return OP.forward.run_compiled((x, weight, bias, residual, activation, conv1d, keep))  # type: ignore[no-any-return]


def _onednn_serves(x: Tensor, residual: Tensor | None, activation: str) -> bool:
    """In fp32 a single row is a product of MKL's, which oneDNN doesn't reach."""
    if not x.numel() or activation not in ONEDNN or not _onednn_has(x.dtype):
        return False
    if residual is not None and (activation != "identity" or residual.dtype is not x.dtype):
        return False
    return x.dtype is not torch.float32 or _layout.rows(x) > 1


def _onednn_has(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype is torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    if dtype is torch.float16:
        return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
    return dtype is torch.float32


def _misfit(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, _: str, conv1d: bool, *__: object
) -> str | None:
    return _fits(x, weight, bias, residual, conv1d)


OP = FusedOp(
    "linear_epilogue(Tensor x, Tensor weight, Tensor? bias, Tensor? residual, str activation, bool conv1d, bool keep)"
    " -> (Tensor, Tensor)",
    _definition,
    forward=Kernels("linear_epilogue", "forward", cpu=_on_cpu),
    backward=Kernels("linear_epilogue", "backward", "refuses_backward"),
    saved=1,
    gradient=_gradient,
    added="residual",
    misfit=_misfit,
)


def linear_epilogue(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "identity",
    *,
    residual: Tensor | None = None,
    conv1d: bool = False,
) -> Tensor:
    """``activation(x @ weightᵀ + bias) + residual`` for ``x`` of (…, K): the result is (…, N).

    Raises:
        ValueError: no activation has that name, or the shapes don't fit.
    """
    find_activation(activation)
    dtype = product_dtype(x)
    if dtype is not None:
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    keep = activation != "identity" and torch.is_grad_enabled() and _learns(x, weight, bias)
    if residual is None or (residual.shape[:-1] == x.shape[:-1] and residual.size(-1) == weight.size(-int(conv1d))):
        return OP(x, weight, bias, residual, activation, conv1d, keep)  # type: ignore[no-any-return]
    y: Tensor = OP(x, weight, bias, None, activation, conv1d, keep)
    if broadcastable(y=y, residual=residual) is not None:
        raise ValueError(_fits(x, weight, bias, residual, conv1d))
    return y + residual


def _learns(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)


def reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "identity",
    *,
    residual: Tensor | None = None,
    conv1d: bool = False,
) -> Tensor:
    """The definition, op by op, as models write it."""
    find_activation(activation)
    return _definition(x, weight, bias, residual, activation, conv1d, False)[0]


def supports(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "identity",
    *,
    residual: Tensor | None = None,
    conv1d: bool = False,
) -> str | None:
    """None, or why these arguments would not run fused."""
    keep = activation != "identity" and torch.is_grad_enabled() and _learns(x, weight, bias)
    return first_reason(
        activation_reason(activation),
        floating(x=x, weight=weight, bias=bias, residual=residual),
        same_device(x=x, weight=weight, bias=bias, residual=residual),
        _fits(x, weight, bias, residual, conv1d),
    ) or OP.refuses(x, weight, bias, residual, activation, conv1d, keep)


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, conv1d: bool) -> str | None:
    if x.dim() == 0 or weight.dim() != 2:
        return f"x has {x.dim()} dimensions and the weight {weight.dim()}"
    inputs, outputs = weight.shape if conv1d else reversed(weight.shape)
    if x.size(-1) != inputs:
        return f"the rows of x have {x.size(-1)} elements, and the weight takes {inputs}"
    if bias is not None and tuple(bias.shape) != (outputs,):
        return f"bias has shape {tuple(bias.shape)}, and the weight {outputs} output features"
    if residual is not None and tuple(residual.shape) != (*x.shape[:-1], outputs):
        return f"residual has shape {tuple(residual.shape)}, and the result {(*x.shape[:-1], outputs)}"
    if weight.dtype is not x.dtype or (bias is not None and bias.dtype is not x.dtype):
        return f"x is {x.dtype}, and the weight or bias is not"
    return None


def _torch_supports(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str = "identity",
    *,
    residual: Tensor | None = None,
    conv1d: bool = False,
) -> str | None:
    reason = supports(x, weight, bias, activation, residual=residual, conv1d=conv1d)
    if reason is not None:
        return reason
    if activation not in ("relu", "gelu_tanh") or bias is None:
        return "torch._addmm_activation has relu and the tanh form of gelu, behind a bias"
    if residual is not None:
        return "torch._addmm_activation adds no residual behind its activation"
    if torch.is_grad_enabled() and _learns(x, weight, bias):
        return "torch._addmm_activation has no gradient"
    return None


def _torch(
    x: Tensor, weight: Tensor, bias: Tensor, activation: str, *, conv1d: bool = False, residual: None = None
) -> Tensor:
    matrix = weight if conv1d else weight.t()
    y = torch._addmm_activation(bias, x.reshape(-1, x.size(-1)), matrix, use_gelu=activation == "gelu_tanh")
    return y.view((*x.shape[:-1], y.size(-1)))


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """Feed-forward and output layers of BERT, GPT-2, CLIP, ViT, T5 and Llama at a hidden size of ``width``."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def scaled(*shape: int) -> Tensor:
        return random(*shape) / float(max(1, width) ** 0.5)

    wide = 2 * width + 1
    x, weight, bias = random(rows, width), scaled(wide, width), random(wide)
    yield Sample("gelu", (x, weight, bias, "gelu"))
    yield Sample(
        "gelu_tanh, Conv1D", (random(rows, width), scaled(width, wide), random(wide), "gelu_tanh"), {"conv1d": True}
    )
    yield Sample("relu", (random(rows, width), scaled(wide, width), random(wide), "relu"))
    yield Sample("quick_gelu", (random(rows, width), scaled(wide, width), random(wide), "quick_gelu"))
    yield Sample("silu, no bias", (random(rows, width), scaled(wide, width), None, "silu"))
    yield Sample(
        "residual", (random(rows, width), scaled(width, width), random(width)), {"residual": random(rows, width)}
    )
    yield Sample(
        "gelu and residual, two dimensions of rows",
        (random(rows, 2, width), scaled(wide, width), random(wide), "gelu"),
        {"residual": random(rows, 2, wide)},
    )


REPLACEMENT = Replacement(
    name="linear_epilogue",
    family="epilogue",
    function=linear_epilogue,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
