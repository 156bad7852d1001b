"""RMS norm of every head of q and k, then the rotary embedding, in Triton.

Suffixes: ``_T`` heads of one tile, ``_H`` half of the rotated columns, ``_P`` columns that pass unrotated; each padded
to a power of 2. A head lies in registers as its first half, its second half and the rest, so that the rotation pairs
registers of one thread and needs no second load.

A forward program has one place (a position of one sequence): it loads cos and sin once, and walks over tiles of the
heads of q, then of k. A backward program belongs to q or to k, walks over places, and keeps its part of the gradient of
the weight in fp32 registers. The parts are summed in a fixed order, so that the result is the same in every run.
Head size and rotary size are constexpr: a model has one of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on, programs

TILE_ELEMENTS: Final = 1024
"""Elements of one tile of heads: with two warps 8 for each thread and half, a 16-byte load in bf16."""
WARPS: Final = 2
MAX_HEAD: Final = 1024


@triton.jit
def load_angles(cos, sin, column_H, across_H, HALF: tl.constexpr):
    """cos and sin of one place, in fp32: of the first half of the rotated columns, and of the second."""
    cos1_H = tl.load(cos + column_H, mask=across_H, other=0.0).to(tl.float32)
    sin1_H = tl.load(sin + column_H, mask=across_H, other=0.0).to(tl.float32)
    cos2_H = tl.load(cos + HALF + column_H, mask=across_H, other=0.0).to(tl.float32)
    sin2_H = tl.load(sin + HALF + column_H, mask=across_H, other=0.0).to(tl.float32)
    return cos1_H, sin1_H, cos2_H, sin2_H


@triton.jit
def scaled(n_TX, weight, column_X, across_X, offset, dtype: tl.constexpr, LLAMA: tl.constexpr):
    """Normalised columns times their weight, rounded to ``dtype`` before it where the model does so."""
    if LLAMA:
        n_TX = n_TX.to(dtype).to(tl.float32)
    if weight is not None:
        n_TX = n_TX * (tl.load(weight + column_X, mask=across_X, other=0.0).to(tl.float32) + offset)[None, :]
    return n_TX


@triton.jit
def rotate_heads(
    x, weight, y, heads, x_head, y_head, cos1_H, sin1_H, cos2_H, sin2_H, eps, offset,
    HEAD: tl.constexpr, HALF: tl.constexpr, LLAMA: tl.constexpr, TILE: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """Norm and rotate every ``num_programs(1)``-th tile of the heads at one place, from which x and y start."""
    REST: tl.constexpr = HEAD - 2 * HALF
    column_H = tl.arange(0, BLOCK_H)
    across_H = column_H < HALF
    for first in range(tl.program_id(1) * TILE, heads, tl.num_programs(1) * TILE):
        head_T = (first + tl.arange(0, TILE)).to(tl.int64)
        inside_TH = (head_T < heads)[:, None] & across_H[None, :]
        from_TH = x + head_T[:, None] * x_head + column_H[None, :]
        first_TH = tl.load(from_TH, mask=inside_TH, other=0.0)
        a_TH = first_TH.to(tl.float32)
        b_TH = tl.load(from_TH + HALF, mask=inside_TH, other=0.0).to(tl.float32)
        square_T = tl.sum(a_TH * a_TH, 1) + tl.sum(b_TH * b_TH, 1)
        if REST > 0:
            column_P = tl.arange(0, BLOCK_P)
            across_P = column_P < REST
            inside_TP = (head_T < heads)[:, None] & across_P[None, :]
            from_TP = x + head_T[:, None] * x_head + (2 * HALF + column_P)[None, :]
            p_TP = tl.load(from_TP, mask=inside_TP, other=0.0).to(tl.float32)
            square_T += tl.sum(p_TP * p_TP, 1)
        r_T = tl.rsqrt(square_T / HEAD + eps)
        a_TH = scaled(a_TH * r_T[:, None], weight, column_H, across_H, offset, first_TH.dtype, LLAMA)
        second = None if weight is None else weight + HALF
        b_TH = scaled(b_TH * r_T[:, None], second, column_H, across_H, offset, first_TH.dtype, LLAMA)
        to_TH = y + head_T[:, None] * y_head + column_H[None, :]
        tl.store(to_TH, a_TH * cos1_H[None, :] - b_TH * sin1_H[None, :], mask=inside_TH)
        tl.store(to_TH + HALF, b_TH * cos2_H[None, :] + a_TH * sin2_H[None, :], mask=inside_TH)
        if REST > 0:
            third = None if weight is None else weight + 2 * HALF
            p_TP = scaled(p_TP * r_T[:, None], third, column_P, across_P, offset, first_TH.dtype, LLAMA)
            tl.store(y + head_T[:, None] * y_head + (2 * HALF + column_P)[None, :], p_TP, mask=inside_TP)


@triton.jit
def qk_norm_rope_forward(
    q, k, q_weight, k_weight, cos, sin, q_out, k_out, length, q_heads, k_heads, q_batch_stride, q_head_stride,
    q_place_stride, k_batch_stride, k_head_stride, k_place_stride, cos_batch_stride, cos_place_stride,
    sin_batch_stride, sin_place_stride, eps, offset,
    HEAD: tl.constexpr, HALF: tl.constexpr, LLAMA: tl.constexpr, TILE: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // length).to(tl.int64)
    place = (tl.program_id(0) % length).to(tl.int64)
    column_H = tl.arange(0, BLOCK_H)
    cos1_H, sin1_H, cos2_H, sin2_H = load_angles(
        cos + batch * cos_batch_stride + place * cos_place_stride,
        sin + batch * sin_batch_stride + place * sin_place_stride,
        column_H, column_H < HALF, HALF,
    )  # fmt: skip
    out_head = tl.cast(length, tl.int64) * HEAD
    q_out += batch * q_heads * out_head + place * HEAD
    k_out += batch * k_heads * out_head + place * HEAD
    rotate_heads(
        q + batch * q_batch_stride + place * q_place_stride, q_weight, q_out,
        q_heads, q_head_stride, out_head, cos1_H, sin1_H, cos2_H, sin2_H, eps, offset,
        HEAD, HALF, LLAMA, TILE, BLOCK_H, BLOCK_P,
    )  # fmt: skip
    rotate_heads(
        k + batch * k_batch_stride + place * k_place_stride, k_weight, k_out,
        k_heads, k_head_stride, out_head, cos1_H, sin1_H, cos2_H, sin2_H, eps, offset,
        HEAD, HALF, LLAMA, TILE, BLOCK_H, BLOCK_P,
    )  # fmt: skip


@triton.jit
def gradient_of_heads(
    dy, x, weight, cos, sin, dx, dweight, part, first_place, step, places, length, heads, dy_batch_stride,
    dy_head_stride, dy_place_stride, x_batch_stride, x_head_stride, x_place_stride, cos_batch_stride, cos_place_stride,
    sin_batch_stride, sin_place_stride, eps, offset,
    HEAD: tl.constexpr, HALF: tl.constexpr, SUM: tl.constexpr, TILE: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr,
):  # fmt: skip
    """dx of every ``step``-th place, and one part of dweight. With g = the unrotated gradient times the weight and n =
    the normalised head: dx = r·(g − n·mean(g·n)).
    """
    REST: tl.constexpr = HEAD - 2 * HALF
    column_H = tl.arange(0, BLOCK_H)
    across_H = column_H < HALF
    column_P = tl.arange(0, BLOCK_P)
    across_P = column_P < REST
    out_head = tl.cast(length, tl.int64) * HEAD
    if weight is not None:
        weight1_H = tl.load(weight + column_H, mask=across_H, other=0.0).to(tl.float32) + offset
        weight2_H = tl.load(weight + HALF + column_H, mask=across_H, other=0.0).to(tl.float32) + offset
        if REST > 0:
            weight_P = tl.load(weight + 2 * HALF + column_P, mask=across_P, other=0.0).to(tl.float32) + offset
    sum1_TH = tl.zeros([TILE, BLOCK_H], tl.float32)
    sum2_TH = tl.zeros([TILE, BLOCK_H], tl.float32)
    sum_TP = tl.zeros([TILE, BLOCK_P], tl.float32)
    for index in range(first_place, places, step):
        batch = tl.cast(index // length, tl.int64)
        place = tl.cast(index % length, tl.int64)
        cos1_H, sin1_H, cos2_H, sin2_H = load_angles(
            cos + batch * cos_batch_stride + place * cos_place_stride,
            sin + batch * sin_batch_stride + place * sin_place_stride,
            column_H, across_H, HALF,
        )  # fmt: skip
        for first in range(0, heads, TILE):
            head_T = (first + tl.arange(0, TILE)).to(tl.int64)
            inside_TH = (head_T < heads)[:, None] & across_H[None, :]
            x_T = x + batch * x_batch_stride + place * x_place_stride + head_T * x_head_stride
            dy_T = dy + batch * dy_batch_stride + place * dy_place_stride + head_T * dy_head_stride
            dx_T = dx + (batch * heads + head_T) * out_head + place * HEAD
            a_TH = tl.load(x_T[:, None] + column_H[None, :], mask=inside_TH, other=0.0).to(tl.float32)
            b_TH = tl.load(x_T[:, None] + (HALF + column_H)[None, :], mask=inside_TH, other=0.0).to(tl.float32)
            da_TH = tl.load(dy_T[:, None] + column_H[None, :], mask=inside_TH, other=0.0).to(tl.float32)
            db_TH = tl.load(dy_T[:, None] + (HALF + column_H)[None, :], mask=inside_TH, other=0.0).to(tl.float32)
            g_TH = da_TH * cos1_H[None, :] + db_TH * sin2_H[None, :]
            h_TH = db_TH * cos2_H[None, :] - da_TH * sin1_H[None, :]
            square_T = tl.sum(a_TH * a_TH, 1) + tl.sum(b_TH * b_TH, 1)
            if REST > 0:
                inside_TP = (head_T < heads)[:, None] & across_P[None, :]
                p_TP = tl.load(x_T[:, None] + (2 * HALF + column_P)[None, :], mask=inside_TP, other=0.0).to(tl.float32)
                i_TP = tl.load(dy_T[:, None] + (2 * HALF + column_P)[None, :], mask=inside_TP, other=0.0).to(tl.float32)
                square_T += tl.sum(p_TP * p_TP, 1)
            r_T = tl.rsqrt(square_T / HEAD + eps)
            if SUM:
                sum1_TH += g_TH * (a_TH * r_T[:, None])
                sum2_TH += h_TH * (b_TH * r_T[:, None])
            if weight is not None:
                g_TH = g_TH * weight1_H[None, :]
                h_TH = h_TH * weight2_H[None, :]
            along_T = tl.sum(g_TH * a_TH, 1) + tl.sum(h_TH * b_TH, 1)
            if REST > 0:
                if SUM:
                    sum_TP += i_TP * (p_TP * r_T[:, None])
                if weight is not None:
                    i_TP = i_TP * weight_P[None, :]
                along_T += tl.sum(i_TP * p_TP, 1)
            along_T = (along_T / HEAD) * (r_T * r_T * r_T)
            da_TH = g_TH * r_T[:, None] - a_TH * along_T[:, None]
            db_TH = h_TH * r_T[:, None] - b_TH * along_T[:, None]
            tl.store(dx_T[:, None] + column_H[None, :], da_TH, mask=inside_TH)
            tl.store(dx_T[:, None] + (HALF + column_H)[None, :], db_TH, mask=inside_TH)
            if REST > 0:
                i_TP = i_TP * r_T[:, None] - p_TP * along_T[:, None]
                tl.store(dx_T[:, None] + (2 * HALF + column_P)[None, :], i_TP, mask=inside_TP)
    if SUM:
        to = dweight + tl.cast(part, tl.int64) * HEAD
        tl.store(to + column_H, tl.sum(sum1_TH, 0), mask=across_H)
        tl.store(to + HALF + column_H, tl.sum(sum2_TH, 0), mask=across_H)
        if REST > 0:
            tl.store(to + 2 * HALF + column_P, tl.sum(sum_TP, 0), mask=across_P)


@triton.jit
def qk_norm_rope_backward(
    dq_out, dk_out, q, k, q_weight, k_weight, cos, sin, dq, dk, dq_weight, dk_weight, q_programs, places, length,
    q_heads, k_heads,
    dq_out_batch_stride, dq_out_head_stride, dq_out_place_stride, dk_out_batch_stride, dk_out_head_stride,
    dk_out_place_stride, q_batch_stride, q_head_stride, q_place_stride, k_batch_stride, k_head_stride, k_place_stride,
    cos_batch_stride, cos_place_stride, sin_batch_stride, sin_place_stride, eps, offset,
    HEAD: tl.constexpr, HALF: tl.constexpr, SUM_Q: tl.constexpr, SUM_K: tl.constexpr, TILE: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """The first ``q_programs`` programs have q, the others k."""
    program = tl.program_id(0)
    if program < q_programs:
        gradient_of_heads(
            dq_out, q, q_weight, cos, sin, dq, dq_weight, program, program, q_programs, places, length, q_heads,
            dq_out_batch_stride, dq_out_head_stride, dq_out_place_stride, q_batch_stride, q_head_stride,
            q_place_stride, cos_batch_stride, cos_place_stride, sin_batch_stride, sin_place_stride, eps, offset,
            HEAD, HALF, SUM_Q, TILE, BLOCK_H, BLOCK_P,
        )  # fmt: skip
    else:
        program -= q_programs
        gradient_of_heads(
            dk_out, k, k_weight, cos, sin, dk, dk_weight, program, program, tl.num_programs(0) - q_programs, places,
            length, k_heads, dk_out_batch_stride, dk_out_head_stride, dk_out_place_stride, k_batch_stride,
            k_head_stride, k_place_stride, cos_batch_stride, cos_place_stride, sin_batch_stride, sin_place_stride, eps,
            offset, HEAD, HALF, SUM_K, TILE, BLOCK_H, BLOCK_P,
        )  # fmt: skip


@dataclass(frozen=True)
class HeadTile:
    """A tile of heads: how many, and the padded sizes of half the rotated columns and of those that pass."""

    heads: int
    half: int
    rest: int


def head_tile(head: int, rotary: int) -> HeadTile:
    """TILE_ELEMENTS in all, of whole heads."""
    half = triton.next_power_of_2(max(1, rotary // 2))
    rest = triton.next_power_of_2(max(1, head - rotary))
    return HeadTile(max(1, TILE_ELEMENTS // triton.next_power_of_2(head)), half, rest)


def refuses(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float,
    offset: float, cast: str, half: int, rest: int,
) -> str | None:  # fmt: skip
    """A last stride that isn't 1, shapes that don't fit, or a head too wide for one program."""
    if q.size(-1) > MAX_HEAD:
        return f"heads of {q.size(-1)} elements are wider than the {MAX_HEAD} that one program holds"
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        if weight is not None and (tuple(weight.shape) != (q.size(-1),) or not weight.is_contiguous()):
            return f"{name} has shape {tuple(weight.shape)} and strides {weight.stride()}, not ({q.size(-1)},) and (1,)"
    return _scattered(q=q, k=k, cos=cos, sin=sin)


def refuses_backward(
    dq_out: Tensor | None, dk_out: Tensor | None, q: Tensor, k: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float, cast: str, half: int, rest: int,
    needs: Sequence[bool],
) -> str | None:  # fmt: skip
    """As the forward, and each incoming gradient has strides of its own."""
    forward_reason = refuses(q, k, q_weight, k_weight, cos, sin, eps, offset, cast, half, rest)
    return forward_reason or _scattered(gradient_of_q=dq_out, gradient_of_k=dk_out)


def _scattered(**tensors: Tensor | None) -> str | None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.stride(-1) != 1 and tensor.size(-1) > 1:
            return f"the columns of {name} do not lie side by side (strides {tensor.stride()})"
    return None


def _strides(x: Tensor) -> tuple[int, int, int]:
    return x.stride(0), x.stride(1), x.stride(2)


def _angle_strides(angle: Tensor) -> tuple[int, int]:
    return 0 if angle.size(0) == 1 else angle.stride(0), angle.stride(1)


def result_dtype(x: Tensor, weight: Tensor | None, cos: Tensor, sin: Tensor, llama: bool) -> torch.dtype:
    """What norm and rotation of ``x`` promote to."""
    dtype = torch.promote_types(x.dtype, weight.dtype) if llama and weight is not None else x.dtype
    return torch.promote_types(dtype, torch.promote_types(cos.dtype, sin.dtype))


def forward(
    q: Tensor, k: Tensor, q_weight: Tensor | None, k_weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float,
    offset: float, cast: str, half: int, rest: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q (B, Hq, S, D) and k (B, Hk, S, D), normed and rotated, contiguous, in one launch."""
    llama, head, rotary = cast == "llama", q.size(-1), cos.size(-1)
    q_out = _layout.new(q, dtype=result_dtype(q, q_weight, cos, sin, llama))
    k_out = _layout.new(k, dtype=result_dtype(k, k_weight, cos, sin, llama))
    places, tile = q.size(0) * q.size(2), head_tile(head, rotary)
    if not (q.numel() or k.numel()):
        return q_out, k_out
    wanted = triton.cdiv(programs(q.device), places)  # few places (decoding): several programs share the heads of one
    splits = max(1, min(wanted, triton.cdiv(max(q.size(1), k.size(1)), tile.heads)))
    with on(q):
        qk_norm_rope_forward[(places, splits)](
            q, k, q_weight, k_weight, cos, sin, q_out, k_out, q.size(2), q.size(1), k.size(1), *_strides(q),
            *_strides(k), *_angle_strides(cos), *_angle_strides(sin), eps, offset,
            HEAD=head, HALF=rotary // 2, LLAMA=llama, TILE=tile.heads, BLOCK_H=tile.half, BLOCK_P=tile.rest,
            num_warps=WARPS,
        )  # fmt: skip
    return q_out, k_out


