"""Flash attention in Triton: the scores of a tile of queries and keys live in registers only.

Suffixes: ``_M`` queries, ``_N`` keys, ``_D`` channels of a head, padded to a power of two. Each tensor has its own
stride for batch, head and row; channels lie at stride 1. Offsets are 64-bit.

The gradient of a score is p·(dp − δ) with δ = Σ p·dp over the keys of a query. δ = Σ dout·out, from the rounded output,
is off by a rounding, which is everything there is where a query sees one key only. The kernel for dq therefore sums
what is left of it, ε = Σ p·(dp − δ) (0 for an exact δ), corrects dq by ε·Σ p·k, and hands δ + ε to the kernel for dk
and dv. No atomics: the heads of a group are
summed in one program, so that every run gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fused_replacements.kernels._attention_scores import (
    key_range,
    query_range,
    scores,
    whole_keys,
)


@triton.jit
def tile(x, row, row_stride, length, HEAD_DIM: tl.constexpr, D: tl.constexpr, CLAMP: tl.constexpr):
    """Rows ``row`` of a head at ``x``, and 0 beyond its channels.

    With ``CLAMP`` a row beyond ``length`` reads the last one again, which needs no mask: its weight is 0, or it isn't
    stored.
    """
    if CLAMP:
        row = tl.minimum(row, length - 1)
    channel_D = tl.arange(0, D)
    pointer = x + row.to(tl.int64)[:, None] * row_stride + channel_D[None, :]
    if HEAD_DIM != D:
        return tl.load(pointer, mask=(channel_D < HEAD_DIM)[None, :], other=0.0)
    return tl.load(pointer)


@triton.jit
def store_tile(x, values, row, row_stride, length, HEAD_DIM: tl.constexpr, D: tl.constexpr):
    channel_D = tl.arange(0, D)
    inside = (row < length)[:, None] & (channel_D < HEAD_DIM)[None, :]
    tl.store(x + row.to(tl.int64)[:, None] * row_stride + channel_D[None, :], values, mask=inside)


@triton.jit
def attend(
    acc_MD, sum_M, top_M, q_MD, k, v, bias, start, stop, row_M, k_row, v_row, bias_row, bias_column, slope,
    q_len, kv_len, shift, window, scale, softcap,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SOFTCAP: tl.constexpr,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The online softmax over the keys start … stop - 1: weighted values, sum of weights, and the top score so far."""
    for first in range(start, stop, BLOCK_N):
        column_N = first + tl.arange(0, BLOCK_N)
        k_ND = tile(k, column_N, k_row, kv_len, HEAD_DIM, D, MASKED)
        product_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        s_MN, _ = scores(
            product_MN, row_M[:, None], column_N[None, :], bias, bias_row, bias_column, slope, q_len, kv_len, shift,
            window, scale, softcap, CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, MASKED,
        )  # fmt: skip
        higher_M = tl.maximum(top_M, tl.max(s_MN, 1))
        finite_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)  # nothing in view yet: -inf - -inf is NaN
        p_MN = tl.exp(s_MN - finite_M[:, None])
        shrink_M = tl.exp(top_M - finite_M)
        sum_M = sum_M * shrink_M + tl.sum(p_MN, 1)
        v_ND = tile(v, column_N, v_row, kv_len, HEAD_DIM, D, MASKED)
        acc_MD = tl.dot(p_MN.to(v_ND.dtype), v_ND, acc_MD * shrink_M[:, None], input_precision="ieee")
        top_M = higher_M
    return acc_MD, sum_M, top_M


