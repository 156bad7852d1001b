"""What every kernel of flash attention does to a tile of scores, and which keys a tile of queries can see.

Scores are kept in base e, though the hardware's exponential is 2^x: the weight of a lone key is then 1 exactly, in
backward too, and its gradient 0. Positions may come in either orientation,
``row`` (M, 1) with ``column`` (1, N) or ``row`` (1, M) with ``column`` (N, 1): they only ever broadcast.
"""

from __future__ import annotations

import triton
import triton.language as tl

NO_BIAS, ADDED_BIAS, BOOLEAN_BIAS = 0, 1, 2


@triton.jit
def tanh(x):
    """tanh to 2 ulp of fp32: the form with exp alone loses every digit near 0, where most scores are.

    The polynomial is that of Cephes (tanhf), for |x| < 0.625.
    """
    z = x * x
    near = z * -5.70498872745e-3 + 2.06390887954e-2
    near = near * z + -5.37397155531e-2
    near = near * z + 1.33314422036e-1
    near = near * z + -3.33332819422e-1
    near = near * z * x + x
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(size * 2.0) + 1.0)
    far = tl.where(x < 0.0, -far, far)
    return tl.where(size < 0.625, near, far)


@triton.jit
def scores(
    product, row, column, bias, bias_row, bias_column, slope, q_len, kv_len, shift, window, scale, softcap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Scores from ``product`` = q·k, -inf where a key is hidden; and the tanh of the soft-cap.

    ``MASKED`` False: every key of the tile exists and is in view of every query, so that only the bias can hide it.
    """
    capped = product
    if SOFTCAP:
        capped = tanh(product * (scale / softcap))
        s = capped * softcap
    else:
        s = product * scale
    if BIAS != 0:
        inside = tl.minimum(row, q_len - 1).to(tl.int64) * bias_row
        if MASKED:
            inside += tl.minimum(column, kv_len - 1).to(tl.int64) * bias_column
        else:
            inside += column.to(tl.int64) * bias_column
        b = tl.load(bias + inside)
        if BIAS == 1:
            s += b.to(tl.float32)
        else:
            s = tl.where(b != 0, s, float("-inf"))
    if SLOPES:
        s -= tl.abs(row + shift - column).to(tl.float32) * slope
    if MASKED:
        seen = column < kv_len
        if CAUSAL:
            seen = seen & (column <= row + shift)
        if WINDOW:
            seen = seen & (column > row + shift - window) & (column < row + shift + window)
        s = tl.where(seen, s, float("-inf"))
    return s, capped


@triton.jit
def key_range(
    first_row, rows, kv_len, shift, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr
):
    """[low, high) of the keys that ``rows`` queries from ``first_row`` on can see; low is a multiple of BLOCK_N."""
    low = 0
    high = kv_len
    if CAUSAL:
        high = tl.minimum(high, first_row + rows + shift)
    if WINDOW:
        low = tl.maximum(0, first_row + shift - window + 1) // BLOCK_N * BLOCK_N
        high = tl.minimum(high, first_row + rows - 1 + shift + window)
    return low, high


@triton.jit
def whole_keys(first_row, kv_len, shift, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr):
    """The end of the blocks of keys that every query from ``first_row`` on sees whole; a multiple of BLOCK_N."""
    end = kv_len // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(end, tl.maximum(first_row + shift + 1, 0) // BLOCK_N * BLOCK_N)
    return end


@triton.jit
def query_range(
    first_key, keys, q_len, shift, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BLOCK_M: tl.constexpr
):
    """[low, high) of the queries that can see ``keys`` keys from ``first_key`` on; low is a multiple of BLOCK_M."""
    low = 0
    high = q_len
    if CAUSAL:
        low = tl.maximum(0, first_key - shift) // BLOCK_M * BLOCK_M
    if WINDOW:
        low = tl.maximum(low, tl.maximum(0, first_key - shift - window + 1) // BLOCK_M * BLOCK_M)
        high = tl.minimum(high, first_key + keys - 1 - shift + window)
    return low, high
