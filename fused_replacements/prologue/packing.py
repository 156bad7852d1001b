"""Weights in 8 and 4 bits: how they are rounded and laid out, and what the packed form stands for.

int8: one scale for each output feature (row), and one zero point where the rows are not centred.
int4: one scale, and one zero point, for each group of 32, 64 or 128 neighbours in a row. A byte holds element ``i`` of
a group in its low and element ``i + group/2`` in its high nibble: a kernel that reads neighbouring bytes then has two
runs of neighbouring elements, and no nibble has to change places.

The step is rounded to the dtype of the scales before the weights are divided by it, so that the error of a weight is at
most half a step, but for the largest of a row, which the rounding of the step may put up to 2⁻⁸ of itself out of reach.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fused_replacements._layout import wide

GROUPS: Final = (32, 64, 128)


class Int8Weight(NamedTuple):
    """A weight of (N, K) in 8 bits: ``(values - zero) · scale``."""

    values: Tensor
    """(N, K), int8."""
    scale: Tensor
    """(N,), floating."""
    zero: Tensor | None
    """(N,), int8, or None for 0."""


class Int4Weight(NamedTuple):
    """A weight of (N, K) in 4 bits: ``(nibble - zero) · scale``, the zero point 8 where none is stored."""

    packed: Tensor
    """(N, K/2), uint8."""
    scale: Tensor
    """(N, K/group), floating."""
    zero: Tensor | None
    """(N, K/group), uint8, 0 to 15, or None for 8."""

    @property
    def group(self) -> int:
        return 2 * self.packed.size(1) // max(1, self.scale.size(1))


def quantize_int8(weight: Tensor, *, symmetric: bool = True, scale_dtype: torch.dtype | None = None) -> Int8Weight:
    """``weight`` (N, K) rounded to int8, in the layout that ``int8_linear`` reads.

    Args:
        weight: finite, floating.
        symmetric: without a zero point, values from -127 to 127; else each row's own range on -128 to 127.
        scale_dtype: that of ``weight`` unless it is given.

    Raises:
        ValueError: ``weight`` is no matrix.
    """
    _matrix(weight)
    w = wide(weight.detach())
    low, high = _range(w)
    scale = _step(torch.maximum(-low, high) / 127 if symmetric else (high - low) / 255, scale_dtype or weight.dtype)
    steps = w / wide(scale)
    if symmetric:
        return Int8Weight(steps.round().clamp(-127, 127).to(torch.int8), scale.squeeze(-1), None)
    zero = (-128 - low / wide(scale)).round().clamp(-128, 127)
    return Int8Weight((steps + zero).round().clamp(-128, 127).to(torch.int8), scale[:, 0], zero[:, 0].to(torch.int8))


def dequantize_int8(
    values: Tensor, scale: Tensor, zero: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weight (N, K) that ``values`` stand for."""
    precision = torch.float64 if dtype is torch.float64 else torch.float32
    centred = values.to(precision) if zero is None else values.to(precision) - zero.to(precision)[:, None]
    return (centred * scale.to(precision)[:, None]).to(dtype)


def quantize_int4(
    weight: Tensor, group: int = 128, *, symmetric: bool = True, scale_dtype: torch.dtype | None = None
) -> Int4Weight:
    """``weight`` (N, K) rounded to 4 bits, in the layout that ``int4_linear`` reads.

    A K that is no multiple of ``group`` is padded with zeros; ``int4_linear`` pads its input to match.

    Args:
        weight: finite, floating.
        group: 32, 64 or 128 neighbours in a row share a scale.
        symmetric: without a zero point, values from -8 to 7; else each group's own range, 0 always in it.
        scale_dtype: that of ``weight`` unless it is given.

    Raises:
        ValueError: ``weight`` is no matrix, or ``group`` none of the three.
    """
    _matrix(weight)
    if group not in GROUPS:
        raise ValueError(f"group is {group}; it may be {', '.join(map(str, GROUPS))}")
    padded = F.pad(wide(weight.detach()), (0, -weight.size(1) % group))
    w = padded.unflatten(1, (padded.size(1) // group, group))
    low, high = _range(w)
    step = torch.maximum(-low / 8, high / 7) if symmetric else (high - low) / 15
    scale = _step(step, scale_dtype or weight.dtype)
    zero = torch.full_like(low, 8.0) if symmetric else (-low / wide(scale)).round().clamp(0, 15)
    nibbles = (w / wide(scale) + zero).round().clamp(0, 15).to(torch.uint8)
    kept = None if symmetric else zero.squeeze(-1).to(torch.uint8)
    return Int4Weight(pack_nibbles(nibbles), scale.squeeze(-1), kept)


def dequantize_int4(
    packed: Tensor, scale: Tensor, zero: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """The weight (N, K) that ``packed`` stands for, K padded to whole groups."""
    precision = torch.float64 if dtype is torch.float64 else torch.float32
    nibbles = unpack_nibbles(packed, scale.size(1)).to(precision)
    centred = nibbles - (8 if zero is None else zero.to(precision)[..., None])
    return (centred * scale.to(precision)[..., None]).flatten(1).to(dtype)


def pack_nibbles(nibbles: Tensor) -> Tensor:
    """(N, groups, group) of 0 to 15 to (N, K/2): a group's first half in the low nibbles, its second in the high."""
    low, high = nibbles.chunk(2, -1)
    return (low | (high << 4)).flatten(1)


def unpack_nibbles(packed: Tensor, groups: int) -> Tensor:
    """(N, K/2) to (N, groups, group) of 0 to 15."""
    pairs = packed.unflatten(1, (groups, packed.size(1) // max(1, groups)))
    return torch.cat([pairs & 15, pairs >> 4], -1)


def _matrix(weight: Tensor) -> None:
    if weight.dim() != 2 or not weight.is_floating_point():
        raise ValueError(f"a weight is a floating matrix, not {weight.dtype}{tuple(weight.shape)}")


def _range(w: Tensor) -> tuple[Tensor, Tensor]:
    """Least and greatest of each last dimension, 0 always between them, so that 0 is met exactly."""
    if not w.size(-1):
        w = w.new_zeros((*w.shape[:-1], 1))
    return w.amin(-1, keepdim=True).clamp(max=0), w.amax(-1, keepdim=True).clamp(min=0)


def _step(step: Tensor, dtype: torch.dtype) -> Tensor:
    """``step`` in ``dtype``, and 1 where it is 0: all elements are zero there, or too small for ``dtype``."""
    rounded = step.to(dtype)
    return torch.where(rounded > 0, rounded, torch.ones_like(rounded))