@triton.jit(do_not_specialize=["q_len", "kv_len", "shift", "window", "heads", "groups"])
def flash_forward(
    q, k, v, bias, slopes, sinks, out, lse, heads, groups, q_len, kv_len, shift, window, scale, softcap,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_column, slopes_batch,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: ``out``, and ``lse``, the log of the softmax's denominator (inf: no key)."""
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M  # causal: the longest tiles start first
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    k += batch * k_batch + (head // groups) * k_head
    v += batch * v_batch + (head // groups) * v_head
    if BIAS != 0:
        bias += batch * bias_batch + head * bias_head
    slope = 0.0
    if SLOPES:
        slope = tl.load(slopes + batch * slopes_batch + head).to(tl.float32)
    row_M = first_row + tl.arange(0, BLOCK_M)
    q_MD = tile(q + batch * q_batch + head * q_head, row_M, q_row, q_len, HEAD_DIM, D, True)
    acc_MD = tl.zeros([BLOCK_M, D], tl.float32)
    top_M = tl.full([BLOCK_M], float("-inf"), tl.float32)
    sum_M = tl.zeros([BLOCK_M], tl.float32)
    if SINKS:  # a key without a value
        top_M = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks + head).to(tl.float32)
        sum_M += 1.0
    low, high = key_range(first_row, BLOCK_M, kv_len, shift, window, CAUSAL, WINDOW, BLOCK_N)
    whole = low
    if not WINDOW:  # of a window every second block or so is an edge: one loop, less code
        whole = whole_keys(first_row, kv_len, shift, CAUSAL, BLOCK_N)
        acc_MD, sum_M, top_M = attend(
            acc_MD, sum_M, top_M, q_MD, k, v, bias, low, whole, row_M, k_row, v_row, bias_row, bias_column, slope,
            q_len, kv_len, shift, window, scale, softcap,
            CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, False, HEAD_DIM, D, BLOCK_N,
        )  # fmt: skip
    acc_MD, sum_M, top_M = attend(
        acc_MD, sum_M, top_M, q_MD, k, v, bias, whole, high, row_M, k_row, v_row, bias_row, bias_column, slope,
        q_len, kv_len, shift, window, scale, softcap,
        CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, True, HEAD_DIM, D, BLOCK_N,
    )  # fmt: skip
    empty_M = sum_M == 0.0
    acc_MD = acc_MD / tl.where(empty_M, 1.0, sum_M)[:, None]
    lse_M = tl.where(empty_M, float("inf"), top_M + tl.log(tl.where(empty_M, 1.0, sum_M)))
    line = tl.program_id(1).to(tl.int64) * q_len
    store_tile(out + line * HEAD_DIM, acc_MD, row_M, HEAD_DIM, q_len, HEAD_DIM, D)
    tl.store(lse + line + row_M, lse_M, mask=row_M < q_len)


@triton.jit(do_not_specialize=["q_len", "kv_len", "shift", "window", "heads", "groups"])
def flash_backward_q(
    dout, q, k, v, bias, slopes, sinks, out, lse, dq, delta, heads, groups, q_len, kv_len, shift, window, scale,
    softcap,
    dout_batch, dout_head, dout_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_column, slopes_batch,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``dq`` of one tile of queries of one head, and ``delta``, their exact Σ p·dp."""
    first_row = (tl.num_programs(0) - 1 - tl.program_id(0)) * BLOCK_M
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    line = tl.program_id(1).to(tl.int64) * q_len
    k += batch * k_batch + (head // groups) * k_head
    v += batch * v_batch + (head // groups) * v_head
    if BIAS != 0:
        bias += batch * bias_batch + head * bias_head
    slope = 0.0
    if SLOPES:
        slope = tl.load(slopes + batch * slopes_batch + head).to(tl.float32)
    row_M = first_row + tl.arange(0, BLOCK_M)
    q_MD = tile(q + batch * q_batch + head * q_head, row_M, q_row, q_len, HEAD_DIM, D, True)
    dout_MD = tile(dout + batch * dout_batch + head * dout_head, row_M, dout_row, q_len, HEAD_DIM, D, True)
    out_MD = tile(out + line * HEAD_DIM, row_M, HEAD_DIM, q_len, HEAD_DIM, D, True)
    delta_M = tl.sum(dout_MD.to(tl.float32) * out_MD.to(tl.float32), 1)
    lse_M = tl.load(lse + line + row_M, mask=row_M < q_len, other=float("inf"))
    dq_MD = tl.zeros([BLOCK_M, D], tl.float32)
    mean_MD = tl.zeros([BLOCK_M, D], tl.float32)
    left_M = tl.zeros([BLOCK_M], tl.float32)
    low, high = key_range(first_row, BLOCK_M, kv_len, shift, window, CAUSAL, WINDOW, BLOCK_N)
    for first in range(low, high, BLOCK_N):
        column_N = first + tl.arange(0, BLOCK_N)
        k_ND = tile(k, column_N, k_row, kv_len, HEAD_DIM, D, True)
        v_ND = tile(v, column_N, v_row, kv_len, HEAD_DIM, D, True)
        product_MN = tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee")
        s_MN, capped_MN = scores(
            product_MN, row_M[:, None], column_N[None, :], bias, bias_row, bias_column, slope, q_len, kv_len, shift,
            window, scale, softcap, CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, True,
        )  # fmt: skip
        p_MN = tl.exp(s_MN - lse_M[:, None])
        dp_MN = tl.dot(dout_MD, tl.trans(v_ND), input_precision="ieee")
        ds_MN = p_MN * (dp_MN - delta_M[:, None])
        left_M += tl.sum(ds_MN, 1)
        if SOFTCAP:
            slope_MN = 1.0 - capped_MN * capped_MN
            ds_MN = ds_MN * slope_MN
            p_MN = p_MN * slope_MN
        dq_MD = tl.dot(ds_MN.to(k_ND.dtype), k_ND, dq_MD, input_precision="ieee")
        mean_MD = tl.dot(p_MN.to(k_ND.dtype), k_ND, mean_MD, input_precision="ieee")
    if SINKS:  # the weights of the keys sum to 1 less that of the sink
        left_M -= delta_M * tl.exp(tl.load(sinks + head).to(tl.float32) - lse_M)
    dq_MD = (dq_MD - left_M[:, None] * mean_MD) * scale
    store_tile(dq + line * HEAD_DIM, dq_MD, row_M, HEAD_DIM, q_len, HEAD_DIM, D)
    tl.store(delta + line + row_M, delta_M + left_M, mask=row_M < q_len)


@triton.jit(do_not_specialize=["q_len", "kv_len", "shift", "window", "heads", "groups"])
def flash_backward_kv(
    dout, q, k, v, bias, slopes, lse, delta, dk, dv, heads, groups, q_len, kv_len, shift, window, scale, softcap,
    dout_batch, dout_head, dout_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_column, slopes_batch,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``dk`` and ``dv`` of one tile of keys of one head of k, summed over the heads of q that it serves."""
    first_key = tl.program_id(0) * BLOCK_N
    kv_heads = heads // groups
    batch = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    column_N = first_key + tl.arange(0, BLOCK_N)
    k_ND = tile(k + batch * k_batch + kv_head * k_head, column_N, k_row, kv_len, HEAD_DIM, D, True)
    v_ND = tile(v + batch * v_batch + kv_head * v_head, column_N, v_row, kv_len, HEAD_DIM, D, True)
    dk_ND = tl.zeros([BLOCK_N, D], tl.float32)
    dv_ND = tl.zeros([BLOCK_N, D], tl.float32)
    low, high = query_range(first_key, BLOCK_N, q_len, shift, window, CAUSAL, WINDOW, BLOCK_M)
    for member in range(groups):
        head = kv_head * groups + member
        line = (batch * heads + head) * q_len
        q_one = q + batch * q_batch + head * q_head
        dout_one = dout + batch * dout_batch + head * dout_head
        bias_one = bias
        if BIAS != 0:
            bias_one = bias + batch * bias_batch + head * bias_head
        slope = 0.0
        if SLOPES:
            slope = tl.load(slopes + batch * slopes_batch + head).to(tl.float32)
        for first in range(low, high, BLOCK_M):
            row_M = first + tl.arange(0, BLOCK_M)
            q_MD = tile(q_one, row_M, q_row, q_len, HEAD_DIM, D, True)
            dout_MD = tile(dout_one, row_M, dout_row, q_len, HEAD_DIM, D, True)
            lse_M = tl.load(lse + line + row_M, mask=row_M < q_len, other=float("inf"))
            delta_M = tl.load(delta + line + row_M, mask=row_M < q_len, other=0.0)
            product_NM = tl.dot(k_ND, tl.trans(q_MD), input_precision="ieee")
            s_NM, capped_NM = scores(
                product_NM, row_M[None, :], column_N[:, None], bias_one, bias_row, bias_column, slope, q_len, kv_len,
                shift, window, scale, softcap, CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, True,
            )  # fmt: skip
            p_NM = tl.exp(s_NM - lse_M[None, :])
            dv_ND = tl.dot(p_NM.to(dout_MD.dtype), dout_MD, dv_ND, input_precision="ieee")
            ds_NM = p_NM * (tl.dot(v_ND, tl.trans(dout_MD), input_precision="ieee") - delta_M[None, :])
            if SOFTCAP:
                ds_NM = ds_NM * (1.0 - capped_NM * capped_NM)
            dk_ND = tl.dot(ds_NM.to(q_MD.dtype), q_MD, dk_ND, input_precision="ieee")
    line = tl.program_id(1).to(tl.int64) * kv_len
    store_tile(dk + line * HEAD_DIM, dk_ND * scale, column_N, HEAD_DIM, kv_len, HEAD_DIM, D)
    store_tile(dv + line * HEAD_DIM, dv_ND, column_N, HEAD_DIM, kv_len, HEAD_DIM, D)


@triton.jit(do_not_specialize=["q_len", "kv_len", "shift", "window", "heads", "groups", "batches", "bias_heads"])
def flash_backward_bias(
    dout, q, k, v, bias, slopes, lse, delta, dbias, batches, bias_heads, heads, groups, q_len, kv_len, shift, window,
    scale, softcap,
    dout_batch, dout_head, dout_row, q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    bias_batch, bias_head, bias_row, bias_column, slopes_batch,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, BIAS: tl.constexpr, SLOPES: tl.constexpr, SOFTCAP: tl.constexpr,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """``dbias`` of one tile of queries and keys, summed over the batches and heads that the bias is broadcast to.

    ``batches`` and ``heads / bias_heads`` count those; programs of axis 2 are the bias's own batches and heads.
    """
    row_M = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column_N = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    own_batch = tl.program_id(2) // bias_heads
    own_head = tl.program_id(2) % bias_heads
    shared = heads // bias_heads
    sum_MN = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for member in range(batches * shared):
        batch = (own_batch + member // shared).to(tl.int64)
        head = (own_head + member % shared).to(tl.int64)
        line = (batch * heads + head) * q_len
        q_MD = tile(q + batch * q_batch + head * q_head, row_M, q_row, q_len, HEAD_DIM, D, True)
        dout_MD = tile(dout + batch * dout_batch + head * dout_head, row_M, dout_row, q_len, HEAD_DIM, D, True)
        k_ND = tile(k + batch * k_batch + head // groups * k_head, column_N, k_row, kv_len, HEAD_DIM, D, True)
        v_ND = tile(v + batch * v_batch + head // groups * v_head, column_N, v_row, kv_len, HEAD_DIM, D, True)
        lse_M = tl.load(lse + line + row_M, mask=row_M < q_len, other=float("inf"))
        delta_M = tl.load(delta + line + row_M, mask=row_M < q_len, other=0.0)
        slope = 0.0
        if SLOPES:
            slope = tl.load(slopes + batch * slopes_batch + head).to(tl.float32)
        s_MN, _ = scores(
            tl.dot(q_MD, tl.trans(k_ND), input_precision="ieee"), row_M[:, None], column_N[None, :],
            bias + batch * bias_batch + head * bias_head, bias_row, bias_column, slope, q_len, kv_len, shift, window,
            scale, softcap, CAUSAL, WINDOW, BIAS, SLOPES, SOFTCAP, True,
        )  # fmt: skip
        p_MN = tl.exp(s_MN - lse_M[:, None])
        sum_MN += p_MN * (tl.dot(dout_MD, tl.trans(v_ND), input_precision="ieee") - delta_M[:, None])
    line = tl.program_id(2).to(tl.int64) * q_len
    inside = (row_M < q_len)[:, None] & (column_N < kv_len)[None, :]
    tl.store(dbias + (line + row_M)[:, None] * kv_len + column_N[None, :], sum_MN, mask=inside)
