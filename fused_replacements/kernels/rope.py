"""Rotary embedding in Triton. One program turns all heads of q and of k at one position.

Suffixes: ``_P`` the pairs of a head (HALF of them, padded to BLOCK_P), ``_H`` a block of heads, ``_R`` the elements of
a head that are not turned. cos and sin of the position are loaded once and stay in registers for all heads. Backward
is the same kernel with the matrix of each pair transposed, which is the rotation by the opposite angle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, on

TILE_PAIRS: Final = 2048
"""Pairs that a program turns at once: 8 a thread at 8 warps, so that each half is loaded 16 bytes at a time in bf16."""
WIDEST_PAIRS: Final = 1024
"""Pairs of the widest head: its four table rows stay in registers."""


@triton.jit
def _turn(
    x, y, x_head, y_head, heads, first, cos1_P, sin1_P, cos2_P, sin2_P,
    HALF: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Heads ``first`` to ``first + BLOCK_H`` of one position, from ``x`` to ``y``."""
    head_H = first + tl.arange(0, BLOCK_H)
    inside_H = head_H < heads
    x_H, y_H = x + head_H.to(tl.int64) * x_head, y + head_H.to(tl.int64) * y_head
    if INTERLEAVED:
        place_E = tl.arange(0, 2 * BLOCK_P)
        inside_HE = inside_H[:, None] & (place_E < 2 * HALF)[None, :]
        x_HE = tl.load(x_H[:, None] + place_E[None, :], mask=inside_HE, other=0.0).to(tl.float32)
        x1_HP, x2_HP = tl.split(tl.reshape(x_HE, [BLOCK_H, BLOCK_P, 2]))
        y1_HP = x1_HP * cos1_P[None, :] - x2_HP * sin1_P[None, :]
        y2_HP = x2_HP * cos2_P[None, :] + x1_HP * sin2_P[None, :]
        y_HE = tl.reshape(tl.join(y1_HP, y2_HP), [BLOCK_H, 2 * BLOCK_P])
        tl.store(y_H[:, None] + place_E[None, :], y_HE, mask=inside_HE)
    else:
        pair_P = tl.arange(0, BLOCK_P)
        inside_HP = inside_H[:, None] & (pair_P < HALF)[None, :]
        x1_HP = tl.load(x_H[:, None] + pair_P[None, :], mask=inside_HP, other=0.0).to(tl.float32)
        x2_HP = tl.load(x_H[:, None] + HALF + pair_P[None, :], mask=inside_HP, other=0.0).to(tl.float32)
        y1_HP = x1_HP * cos1_P[None, :] - x2_HP * sin1_P[None, :]
        y2_HP = x2_HP * cos2_P[None, :] + x1_HP * sin2_P[None, :]
        tl.store(y_H[:, None] + pair_P[None, :], y1_HP, mask=inside_HP)
        tl.store(y_H[:, None] + HALF + pair_P[None, :], y2_HP, mask=inside_HP)
    if REST != 0:
        rest_R = tl.arange(0, BLOCK_R)
        inside_HR = inside_H[:, None] & (rest_R < REST)[None, :]
        passed_HR = tl.load(x_H[:, None] + 2 * HALF + rest_R[None, :], mask=inside_HR, other=0.0)
        tl.store(y_H[:, None] + 2 * HALF + rest_R[None, :], passed_HR, mask=inside_HR)


