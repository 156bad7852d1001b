"""Cross entropy in Triton. Suffix ``_C``: a tile of the classes of one row.

Forward: one program walks over a row once, with the maximum and the sum kept online, and leaves the row's loss, what
the row counts in the mean, and the two statistics from which backward recovers probabilities. Backward is elementwise:
one program for each tile of a row. A program whose row is ignored reads no logits in either direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._activations import tanh
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, RowLaunch, on, row_launch

WIDEST_TRIP, HELD_FORWARD = 4096, 4
"""Columns of one trip of forward, and the arrays of them in registers: logits, two sums, and where smoothed a third."""
WIDEST_TILE, HELD_BACKWARD = 4096, 2
"""Columns of one program of backward, and its arrays: logits and their gradient."""


@triton.jit
def _capped(x_C, softcap, SOFTCAP: tl.constexpr):
    z_C = x_C.to(tl.float32)
    if SOFTCAP:
        z_C = tanh(z_C / softcap) * softcap
    return z_C


@triton.jit
def cross_entropy_forward(
    logits, target, weight, losses, shares, tops, logsums, classes, logits_stride, target_stride, ignore_index,
    softcap, smoothing,
    HAS_WEIGHT: tl.constexpr, SMOOTH: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    own = tl.load(target + row * target_stride)
    live = own != ignore_index
    inside = (own >= 0) & (own < classes)
    logits_row = logits + row * logits_stride
    top = tl.full([], float("-inf"), tl.float32)
    sum_C = tl.zeros([BLOCK], tl.float32)
    weighted_C = tl.zeros([BLOCK], tl.float32)
    weights_C = tl.zeros([BLOCK], tl.float32)
    for start in range(0, tl.where(live, classes, 0), BLOCK):
        column_C = start + tl.arange(0, BLOCK)
        x_C = tl.load(logits_row + column_C, mask=column_C < classes, other=float("-inf"))
        z_C = _capped(x_C, softcap, SOFTCAP)
        if SOFTCAP:
            z_C = tl.where(column_C < classes, z_C, float("-inf"))
        before, top = top, tl.maximum(top, tl.max(z_C, 0))
        shift = tl.where(top == float("-inf"), 0.0, top)  # nothing but −inf so far: −inf − (−inf) would be NaN
        sum_C = sum_C * tl.exp(before - shift) + tl.exp(z_C - shift)
        if SMOOTH:
            z_C = tl.where(column_C < classes, z_C, 0.0)
            if HAS_WEIGHT:
                weight_C = tl.load(weight + column_C, mask=column_C < classes, other=0.0).to(tl.float32)
                weights_C += weight_C
                z_C = tl.where(column_C < classes, z_C * weight_C, 0.0)
            weighted_C += z_C
    top = tl.where(live, top, 0.0)  # statistics of a row that was not read must be finite: backward multiplies by 0
    logsum = tl.log(tl.where(live, tl.sum(sum_C, 0), 1.0))
    at = tl.load(logits_row + own, mask=live & inside, other=0.0)
    loss = logsum - (_capped(at, softcap, SOFTCAP) - top)
    share = tl.where(live, 1.0, 0.0)
    total_weight = classes.to(tl.float32)
    if HAS_WEIGHT:
        share = tl.load(weight + own, mask=live & inside, other=0.0).to(tl.float32)
        loss = loss * share
        total_weight = tl.sum(weights_C, 0)
    if SMOOTH:
        far = total_weight * (logsum + top) - tl.sum(weighted_C, 0)
        loss = loss * (1.0 - smoothing) + far * (smoothing / classes)
    loss = tl.where(inside, loss, float("nan"))
    tl.store(losses + row, tl.where(live, loss, 0.0))
    tl.store(shares + row, share)
    tl.store(tops + row, top)
    tl.store(logsums + row, logsum)


@triton.jit
def cross_entropy_backward(
    grad, total, logits, target, weight, weights_sum, tops, logsums, dlogits, width, classes, grad_stride,
    logits_stride, target_stride, ignore_index, softcap, smoothing, share,
    BY_ROW: tl.constexpr, MEAN: tl.constexpr, HAS_WEIGHT: tl.constexpr, SOFTCAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """BY_ROW: ``grad`` is that of each row's loss, with 0 where it is ignored, and ``target`` may lie outside."""
    row = tl.program_id(0).to(tl.int64)
    column_C = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    own = tl.load(target + row * target_stride)
    scale = tl.load(grad + row * grad_stride).to(tl.float32)
    if not BY_ROW:
        if MEAN:
            scale = scale / tl.load(total)
        scale = tl.where((own >= 0) & (own < classes), scale, float("nan"))
        scale = tl.where(own == ignore_index, 0.0, scale)
    read_C = column_C < tl.where(scale != 0.0, width, 0)
    x_C = tl.load(logits + row * logits_stride + column_C, mask=read_C, other=0.0)
    z_C = _capped(x_C, softcap, SOFTCAP)
    probability_C = tl.exp(z_C - tl.load(tops + row) - tl.load(logsums + row))
    if HAS_WEIGHT:
        own_weight = tl.load(weight + own, mask=(own >= 0) & (own < classes), other=0.0).to(tl.float32)
        own_weight = own_weight * (1.0 - smoothing)
        all_weights = tl.load(weights_sum)
        weight_C = tl.load(weight + column_C, mask=column_C < width, other=0.0).to(tl.float32)
        dz_C = (probability_C - tl.where(column_C == own, 1.0, 0.0)) * own_weight
        dz_C += (probability_C * all_weights - weight_C) * share
    else:
        dz_C = (probability_C - tl.where(column_C == own, 1.0, 0.0)) * (1.0 - smoothing)
        dz_C += probability_C * smoothing - share
    dz_C = dz_C * scale
    if SOFTCAP:
        tanh_C = z_C / softcap
        dz_C = dz_C * (1.0 - tanh_C * tanh_C)
    dz_C = tl.where(read_C, dz_C, 0.0)
    tl.store(dlogits + row * width + column_C, dz_C, mask=column_C < width)


