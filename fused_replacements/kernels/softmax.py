"""Softmax in Triton. One program normalises one row; suffix ``_N``: a row of ``width`` elements, or a tile of it.

Rows up to WIDEST are held in registers. Wider ones are walked twice: forward finds the maximum and the sum online and
then writes, backward sums ``y · dy`` and then writes. A mask is addressed by its own strides, those of broadcast
dimensions being 0: dimensions before the keys that it strides over alike are folded into at most three.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on, row_launch

NO_MASK, ADDED, BOOLEAN = 0, 1, 2
WIDEST = 16384
"""Above it a row and its mask, or its gradient, no longer fit in the registers of one program."""
TILE, TILE_WARPS = 4096, 16
"""One trip over a wider row: 8 elements a thread, one 16-byte load in bf16; with 16 the backward from x spills."""
HELD_FORWARD, HELD_BACKWARD = 2, 4
"""Arrays of a row in registers at once: scores and mask, or the result, its gradient, their product and a mask."""


@triton.jit
def _mask_row(mask, row, size1, size2, stride0, stride1, stride2):
    index0 = row // (size1 * size2)
    index1 = row // size2 % size1
    return mask + index0 * stride0 + index1 * stride1 + row % size2 * stride2


@triton.jit
def _scores(
    x_row, mask_row, column_N, inside_N, last_key, scale, fill,
    MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """The scores of one row in fp32, and −inf outside of it."""
    s_N = tl.load(x_row + column_N, mask=inside_N, other=0.0).to(tl.float32) * scale
    if CAUSAL:
        s_N = tl.where(column_N <= last_key, s_N, fill)
    if MASK != 0:
        if MASK_KEYS:
            mask_N = tl.load(mask_row + column_N, mask=inside_N, other=0)
        else:
            mask_N = tl.load(mask_row)
        if MASK == 1:
            s_N = s_N + mask_N.to(tl.float32)
        else:
            s_N = tl.where(mask_N != 0, s_N, fill)
    return tl.where(inside_N, s_N, float("-inf"))


@triton.jit
def softmax_forward(
    x, mask, y, width, queries, x_stride, size1, size2, stride0, stride1, stride2, scale, fill,
    MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    last_key = row % queries + (width - queries)
    mask_row = mask
    if MASK != 0:
        mask_row = _mask_row(mask, row, size1, size2, stride0, stride1, stride2)
    s_N = _scores(x + row * x_stride, mask_row, column_N, inside_N, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL)
    e_N = tl.exp(s_N - tl.max(s_N, 0))
    tl.store(y + row * width + column_N, e_N / tl.sum(e_N, 0), mask=inside_N)


@triton.jit
def softmax_forward_looped(
    x, mask, y, width, queries, x_stride, size1, size2, stride0, stride1, stride2, scale, fill,
    MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    last_key = row % queries + (width - queries)
    mask_row = mask
    if MASK != 0:
        mask_row = _mask_row(mask, row, size1, size2, stride0, stride1, stride2)
    top = tl.full([], float("-inf"), tl.float32)
    sum_N = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        column_N = start + tl.arange(0, BLOCK)
        s_N = _scores(
            x + row * x_stride, mask_row, column_N, column_N < width, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL
        )
        before, top = top, tl.maximum(top, tl.max(s_N, 0))
        shift = tl.where(top == float("-inf"), 0.0, top)  # nothing but −inf so far: −inf − (−inf) would be NaN
        sum_N = sum_N * tl.exp(before - shift) + tl.exp(s_N - shift)
    total = tl.sum(sum_N, 0)
    for start in range(0, width, BLOCK):
        column_N = start + tl.arange(0, BLOCK)
        s_N = _scores(
            x + row * x_stride, mask_row, column_N, column_N < width, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL
        )
        tl.store(y + row * width + column_N, tl.exp(s_N - top) / total, mask=column_N < width)


@triton.jit
def _write_gradients(
    dx, ds, row, width, column_N, inside_N, ds_N, last_key, scale, mask_row,
    MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr, LEARNS_MASK: tl.constexpr,
):  # fmt: skip
    """What a mask replaced has no gradient, also where a row is NaN or its shares are equal."""
    dx_N = ds_N * scale
    if CAUSAL:
        dx_N = tl.where(column_N <= last_key, dx_N, 0.0)
    if MASK == 2:
        if MASK_KEYS:
            keep_N = tl.load(mask_row + column_N, mask=inside_N, other=0)
        else:
            keep_N = tl.load(mask_row)
        dx_N = tl.where(keep_N != 0, dx_N, 0.0)
    tl.store(dx + row * width + column_N, dx_N, mask=inside_N)
    if LEARNS_MASK:
        tl.store(ds + row * width + column_N, ds_N, mask=inside_N)


@triton.jit
def softmax_backward(
    dy, kept, mask, dx, ds, width, queries, dy_stride, kept_stride, size1, size2, stride0, stride1, stride2,
    scale, fill,
    UPCAST: tl.constexpr, MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    LEARNS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``kept`` is y, or where UPCAST x, from which y is computed again: in fp32, where the result was rounded."""
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    last_key = row % queries + (width - queries)
    kept_row, mask_row = kept + row * kept_stride, mask
    if MASK != 0:
        mask_row = _mask_row(mask, row, size1, size2, stride0, stride1, stride2)
    dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    if UPCAST:
        s_N = _scores(kept_row, mask_row, column_N, inside_N, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL)
        e_N = tl.exp(s_N - tl.max(s_N, 0))
        y_N = e_N / tl.sum(e_N, 0)
    else:
        y_N = tl.load(kept_row + column_N, mask=inside_N, other=0.0).to(tl.float32)
    ds_N = y_N * (dy_N - tl.sum(y_N * dy_N, 0))
    _write_gradients(
        dx, ds, row, width, column_N, inside_N, ds_N, last_key, scale, mask_row, MASK, MASK_KEYS, CAUSAL, LEARNS_MASK
    )