@triton.jit
def rotate(
    q, k, cos, sin, q_out, k_out, positions, q_heads, k_heads,
    q_batch, q_position, q_head, k_batch, k_position, k_head,
    qo_batch, qo_position, qo_head, ko_batch, ko_position, ko_head,
    cos_batch, cos_position, cos_column, sin_batch, sin_position, sin_column,
    HALF: tl.constexpr, REST: tl.constexpr, WHOLE_TABLES: tl.constexpr, INTERLEAVED: tl.constexpr,
    OPPOSITE: tl.constexpr, HAS_K: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // positions).to(tl.int64)
    position = (tl.program_id(0) % positions).to(tl.int64)
    pair_P = tl.arange(0, BLOCK_P)
    inside_P = pair_P < HALF
    first_P = 2 * pair_P if INTERLEAVED and WHOLE_TABLES else pair_P
    cos += batch * cos_batch + position * cos_position
    sin += batch * sin_batch + position * sin_position
    cos1_P = tl.load(cos + first_P * cos_column, mask=inside_P, other=0.0).to(tl.float32)
    sin1_P = tl.load(sin + first_P * sin_column, mask=inside_P, other=0.0).to(tl.float32)
    cos2_P, sin2_P = cos1_P, sin1_P
    if WHOLE_TABLES:
        second_P = first_P + 1 if INTERLEAVED else first_P + HALF
        cos2_P = tl.load(cos + second_P * cos_column, mask=inside_P, other=0.0).to(tl.float32)
        sin2_P = tl.load(sin + second_P * sin_column, mask=inside_P, other=0.0).to(tl.float32)
    if OPPOSITE:
        sin1_P, sin2_P = -sin2_P, -sin1_P
    q += batch * q_batch + position * q_position
    q_out += batch * qo_batch + position * qo_position
    for first in range(0, q_heads, BLOCK_H):
        _turn(q, q_out, q_head, qo_head, q_heads, first, cos1_P, sin1_P, cos2_P, sin2_P,
              HALF, REST, INTERLEAVED, BLOCK_H, BLOCK_P, BLOCK_R)  # fmt: skip
    if HAS_K:
        k += batch * k_batch + position * k_position
        k_out += batch * ko_batch + position * ko_position
        for first in range(0, k_heads, BLOCK_H):
            _turn(k, k_out, k_head, ko_head, k_heads, first, cos1_P, sin1_P, cos2_P, sin2_P,
                  HALF, REST, INTERLEAVED, BLOCK_H, BLOCK_P, BLOCK_R)  # fmt: skip


class Axes(NamedTuple):
    """Which dimensions of a tensor that is padded to four are the batch, the heads and the positions."""

    batch: int
    position: int
    head: int

    def strides(self, x: Tensor) -> tuple[int, int, int]:
        return _stride(x, self.batch), _stride(x, self.position), _stride(x, self.head)


def _size(x: Tensor, axis: int) -> int:
    missing = 4 - x.dim()
    return x.size(axis - missing) if axis >= missing else 1


def _stride(x: Tensor, axis: int) -> int:
    """0 where the dimension has one element: that is how a table is broadcast."""
    missing = 4 - x.dim()
    return x.stride(axis - missing) if axis >= missing and x.size(axis - missing) != 1 else 0


def _axes(q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor) -> Axes | None:
    """The heads are the dimension over which the tables are constant, and the only one in which k differs from q."""
    for head in (1, 2, 0):
        others = [axis for axis in (0, 1, 2) if axis != head]
        tables = _size(cos, head) == 1 and _size(sin, head) == 1
        if tables and (k is None or all(_size(q, axis) == _size(k, axis) for axis in others)):
            return Axes(others[0], others[1], head)
    return None


def refuses(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool, interleaved: bool,
    dtype: torch.dtype,
) -> str | None:  # fmt: skip
    """Tables that differ from head to head, elements of a head that do not lie side by side, or too wide a head."""
    if max(q.dim(), cos.dim(), sin.dim()) > 4 or q.dim() < 2:
        return f"q has {q.dim()} dimensions, and the kernel takes two to four"
    if half > WIDEST_PAIRS or rest > 2 * WIDEST_PAIRS:
        return f"heads of {2 * half + rest} elements are wider than the {2 * WIDEST_PAIRS} that the kernel takes"
    for name, x in (("q", q), ("k", k)):
        if x is not None and x.stride(-1) != 1 and x.size(-1) > 1:
            return f"the elements of a head of {name} lie at a stride of {x.stride(-1)}"
    if _axes(q, k, cos, sin) is None:
        return "cos and sin differ from head to head"
    return None


def refuses_backward(*arguments: Any) -> str | None:
    """As forward, of the incoming gradients."""
    grads, (cos, sin, *constants), _ = _backward_arguments(arguments)
    for grad in grads:
        if grad is not None and (reason := refuses(grad, None, cos, sin, *constants)) is not None:
            return reason
    return None


def forward(
    q: Tensor, k: Tensor | None, cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool, interleaved: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q and k, turned, in one launch."""
    assert k is not None
    outputs = _layout.new(q, dtype=dtype), _layout.new(k, dtype=dtype)
    _launch((q, k), outputs, cos, sin, half, rest, whole, interleaved, opposite=False)
    return outputs


def forward_one(
    q: Tensor, cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool, interleaved: bool, dtype: torch.dtype
) -> Tensor:
    """q alone, turned."""
    output = _layout.new(q, dtype=dtype)
    _launch((q,), (output,), cos, sin, half, rest, whole, interleaved, opposite=False)
    return output


def refuses_one(q: Tensor, *others: Any) -> str | None:
    """As for q and k together."""
    return refuses(q, None, *others)


def backward(*arguments: Any) -> list[Tensor]:
    """The gradients of q and of k that are asked for, in one launch. A gradient that nothing sent is zero."""
    grads, (cos, sin, half, rest, whole, interleaved, _), inputs = _backward_arguments(arguments)
    needs = arguments[-1]
    outputs = [_layout.new(x) for x in inputs]
    given = [(g, o) for g, o, need in zip(grads, outputs, needs, strict=True) if need and g is not None]
    for grad, output, need in zip(grads, outputs, needs, strict=True):
        if need and grad is None:
            output.zero_()
    if given:
        _launch([g for g, _ in given], [o for _, o in given], cos, sin, half, rest, whole, interleaved, opposite=True)
    return [output for output, need in zip(outputs, needs, strict=True) if need]


def _backward_arguments(arguments: Sequence[Any]) -> tuple[list[Tensor | None], list[Any], list[Tensor]]:
    """(gradients, (cos, sin, constants …), turned tensors) of the backward of either op."""
    count = (len(arguments) - 8) // 2
    return list(arguments[:count]), list(arguments[2 * count : -1]), list(arguments[count : 2 * count])


class _Blocks(NamedTuple):
    """q and k are walked in blocks of the same shape: with two shapes Triton loads the tables once for each layout."""

    heads: int
    pairs: int
    rest: int
    warps: int


def _blocks(q_heads: int, half: int, rest: int, interleaved: bool) -> _Blocks:
    """A thread takes 16 bytes of bf16 at a time: 8 pairs of halves that lie apart, 4 of neighbours."""
    pairs, passed = triton.next_power_of_2(half), triton.next_power_of_2(rest) if rest else 1
    most = max(1, TILE_PAIRS // max(pairs, passed // 2))
    heads = min(most, triton.next_power_of_2(max(1, q_heads)))
    return _Blocks(heads, pairs, passed, min(8, max(1, heads * pairs // (128 if interleaved else 256))))


def _launch(
    turned: Sequence[Tensor], outputs: Sequence[Tensor], cos: Tensor, sin: Tensor, half: int, rest: int, whole: bool,
    interleaved: bool, *, opposite: bool,
) -> None:  # fmt: skip
    q, k = turned[0], turned[1] if len(turned) == 2 else None
    q_out, k_out = outputs[0], outputs[1] if k is not None else None
    axes = _axes(q, k, cos, sin)
    assert axes is not None
    positions = _size(q, axes.position)
    q_heads, k_heads = _size(q, axes.head), 0 if k is None else _size(k, axes.head)
    blocks = _blocks(q_heads, half, rest, interleaved)
    programs = _size(q, axes.batch) * positions
    if not programs:
        return
    none = (0, 0, 0)
    with on(q):
        rotate[(programs,)](
            q, k, cos, sin, q_out, k_out, positions, q_heads, k_heads,
            *axes.strides(q), *(none if k is None else axes.strides(k)),
            *axes.strides(q_out), *(none if k_out is None else axes.strides(k_out)),
            _stride(cos, axes.batch), _stride(cos, axes.position), cos.stride(-1),
            _stride(sin, axes.batch), _stride(sin, axes.position), sin.stride(-1),
            HALF=half, REST=rest, WHOLE_TABLES=whole, INTERLEAVED=interleaved, OPPOSITE=opposite, HAS_K=k is not None,
            BLOCK_H=blocks.heads, BLOCK_P=blocks.pairs, BLOCK_R=blocks.rest, num_warps=blocks.warps,
        )  # fmt: skip


_STRIDES: Final = tuple(
    f"{tensor}_{axis}" for tensor in ("q", "k", "qo", "ko") for axis in ("batch", "position", "head")
)
_TABLE_STRIDES: Final = tuple(f"{table}_{axis}" for table in ("cos", "sin") for axis in ("batch", "position"))


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """A model of ``width`` with heads of 128: both pairings, partly turned heads, backward, and q alone."""
    heads = max(1, width // 128)
    for label, half, rest, interleaved, opposite, has_k in (
        ("forward, half-split", 64, 0, False, False, True),
        ("forward, interleaved", 64, 0, True, False, True),
        ("forward, partial", 32, 64, False, False, True),
        ("backward, half-split", 64, 0, False, True, True),
        ("forward, q alone", 64, 0, False, False, False),
    ):
        blocks = _blocks(heads, half, rest, interleaved)
        pointer, size = f"*{dtype}", ELEMENT_BYTES[dtype]
        tile = (2 * half + rest) * size * blocks.heads * (2 if has_k else 1)
        strides = dict.fromkeys(_STRIDES, "i64")
        yield KernelCase(
            rotate,
            label,
            {
                "q": pointer, "k": pointer if has_k else None, "cos": pointer, "sin": pointer,
                "q_out": pointer, "k_out": pointer if has_k else None,
                "positions": "i32", "q_heads": "i32", "k_heads": "i32", **strides,
                "cos_batch": "i64", "cos_position": "i64", "cos_column": 1,
                "sin_batch": "i64", "sin_position": "i64", "sin_column": 1,
                "HALF": half, "REST": rest, "WHOLE_TABLES": True, "INTERLEAVED": interleaved, "OPPOSITE": opposite,
                "HAS_K": has_k, "BLOCK_H": blocks.heads, "BLOCK_P": blocks.pairs, "BLOCK_R": blocks.rest,
            },
            blocks.warps, loads=tile + 4 * half * size, stores=tile,
            aligned=frozenset({*_STRIDES, *_TABLE_STRIDES}),
        )  # fmt: skip