def backward(
    dq_out: Tensor | None, dk_out: Tensor | None, q: Tensor, k: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, cos: Tensor, sin: Tensor, eps: float, offset: float, cast: str, half: int, rest: int,
    needs: Sequence[bool],
) -> list[Tensor]:  # fmt: skip
    """The gradients that ``needs`` asks for, of q, k and their weights. One whose result was not used gets zeros."""
    places, head, tile = q.size(0) * q.size(2), q.size(-1), head_tile(q.size(-1), cos.size(-1))
    dq, dk = _layout.new(q), _layout.new(k)
    q_heads = q.size(1) if dq_out is not None else 0
    k_heads = k.size(1) if dk_out is not None else 0
    q_count, k_count = program_counts(places, q_heads, k_heads, programs(q.device))
    dq_parts = _layout.new(q, (q_count, head), torch.float32) if needs[2] else None
    dk_parts = _layout.new(k, (k_count, head), torch.float32) if needs[3] else None
    if q_count + k_count:
        dq_given, dk_given = q if dq_out is None else dq_out, k if dk_out is None else dk_out
        with on(q):
            qk_norm_rope_backward[(q_count + k_count,)](
                dq_given, dk_given, q, k, q_weight, k_weight, cos, sin, dq, dk, dq_parts, dk_parts, q_count, places,
                q.size(2), q_heads, k_heads, *_strides(dq_given), *_strides(dk_given), *_strides(q), *_strides(k),
                *_angle_strides(cos), *_angle_strides(sin), eps, offset,
                HEAD=head, HALF=cos.size(-1) // 2, SUM_Q=dq_parts is not None, SUM_K=dk_parts is not None,
                TILE=tile.heads, BLOCK_H=tile.half, BLOCK_P=tile.rest, num_warps=WARPS, num_stages=1,
            )  # fmt: skip
    found = (
        dq if q_count else dq.zero_(), dk if k_count else dk.zero_(), _summed(dq_parts, q_weight),
        _summed(dk_parts, k_weight),
    )  # fmt: skip
    return [grad for grad, need in zip(found, needs, strict=True) if need and grad is not None]


