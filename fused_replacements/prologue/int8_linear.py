"""Linear layer on an int8 weight: dequantised in the prologue of the product, so that int8 is what crosses memory.

Formula
-------
``y = x @ ((values - zero) · scale)ᵀ + bias``, one ``scale`` and ``zero`` for each output feature. ``quantize_int8``
makes the three from a float weight, with an error of half a step; ``dequantize_int8`` gives the weight back.

Shapes and dtypes
-----------------
``x``: (…, K), fp32, bf16 or fp16 (fp64 by the reference); ``values``: (N, K) int8; ``scale``: (N,) floating;
``zero``: (N,) int8 or None; ``bias``: (N,) or None; result: (…, N) in the dtype of ``x``. Under autocast ``x`` is cast.
Gradients to ``x`` and ``bias``; the weight is constant. The integers are multiplied as they are, exact in each dtype,
and the fp32 sum is scaled: more exact than a weight that is rounded to bf16 first.

Bytes moved
-----------
For each element of the weight: eager code reads 1 byte, writes and reads it as bf16: 5 bytes, 9 in fp32. Here 1,
forward and backward. With one row the weight is all there is to move: against a bf16 weight the product can
be twice as fast.

When it loses
-------------
From some hundred rows on the product is bound by arithmetic, not by the weight, and a dequantised weight in a vendor's
library is as fast or faster; on a CPU above 4 rows (16 in bf16) the weight is dequantised for each call.
``torch._weight_int8pack_mm`` is offered beside it (no zero point, K a multiple
of 32: with another K its bf16 result is wrong).

Source
------
Weight-only int8 as in LLM.int8 (Dettmers et al. 2022) and gpt-fast, without the outlier columns of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements import _layout
from fused_replacements._autocast import product_dtype
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, same_device
from fused_replacements.prologue._decode import FewRows
from fused_replacements.prologue.packing import Int8Weight, dequantize_int8, quantize_int8

__all__ = ["REPLACEMENT", "Int8Weight", "dequantize_int8", "int8_linear", "quantize_int8", "reference", "supports"]


def _definition(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    return F.linear(x, dequantize_int8(values, scale, zero, x.dtype), None if bias is None else bias.to(x.dtype))


def _few_rows(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    centred = values.float() if zero is None else values.float() - zero.float()[:, None]
    y = (x.float().unsqueeze(-2) * centred).sum(-1) * scale.float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


def _gradient(*arguments: Any) -> list[Tensor]:
    (grad,), (x, values, scale, zero, bias), _, needs = OP.split(arguments)
    found = [grad @ dequantize_int8(values, scale, zero, x.dtype)] if needs[0] else []
    if needs[1]:
        found.append(_layout.wide(grad).reshape(-1, grad.size(-1)).sum(0).to(bias.dtype))
    return found


def _fits(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> str | None:
    if values.dim() != 2 or values.dtype is not torch.int8:
        return f"values are {values.dtype} of {values.dim()} dimensions, not an int8 matrix"
    if zero is not None and zero.dtype is not torch.int8:
        return f"zero is {zero.dtype}, not int8"
    if x.dim() == 0 or x.size(-1) != values.size(1):
        return f"the rows of x have {x.size(-1) if x.dim() else 0} elements, and the weight takes {values.size(1)}"
    for name, vector in (("scale", scale), ("zero", zero), ("bias", bias)):
        if vector is not None and tuple(vector.shape) != (values.size(0),):
            return f"{name} has shape {tuple(vector.shape)}, and the weight {values.size(0)} output features"
    return None


def _check(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> None:
    reason = _fits(x, values, scale, zero, bias)
    if reason is not None:
        raise ValueError(reason)


_FEW: Final = FewRows(_few_rows, limit=4, arguments=5, misfit=_fits)
ROWS_OF_ATEN: Final = 16
"""In bf16 PyTorch's own kernel is the faster here, up to some dozens of rows (AVX-512); in fp32 it is the slower."""


