"""Linear layer on a packed 4-bit weight: unpacked and scaled in the prologue of the product, group by group.

Formula
-------
``y = x @ ((nibbles - zero) · scale)ᵀ + bias``, one ``scale`` and ``zero`` for each group of 32, 64 or 128 neighbours in
a row of the weight; the zero point is 8 where none is given. ``quantize_int4`` packs a float weight, with an error of
half a step; ``dequantize_int4`` gives the weight back.

Shapes and dtypes
-----------------
``x``: (…, K), fp32, bf16 or fp16 (fp64 by the reference); ``packed``: (N, K/2) uint8, where a byte holds elements ``i``
(low nibble) and ``i + group/2`` (high) of its group; ``scale``: (N, K/group) floating; ``zero``: (N, K/group) uint8 or
None; ``bias``: (N,) or None; result: (…, N) in the dtype of ``x``. A K that is no multiple of the group is padded when
it is packed, and ``x`` keeps its K. Under autocast ``x`` is cast. Gradients to ``x`` and ``bias``.

Bytes moved
-----------
For each element of the weight: eager code reads half a byte, and writes and reads it as bf16, with its intermediates at
least 4.5 bytes. Here 0.5 and the scales (2 bytes a group), forward and backward. With one row the weight is all there
is to move: against a bf16 weight the product can be nearly four times as fast.

When it loses
-------------
From some hundred rows on the product is bound by arithmetic, and a dequantised weight in a vendor's library is as fast
or faster; on a CPU above 4 rows the weight is dequantised for each call. Groups of 32 make short products of 16: the
matrix units wait for scales. On a CPU ``torch.ops.aten._weight_int4pack_mm_for_cpu`` is offered beside it; the weight
is repacked for it once, and kept twice from then on.

Source
------
Group-wise 4-bit weights as in GPTQ (Frantar et al. 2022) and AWQ (Lin et al. 2023). The order of nibbles, half a group
apart, is this library's: it needs no shuffle in a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from fused_replacements import _layout
from fused_replacements._autocast import product_dtype
from fused_replacements._compiled import CompiledKernels, leaves
from fused_replacements._dispatched import Kernels
from fused_replacements._op import FusedOp
from fused_replacements._paths import say_unfused
from fused_replacements._registry import Provider, Replacement, Sample
from fused_replacements._supports import first_reason, floating, same_device
from fused_replacements.prologue._decode import FewRows
from fused_replacements.prologue.packing import GROUPS, Int4Weight, dequantize_int4, quantize_int4, unpack_nibbles

__all__ = ["REPLACEMENT", "Int4Weight", "dequantize_int4", "int4_linear", "quantize_int4", "reference", "supports"]


def _definition(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    weight = dequantize_int4(packed, scale, zero, x.dtype)[:, : x.size(-1)]
    return F.linear(x, weight, None if bias is None else bias.to(x.dtype))


def _few_rows(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """Whole groups only: the halves of a group meet the halves of ``x``, so that each byte is read once."""
    groups = scale.size(1)
    pairs = packed.unflatten(1, (groups, packed.size(1) // groups))
    centre = 8.0 if zero is None else zero.float()[..., None]
    low, high = (pairs & 15).float() - centre, (pairs >> 4).float() - centre
    halves = x.float().unflatten(-1, (groups, 2, packed.size(1) // groups)).unsqueeze(-4)
    products = (low * halves[..., 0, :] + high * halves[..., 1, :]) * scale.float()[..., None]
    y = products.sum((-1, -2))
    result: Tensor = (y if bias is None else y + bias.float()).to(x.dtype)
    return result


def _gradient(*arguments: Any) -> list[Tensor]:
    (grad,), (x, packed, scale, zero, bias), _, needs = OP.split(arguments)
    found = [grad @ dequantize_int4(packed, scale, zero, x.dtype)[:, : x.size(-1)]] if needs[0] else []
    if needs[1]:
        found.append(_layout.wide(grad).reshape(-1, grad.size(-1)).sum(0).to(bias.dtype))
    return found


def _fits(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> str | None:
    if packed.dim() != 2 or packed.dtype is not torch.uint8:
        return f"the packed weight is {packed.dtype} of {packed.dim()} dimensions, not a uint8 matrix"
    if scale.dim() != 2 or scale.size(0) != packed.size(0):
        return f"scale has shape {tuple(scale.shape)}, and the weight {packed.size(0)} output features"
    if zero is not None and (zero.dtype is not torch.uint8 or zero.shape != scale.shape):
        return f"zero is {zero.dtype}{tuple(zero.shape)}, not uint8{tuple(scale.shape)}"
    if bias is not None and tuple(bias.shape) != (packed.size(0),):
        return f"bias has shape {tuple(bias.shape)}, and the weight {packed.size(0)} output features"
    width, groups = 2 * packed.size(1), scale.size(1)
    if not groups or width % groups or width // groups not in GROUPS:
        return f"{width} input features in {groups} groups make no groups of {', '.join(map(str, GROUPS))}"
    if x.dim() == 0 or not width - width // groups < x.size(-1) <= width:
        return f"the rows of x have {x.size(-1) if x.dim() else 0} elements, and the packed weight {width}"
    return None


def _check(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> None:
    reason = _fits(x, packed, scale, zero, bias)
    if reason is not None:
        raise ValueError(reason)


_FEW: Final = FewRows(_few_rows, limit=4, arguments=5, misfit=_fits)


def _halves(packed: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weight as two of (N, K/2): the low nibbles of all groups, and the high; joined they would be strided."""
    pairs = packed.unflatten(1, (scale.size(1), packed.size(1) // scale.size(1)))
    centre, step = 8.0 if zero is None else zero.float()[..., None], scale.float()[..., None]
    low, high = ((nibbles.float() - centre) * step for nibbles in (pairs & 15, pairs >> 4))
    return low.to(dtype).flatten(1), high.to(dtype).flatten(1)


_HALVES: Final = CompiledKernels(_halves, 4)


def _compiled_halves(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None) -> Sequence[Tensor] | None:
    """The two halves, or None where no kernel can be had: then the op's compiled definition says why."""
    if x.dtype is torch.float64 or not x.numel() or not packed.numel():
        return None
    arguments = (packed, scale, zero, x.dtype)
    try:
        kernel = _HALVES.find(arguments)
    except Exception:  # the compiler raises many kinds; run_compiled meets the same, and says it
        return None
    return None if kernel is None else kernel(leaves(arguments))


def _padded(x: Tensor, packed: Tensor) -> Tensor:
    return F.pad(x, (0, 2 * packed.size(1) - x.size(-1))) if x.size(-1) != 2 * packed.size(1) else x


def _on_cpu(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None, bias: Tensor | None) -> Tensor:
    """Few rows by one reduction; more by one product for each half of the groups, into one sum."""
    rows = _layout.rows(x)
    if rows > _FEW.limit or x.size(-1) != 2 * packed.size(-1):  # of few whole rows new shapes are looked at
        _check(x, packed, scale, zero, bias)
    whole = _padded(x, packed)
    halves = _compiled_halves(x, packed, scale, zero) if rows > _FEW.limit else None
    if halves is None:
        return _FEW.run(OP.forward, (whole, packed, scale, zero, bias), rows)
    low, high = whole.reshape(rows, scale.size(1), 2, -1).unbind(2)
    first = F.linear(low.flatten(1), halves[0], None if bias is None else bias.to(x.dtype))
    return torch.addmm(first, high.flatten(1), halves[1].t()).view(*x.shape[:-1], packed.size(0))


def _backward_on_cpu(*arguments: Any) -> list[Tensor]:
    (grad,), (x, packed, scale, zero, bias), _, needs = OP.split(arguments)
    halves = _compiled_halves(x, packed, scale, zero) if needs[0] else None
    if halves is None or not grad.numel():
        found: list[Tensor] = OP.backward.run_compiled(arguments)
        return found
    flat = grad.reshape(-1, grad.size(-1))
    parts = [(flat @ half).unflatten(1, (scale.size(1), half.size(1) // scale.size(1))) for half in halves]
    whole = torch.stack(parts, 2).flatten(1)[:, : x.size(-1)]
    bias_gradient = [flat.float().sum(0).to(bias.dtype)] if needs[1] else []
    return [whole.contiguous().view(x.shape), *bias_gradient]


OP = FusedOp(
    "int4_linear(Tensor x, Tensor packed, Tensor scale, Tensor? zero, Tensor? bias) -> Tensor",
    _definition,
    forward=Kernels("int4_linear", "forward", cpu=_on_cpu),
    backward=Kernels("int4_linear", "backward", "refuses_backward", cpu=_backward_on_cpu),
    gradient=_gradient,
    misfit=_fits,
    exact=True,  # the slice of a wider weight would hide that they do not fit
    constant=("packed", "scale", "zero"),
    discrete=("packed", "zero"),
)


def int4_linear(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """``x`` (…, K) times the weight that ``packed``, ``scale`` and ``zero`` stand for: (…, N).

    Raises:
        ValueError: the shapes don't fit.
    """
    dtype = product_dtype(x)
    if dtype is not None:
        x = x.to(dtype)
    if scale.requires_grad and torch.is_grad_enabled():
        _check(x, packed, scale, zero, bias)
        y = _definition(x, packed, scale, zero, bias)
        say_unfused("int4_linear", "the scale is learned")
        return y
    return OP(x, packed, scale, zero, bias)  # type: ignore[no-any-return]


def reference(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The definition, op by op: the weight is dequantised to the dtype of ``x``, then multiplied."""
    _check(x, packed, scale, zero, bias)
    return _definition(x, packed, scale, zero, bias)


def supports(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> str | None:
    """None, or why these arguments would not run fused."""
    return first_reason(
        floating(x=x, scale=scale, bias=bias),
        same_device(x=x, packed=packed, scale=scale, zero=zero, bias=bias),
        _fits(x, packed, scale, zero, bias),
        "the scale is learned" if scale.requires_grad and torch.is_grad_enabled() else None,
    ) or OP.refuses(x, packed, scale, zero, bias)


def _torch_supports(
    x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None
) -> str | None:
    reason = supports(x, packed, scale, zero, bias)
    if reason is not None:
        return reason
    if x.device.type != "cpu":
        return f"_weight_int4pack_mm_for_cpu runs on a CPU, and x is on {x.device}"
    if packed.size(0) % 16 or x.size(-1) != 2 * packed.size(1):
        return "_weight_int4pack_mm_for_cpu takes a multiple of 16 output features, and whole groups"
    if torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad)):
        return "_weight_int4pack_mm_for_cpu has no gradient"
    return None


_repacked: Final = WeakTensorKeyDictionary()
"""A packed weight to its copy in PyTorch's layout, and what that was made from: tensors, their versions, a dtype."""


def _torch(x: Tensor, packed: Tensor, scale: Tensor, zero: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    weight, scale_and_zero = _in_torch_layout(packed, scale, zero, x.dtype)
    rows = x.reshape(-1, x.size(-1)).contiguous()
    group = x.size(-1) // scale.size(1)
    y = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, weight, group, scale_and_zero)
    y = y.view(*x.shape[:-1], packed.size(0))
    result: Tensor = y if bias is None else y + bias
    return result


def _in_torch_layout(packed: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The weight as ``_weight_int4pack_mm_for_cpu`` reads it: ``(q - 8) · scale + offset``; repacked once."""
    made_from = (*((id(t), t._version) for t in (packed, scale, zero) if t is not None), dtype)
    found = _repacked.get(packed)
    if found is None or found[0] != made_from:
        nibbles = unpack_nibbles(packed, scale.size(1)).flatten(1).int()
        offset = torch.zeros_like(scale) if zero is None else (8 - zero.to(scale.dtype)) * scale
        pair = torch.stack([scale.t(), offset.t()], -1).to(dtype).contiguous()
        found = (made_from, torch.ops.aten._convert_weight_to_int4pack_for_cpu(nibbles, 1), pair)
        _repacked[packed] = found
    return found[1], found[2]


def samples(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Iterator[Sample]:
    """One weight of (width + 1, width) for each group, with and without zero points; K is padded where it must be."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=dtype, device=device)

    def weight(group: int, symmetric: bool) -> Int4Weight:
        offset = 0.0 if symmetric else 0.5
        return quantize_int4(random(width + 1, width) / width**0.5 + offset, group, symmetric=symmetric)

    yield Sample("groups of 128", (random(rows, width), *weight(128, True)))
    yield Sample("groups of 64, zero points, bias", (random(rows, width), *weight(64, False), random(width + 1)))
    yield Sample("groups of 32", (random(rows, width), *weight(32, True)))
    yield Sample("groups of 32, zero points, two dimensions of rows", (random(rows, 2, width), *weight(32, False)))


REPLACEMENT = Replacement(
    name="int4_linear",
    family="prologue",
    function=int4_linear,
    reference=reference,
    supports=supports,
    samples=samples,
    ops=(OP,),
    alternatives=(Provider("pytorch", _torch, _torch_supports),),
)