def refuses(logits: Tensor, *_: object) -> str | None:
    """Rows of the logits at no one stride."""
    return _layout.row_refusal(logits=logits)


def refuses_backward(grad: Tensor | None, logits: Tensor, *_: object) -> str | None:
    """As the forward."""
    return refuses(logits)


def refuses_columns(row_grad: Tensor, logits: Tensor, *_: object) -> str | None:
    """As the forward."""
    return refuses(logits)


def _launch(width: int, widest: int, held: int) -> RowLaunch:
    return row_launch(min(width, widest), held)


def forward(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, label_smoothing: float,
    softcap: float, dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, ``top`` and ``logsum`` of each row, and the total that the mean divides by."""
    rows, classes = logits.shape
    both = _layout.new(logits, (2, rows), torch.float32)
    top, logsum = (_layout.new(logits, (rows,), torch.float32) for _ in range(2))
    if rows:
        config = _launch(classes, WIDEST_TRIP, HELD_FORWARD)
        with on(logits):
            cross_entropy_forward[(rows,)](
                logits, target, weight, both[0], both[1], top, logsum, classes, _layout.row_stride(logits),
                target.stride(0), ignore_index, softcap, label_smoothing,
                HAS_WEIGHT=weight is not None, SMOOTH=label_smoothing > 0.0, SOFTCAP=softcap > 0.0,
                BLOCK=config.block, num_warps=config.warps,
            )  # fmt: skip
    sums = both.sum(1)
    total = sums[1].clone()
    if reduction == "none":
        return both[0].to(dtype, copy=True), top, logsum, total
    loss = sums[0] / total if reduction == "mean" else sums[0].clone()
    return loss.to(dtype), top, logsum, total


def backward(
    grad: Tensor, logits: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str,
    label_smoothing: float, softcap: float, dtype: torch.dtype, top: Tensor, logsum: Tensor, total: Tensor,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradient of the logits, in their dtype."""
    dlogits, (rows, classes) = _layout.new(logits), logits.shape
    if logits.numel():
        weights_sum = None if weight is None else weight.sum(dtype=torch.float32)
        config = _launch(classes, WIDEST_TILE, HELD_BACKWARD)
        with on(logits):
            cross_entropy_backward[(rows, triton.cdiv(classes, config.block))](
                grad, total, logits, target, weight, weights_sum, top, logsum, dlogits, classes, classes,
                grad.stride(0) if reduction == "none" else 0, _layout.row_stride(logits), target.stride(0),
                ignore_index, softcap, label_smoothing, label_smoothing / classes,
                BY_ROW=False, MEAN=reduction == "mean", HAS_WEIGHT=weight is not None, SOFTCAP=softcap > 0.0,
                BLOCK=config.block, num_warps=config.warps,
            )  # fmt: skip
    return [dlogits]


def columns_gradient(
    row_grad: Tensor, logits: Tensor, target: Tensor, top: Tensor, logsum: Tensor, softcap: float,
    label_smoothing: float, smooth_share: float,
) -> Tensor:  # fmt: skip
    """The gradient of some columns of the logits; ``target`` counts from the first of them."""
    dlogits, (rows, width) = _layout.new(logits), logits.shape
    if logits.numel():
        config = _launch(width, WIDEST_TILE, HELD_BACKWARD)
        with on(logits):
            cross_entropy_backward[(rows, triton.cdiv(width, config.block))](
                row_grad, None, logits, target, None, None, top, logsum, dlogits, width, width,
                row_grad.stride(0), _layout.row_stride(logits), target.stride(0), 0, softcap, label_smoothing,
                smooth_share,
                BY_ROW=True, MEAN=False, HAS_WEIGHT=False, SOFTCAP=softcap > 0.0,
                BLOCK=config.block, num_warps=config.warps,
            )  # fmt: skip
    return dlogits


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """A language model's loss, and one with soft-cap and label smoothing, both ways."""
    size = ELEMENT_BYTES[dtype]
    aligned = frozenset({"width", "classes", "logits_stride"}) if width % 16 == 0 else frozenset()
    for label, softcap, smooth in (("plain", False, False), ("soft-cap, smoothing", True, True)):
        ahead, behind = _launch(width, WIDEST_TRIP, HELD_FORWARD), _launch(width, WIDEST_TILE, HELD_BACKWARD)
        yield KernelCase(
            cross_entropy_forward,
            f"forward, {label}",
            {
                "logits": f"*{dtype}", "target": "*i64", "weight": None, "losses": "*fp32", "shares": "*fp32",
                "tops": "*fp32", "logsums": "*fp32", "classes": "i32", "logits_stride": "i64", "target_stride": "i64",
                "ignore_index": "i64", "softcap": "fp32", "smoothing": "fp32",
                "HAS_WEIGHT": False, "SMOOTH": smooth, "SOFTCAP": softcap, "BLOCK": ahead.block,
            },
            ahead.warps,
            loads=min(width, ahead.block) * size + size + 8,
            stores=16,
            aligned=aligned,
        )  # fmt: skip
        yield KernelCase(
            cross_entropy_backward,
            f"backward, {label}",
            {
                "grad": "*fp32", "total": "*fp32", "logits": f"*{dtype}", "target": "*i64", "weight": None,
                "weights_sum": None, "tops": "*fp32", "logsums": "*fp32", "dlogits": f"*{dtype}",
                "width": "i32", "classes": "i32", "grad_stride": "i64", "logits_stride": "i64", "target_stride": "i64",
                "ignore_index": "i64", "softcap": "fp32", "smoothing": "fp32", "share": "fp32",
                "BY_ROW": False, "MEAN": True, "HAS_WEIGHT": False, "SOFTCAP": softcap, "BLOCK": behind.block,
            },
            behind.warps,
            loads=min(width, behind.block) * size + 8 + 4 * 4,
            stores=min(width, behind.block) * size,
            aligned=aligned,
        )  # fmt: skip