def _on_cpu(x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    rows = _layout.rows(x)
    if 0 < rows <= ROWS_OF_ATEN and x.dtype is scale.dtype is torch.bfloat16 and _aten_takes(values, zero):
        return _torch(x, values, scale, None, bias)
    return _FEW.run(OP.forward, (x, values, scale, zero, bias), rows)


def _aten_takes(values: Tensor, zero: Tensor | None) -> bool:
    return zero is None and values.numel() > 0 and not values.size(1) % 32


OP = FusedOp(
    "int8_linear(Tensor x, Tensor values, Tensor scale, Tensor? zero, Tensor? bias) -> Tensor",
    _definition,
    forward=Kernels("int8_linear", "forward", cpu=_on_cpu),
    backward=Kernels("int8_linear", "backward", "refuses_backward"),
    gradient=_gradient,
    misfit=_fits,
    constant=("values", "scale", "zero"),
    discrete=("values", "zero"),
)


def int8_linear(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """``x`` (…, K) times the weight that ``values``, ``scale`` and ``zero`` stand for: (…, N).

    Raises:
        ValueError: the shapes don't fit.
    """
    dtype = product_dtype(x)
    if dtype is not None:
        x = x.to(dtype)
    if scale.requires_grad and torch.is_grad_enabled():
        _check(x, values, scale, zero, bias)
        y = _definition(x, values, scale, zero, bias)
        say_unfused("int8_linear", "the scale is learned")
        return y
    return OP(x, values, scale, zero, bias)  # type: ignore[no-any-return]


def reference(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The definition, op by op: the weight is dequantised to the dtype of ``x``, then multiplied."""
    return _definition(x, values, scale, zero, bias)


def supports(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        floating(x=x, scale=scale, bias=bias),
        same_device(x=x, values=values, scale=scale, zero=zero, bias=bias),
        _fits(x, values, scale, zero, bias),
        "the scale is learned" if scale.requires_grad and torch.is_grad_enabled() else None,
    ) or OP.refuses(x, values, scale, zero, bias)


def _torch_supports(
    x: Tensor, values: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> str | None:
    reason = supports(x, values, scale, zero, bias)
    if reason is not None:
        return reason
    if zero is not None:
        return "torch._weight_int8pack_mm has no zero point"
    if values.size(1) % 32:
        return f"torch._weight_int8pack_mm reads K in steps of 32, and K is {values.size(1)}"
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return "torch._weight_int8pack_mm has no gradient"
    if x.device.type != "cpu":
        return f"torch._weight_int8pack_mm is used on a CPU, and x is on {x.device}"
    return None


def _torch(x: Tensor, values: Tensor, scale: Tensor, zero: None = None, bias: Tensor | None = None) -> Tensor:
    y = torch._weight_int8pack_mm(x.reshape(-1, x.size(-1)).contiguous(), values.contiguous(), scale.to(x.dtype))
    y = y.view(*x.shape[:-1], values.size(0))
    return y if bias is None else y + bias


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """One weight of (width + 1, width): centred, with a zero point, with a bias, and with scales in fp32."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def weight(symmetric: bool, scale_dtype: torch.dtype = dtype) -> Int8Weight:
        offset = 0.0 if symmetric else 0.5
        return quantize_int8(
            random(width + 1, width) / max(1, width) ** 0.5 + offset, symmetric=symmetric, scale_dtype=scale_dtype
        )

    yield Sample("symmetric", (random(rows, width), *weight(True)))
    yield Sample("zero point", (random(rows, width), *weight(False), random(width + 1)))
    wide_scale = torch.float64 if dtype is torch.float64 else torch.float32
    yield Sample("fp32 scales, bias", (random(rows, width), *weight(True, wide_scale), random(width + 1)))
    yield Sample("two dimensions of rows", (random(rows, 2, width), *weight(True)))


REPLACEMENT = Replacement(
    name="int8_linear",
    family="prologue",
    function=int8_linear,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