def program_counts(places: int, q_heads: int, k_heads: int, wanted: int) -> tuple[int, int]:
    """Programs for q and for k, by their share of the heads; none where there are no heads or places."""
    q_share = round(wanted * q_heads / max(1, q_heads + k_heads))
    q_count = min(places, max(1, q_share)) if q_heads else 0
    k_count = min(places, max(1, wanted - q_share)) if k_heads else 0
    return q_count, k_count


def _summed(parts: Tensor | None, weight: Tensor | None) -> Tensor | None:
    return None if parts is None or weight is None else parts.sum(0).to(weight.dtype)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Heads as models have them, wider with the model: whole and partial rotation."""
    head = {1024: 64, 2048: 64, 8192: 192, 16384: 256}.get(width, 128)
    for label, rotary in (("whole", head), ("partial", head // 2)):
        yield from _cases(label, head, rotary, dtype)


def _cases(label: str, head: int, rotary: int, dtype: str) -> Iterator[KernelCase]:
    tile, size, pointer = head_tile(head, rotary), ELEMENT_BYTES[dtype], f"*{dtype}"
    shape = {"HEAD": head, "HALF": rotary // 2, "TILE": tile.heads, "BLOCK_H": tile.half, "BLOCK_P": tile.rest}
    rest = tile.rest if head > rotary else 0
    heads = size * tile.heads * (2 * tile.half + rest)  # as the tiles count: lanes that pad a head are masked off
    weight, angles = size * (2 * tile.half + rest), 4 * size * tile.half
    names = ("q", "k", "dq", "dk", "dq_out", "dk_out", "q_out", "k_out", "q_weight", "k_weight", "cos", "sin")
    values = {
        **dict.fromkeys(names, pointer), "dq_weight": "*fp32", "dk_weight": "*fp32",
        **dict.fromkeys(("length", "q_heads", "k_heads", "places", "q_programs"), "i32"),
        "eps": "fp32", "offset": "fp32", "LLAMA": True, "SUM_Q": True, "SUM_K": True, **shape,
    }  # fmt: skip
    for kernel, name, loads, stores in (
        (qk_norm_rope_forward, "forward", 2 * heads + 2 * weight + angles, 2 * heads),
        (qk_norm_rope_backward, "backward", 4 * heads + 2 * weight + 2 * angles, 2 * heads + 8 * weight // size),
    ):
        strides = {name: "i64" for name in kernel.arg_names if name.endswith("_stride")}
        known: dict[str, Any] = {**values, **strides}
        yield KernelCase(
            kernel, f"{name}, {label}", {name: known[name] for name in kernel.arg_names}, WARPS, loads, stores,
            aligned=frozenset(strides) if head % 16 == 0 else frozenset(),
        )  # fmt: skip