@triton.jit
def softmax_backward_looped(
    dy, kept, mask, dx, ds, width, queries, dy_stride, kept_stride, size1, size2, stride0, stride1, stride2,
    scale, fill,
    UPCAST: tl.constexpr, MASK: tl.constexpr, MASK_KEYS: tl.constexpr, CAUSAL: tl.constexpr,
    LEARNS_MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    last_key = row % queries + (width - queries)
    kept_row, mask_row = kept + row * kept_stride, mask
    if MASK != 0:
        mask_row = _mask_row(mask, row, size1, size2, stride0, stride1, stride2)
    top = tl.full([], float("-inf"), tl.float32)
    sum_N = tl.zeros([BLOCK], tl.float32)
    along_N = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        column_N = start + tl.arange(0, BLOCK)
        inside_N = column_N < width
        dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        if UPCAST:
            s_N = _scores(kept_row, mask_row, column_N, inside_N, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL)
            before, top = top, tl.maximum(top, tl.max(s_N, 0))
            shift = tl.where(top == float("-inf"), 0.0, top)
            e_N, shrink = tl.exp(s_N - shift), tl.exp(before - shift)
            sum_N = sum_N * shrink + e_N
            along_N = along_N * shrink + e_N * dy_N
        else:
            along_N += tl.load(kept_row + column_N, mask=inside_N, other=0.0).to(tl.float32) * dy_N
    total = tl.sum(sum_N, 0)
    along = tl.sum(along_N, 0)
    if UPCAST:
        along = along / total
    for start in range(0, width, BLOCK):
        column_N = start + tl.arange(0, BLOCK)
        inside_N = column_N < width
        dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
        if UPCAST:
            s_N = _scores(kept_row, mask_row, column_N, inside_N, last_key, scale, fill, MASK, MASK_KEYS, CAUSAL)
            y_N = tl.exp(s_N - top) / total
        else:
            y_N = tl.load(kept_row + column_N, mask=inside_N, other=0.0).to(tl.float32)
        _write_gradients(
            dx, ds, row, width, column_N, inside_N, y_N * (dy_N - along), last_key, scale, mask_row,
            MASK, MASK_KEYS, CAUSAL, LEARNS_MASK,
        )  # fmt: skip


class MaskLayout(NamedTuple):
    """Where the row of a mask starts: rows are counted in three sizes, of which the first is not needed."""

    size1: int
    size2: int
    stride0: int
    stride1: int
    stride2: int


def mask_layout(mask: Tensor) -> MaskLayout | None:
    """Folds the dimensions before the keys of an expanded mask; None where more than three remain."""
    folded: list[tuple[int, int]] = []  # (size, stride), innermost first
    for size, stride in zip(reversed(mask.shape[:-1]), reversed(mask.stride()[:-1]), strict=True):
        if folded and stride == folded[-1][0] * folded[-1][1]:
            folded[-1] = (folded[-1][0] * size, folded[-1][1])
        elif size != 1:
            folded.append((size, stride))
    if len(folded) > 3:
        return None
    (size2, stride2), (size1, stride1), (_, stride0) = (folded + [(1, 0)] * 3)[:3]
    return MaskLayout(size1, size2, stride0, stride1, stride2)


def _mask_code(mask: Tensor | None) -> int:
    return NO_MASK if mask is None else ADDED if mask.is_floating_point() else BOOLEAN


def refuses(x: Tensor, mask: Tensor | None, *_: object) -> str | None:
    """Rows of ``x`` at no one stride, or a mask whose rows three strides don't reach or whose keys don't lie together.

    ``mask`` is expanded to the shape of ``x``, as the op gets it.
    """
    reason = _layout.row_refusal(x=x)
    if reason is not None or mask is None or not x.numel():
        return reason
    if mask.stride(-1) not in (0, 1) and mask.size(-1) > 1:
        return f"the keys of mask do not lie together (strides {mask.stride()})"
    if mask_layout(mask) is None:
        return f"mask has more than three dimensions of rows that can't be folded (strides {mask.stride()})"
    return None


def refuses_backward(dy: Tensor | None, kept: Tensor, mask: Tensor | None, *_: object) -> str | None:
    """As the forward, and the incoming gradient has strides of its own."""
    return refuses(kept, mask) or _layout.row_refusal(gradient=dy)


def forward(
    x: Tensor, mask: Tensor | None, scale: float, causal: bool, fill: float, dtype: torch.dtype, *_: Any
) -> Tensor:
    """``y`` for ``x`` of (…, keys) and a mask expanded to that, in one launch."""
    y, width = _layout.new(x, dtype=dtype), x.size(-1)
    if not y.numel():
        return y
    mask_pointer, keys, layout = _mask_arguments(mask)
    kernel, block, warps = _shape_of_launch(width, softmax_forward, softmax_forward_looped, HELD_FORWARD)
    with on(x):
        kernel[(_layout.rows(x),)](
            x, mask_pointer, y, width, x.size(-2) if causal else 1, _layout.row_stride(x), *layout, scale, fill,
            MASK=_mask_code(mask), MASK_KEYS=keys, CAUSAL=causal, BLOCK=block, num_warps=warps, num_stages=1,
        )  # fmt: skip
    return y


def backward(
    dy: Tensor, y: Tensor, mask: Tensor | None, scale: float, causal: bool, fill: float, dtype: torch.dtype,
    x_dtype: torch.dtype, needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of ``x`` and of the expanded ``mask``, from the result ``y``."""
    return _gradients(dy, y, mask, scale, causal, fill, x_dtype, needs, upcast=False)


def backward_upcast(
    dy: Tensor, x: Tensor, mask: Tensor | None, scale: float, causal: bool, fill: float, dtype: torch.dtype,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The same from ``x``."""
    return _gradients(dy, x, mask, scale, causal, fill, x.dtype, needs, upcast=True)


def _gradients(
    dy: Tensor, kept: Tensor, mask: Tensor | None, scale: float, causal: bool, fill: float, dtype: torch.dtype,
    needs: Sequence[bool], upcast: bool,
) -> list[Tensor]:  # fmt: skip
    dx = _layout.new(kept, dtype=dtype)
    ds = _layout.new(kept, dtype=mask.dtype) if mask is not None and needs[1] else None
    width = kept.size(-1)
    if kept.numel():
        read = mask if upcast or _mask_code(mask) == BOOLEAN else None
        mask_pointer, keys, layout = _mask_arguments(read)
        kernel, block, warps = _shape_of_launch(width, softmax_backward, softmax_backward_looped, HELD_BACKWARD)
        with on(kept):
            kernel[(_layout.rows(kept),)](
                dy, kept, mask_pointer, dx, ds, width, kept.size(-2) if causal else 1,
                _layout.row_stride(dy), _layout.row_stride(kept), *layout, scale, fill,
                UPCAST=upcast, MASK=_mask_code(read), MASK_KEYS=keys, CAUSAL=causal, LEARNS_MASK=ds is not None,
                BLOCK=block, num_warps=warps, num_stages=1,
            )  # fmt: skip
    return [grad for grad, need in zip((dx, ds), needs, strict=True) if need and grad is not None]


def _mask_arguments(mask: Tensor | None) -> tuple[Tensor | None, bool, MaskLayout]:
    """The mask, whether its keys differ, and where its rows are."""
    if mask is None:
        return None, False, MaskLayout(1, 1, 0, 0, 0)
    layout = mask_layout(mask)
    assert layout is not None
    keys = mask.stride(-1) != 0 and mask.size(-1) > 1
    return mask, keys, layout


def _shape_of_launch(width: int, whole: Any, looped: Any, held: int) -> tuple[Any, int, int]:
    if width > WIDEST:
        return looped, TILE, TILE_WARPS
    config = row_launch(width, held)
    return whole, config.block, config.warps


_LAYOUT = {"size1": "i32", "size2": "i32", "stride0": "i64", "stride1": "i64", "stride2": "i64"}
_ALIGNED = frozenset({"width", "x_stride", "kept_stride", "dy_stride", "stride0", "stride1", "stride2"})


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """What attention layers run: a padding mask, and a boolean one with causality, in rows held whole and looped."""
    for looped in (False, True):
        for mask, causal in ((ADDED, False), (BOOLEAN, True)):
            yield _forward_case(width, dtype, mask, causal, looped)
        yield _backward_case(width, dtype, NO_MASK, False, looped, upcast=False)
        yield _backward_case(width, dtype, BOOLEAN, True, looped, upcast=False)
        yield _backward_case(width, dtype, ADDED, False, looped, upcast=True)


def _mask_of(mask: int, dtype: str) -> tuple[str | None, int]:
    """Type of the pointer, bytes of an element."""
    return {NO_MASK: (None, 0), ADDED: (f"*{dtype}", ELEMENT_BYTES[dtype]), BOOLEAN: ("*u8", 1)}[mask]


def _label(direction: str, mask: int, looped: bool) -> str:
    kind = {NO_MASK: "mask not read", ADDED: "added mask", BOOLEAN: "boolean and causal mask"}[mask]
    return f"{direction}, {kind}{', looped' if looped else ''}"


def _launch_of(width: int, looped: bool, held: int) -> tuple[int, int, int]:
    """Block, warps, and columns of one trip."""
    config = row_launch(width, held)
    return (TILE, TILE_WARPS, TILE) if looped else (config.block, config.warps, width)


def _forward_case(width: int, dtype: str, mask: int, causal: bool, looped: bool) -> KernelCase:
    block, warps, columns = _launch_of(width, looped, HELD_FORWARD)
    size, (mask_type, mask_size) = ELEMENT_BYTES[dtype], _mask_of(mask, dtype)
    return KernelCase(
        softmax_forward_looped if looped else softmax_forward,
        _label("forward", mask, looped),
        {
            "x": f"*{dtype}", "mask": mask_type, "y": f"*{dtype}", "width": "i32", "queries": "i32",
            "x_stride": "i64", **_LAYOUT, "scale": "fp32", "fill": "fp32",
            "MASK": mask, "MASK_KEYS": True, "CAUSAL": causal, "BLOCK": block,
        },
        warps,
        loads=columns * (size + mask_size) * (2 if looped else 1),  # a looped row is walked twice
        stores=columns * size,
        aligned=_ALIGNED if width % 16 == 0 else frozenset(),
    )  # fmt: skip


def _backward_case(width: int, dtype: str, mask: int, causal: bool, looped: bool, upcast: bool) -> KernelCase:
    block, warps, columns = _launch_of(width, looped, HELD_BACKWARD)
    size, (mask_type, mask_size) = ELEMENT_BYTES[dtype], _mask_of(mask, dtype)
    mask_reads = 2 if upcast and looped else 1
    return KernelCase(
        softmax_backward_looped if looped else softmax_backward,
        _label("backward from x" if upcast else "backward", mask, looped),
        {
            "dy": f"*{dtype}", "kept": f"*{dtype}", "mask": mask_type, "dx": f"*{dtype}", "ds": None,
            "width": "i32", "queries": "i32", "dy_stride": "i64", "kept_stride": "i64", **_LAYOUT,
            "scale": "fp32", "fill": "fp32",
            "UPCAST": upcast, "MASK": mask, "MASK_KEYS": True, "CAUSAL": causal, "LEARNS_MASK": False, "BLOCK": block,
        },
        warps,
        loads=columns * (2 * size * (2 if looped else 1) + mask_size * mask_reads),
        stores=columns * size,
        aligned=_ALIGNED if width % 16 == 0 else frozenset(),
    )  # fmt: skip
