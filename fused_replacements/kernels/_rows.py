"""The arithmetic of RMS and layer norms, row by row, as device functions that the kernels of each op call.

Suffixes: ``_N`` a row of ``width`` elements, padded to BLOCK; ``_RC`` a tile of rows and columns. A row stays in
registers from its load to its store, so its statistics take two passes over registers and none over memory: the
variance is the mean of squared deviations, which cannot cancel as mean(x²) − mean(x)² does.

Backward programs are persistent: each walks over every ``programs``-th row and keeps its part of the gradients of
weight and bias in fp32 registers (HOLD). Where a row is too wide for that, a program has one row and writes its
statistics instead (8 bytes), and ``columns_of_gradients`` walks down the columns.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(h_N, inside_N, width, eps, CENTRED: tl.constexpr):
    """The row ``h_N`` in fp32, less its mean where CENTRED, the mean, and the factor that norms it."""
    if CENTRED:
        mean = tl.sum(h_N, 0) / width
        h_N = tl.where(inside_N, h_N - mean, 0.0)
    else:
        mean = 0.0
    return h_N, mean, tl.rsqrt(tl.sum(h_N * h_N, 0) / width + eps)


@triton.jit
def gradient_through(g_N, h_N, r, width, CENTRED: tl.constexpr):
    """The gradient of a row, from ``g_N`` of its normalised form: g·r − h·mean(g·h)·r³, and less its mean if CENTRED.

    In the order of eager code, so that in narrow rows, where the two terms cancel, its rounding is eager's. For a
    constant row and an eps under 1e-24 r³ would overflow; the mean is zero there, and inf would make NaN of it.
    """
    along = tl.sum(g_N * h_N, 0) / width
    bounded = tl.minimum(r, 1e12)
    dh_N = g_N * r - h_N * (along * (bounded * bounded * bounded))
    if CENTRED:
        dh_N = dh_N - tl.sum(dh_N, 0) / width
    return dh_N


@triton.jit
def forward_row(
    x, residual, weight, bias, y, total, width, x_stride, residual_stride, eps, offset,
    ADD: tl.constexpr, CENTRED: tl.constexpr, ROUND_FIRST: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of y = norm(x), or with ADD of total = x + residual and y = norm(total)."""
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0)
    if ADD:
        residual_N = tl.load(residual + row * residual_stride + column_N, mask=inside_N, other=0.0)
        x_N = (x_N.to(tl.float32) + residual_N.to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + row * width + column_N, x_N, mask=inside_N)
    h_N, _, r = scale_of(x_N.to(tl.float32), inside_N, width, eps, CENTRED)
    y_N = h_N * r
    if ROUND_FIRST:
        y_N = y_N.to(x_N.dtype).to(tl.float32)
    if HAS_WEIGHT:
        y_N = y_N * (tl.load(weight + column_N, mask=inside_N, other=0.0).to(tl.float32) + offset)
    if HAS_BIAS:
        y_N += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(y + row * width + column_N, y_N, mask=inside_N)


@triton.jit
def write_gradient(
    dh, dtotal, row, column_N, inside_N, dy_N, c_N, r, weight_N, width, dtotal_stride, offset,
    ADD: tl.constexpr, CENTRED: tl.constexpr,
):  # fmt: skip
    """Write the row ``dh``: the gradient through the norm, plus with ADD that of the sum itself."""
    g_N = dy_N.to(tl.float32)
    if weight_N is not None:
        g_N = g_N * (weight_N.to(tl.float32) + offset)
    dh_N = gradient_through(g_N, c_N, r, width, CENTRED)
    if ADD:
        dh_N += tl.load(dtotal + row * dtotal_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(dh + row * width + column_N, dh_N, mask=inside_N)


@triton.jit
def backward_rows(
    dy, dtotal, h, weight, dh, dweight, dbias, statistics, rows, width, dy_stride, dtotal_stride, h_stride, eps, offset,
    ADD: tl.constexpr, CENTRED: tl.constexpr, HAS_WEIGHT: tl.constexpr,
    SUM_WEIGHT: tl.constexpr, SUM_BIAS: tl.constexpr, HOLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dh = gradient of norm(h), plus with ADD ``dtotal``; parts of dweight = Σ dy·n and dbias = Σ dy over its rows."""
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    weight_N = tl.load(weight + column_N, mask=inside_N, other=0.0) if HAS_WEIGHT else None
    if HOLD:
        dweight_N = tl.zeros([BLOCK], tl.float32)
        dbias_N = tl.zeros([BLOCK], tl.float32)
        for start in range(tl.program_id(0), rows, tl.num_programs(0)):
            row = tl.cast(start, tl.int64)
            h_N = tl.load(h + row * h_stride + column_N, mask=inside_N, other=0.0)
            dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0)
            c_N, _, r = scale_of(h_N.to(tl.float32), inside_N, width, eps, CENTRED)
            if SUM_WEIGHT:  # here and not below, where dy and dy·weight would be alive at once
                dweight_N += dy_N.to(tl.float32) * (c_N * r)
            if SUM_BIAS:
                dbias_N += dy_N.to(tl.float32)
            write_gradient(
                dh, dtotal, row, column_N, inside_N, dy_N, c_N, r, weight_N, width, dtotal_stride, offset, ADD, CENTRED
            )
        part = tl.program_id(0).to(tl.int64) * width
        if SUM_WEIGHT:
            tl.store(dweight + part + column_N, dweight_N, mask=inside_N)
        if SUM_BIAS:
            tl.store(dbias + part + column_N, dbias_N, mask=inside_N)
    else:
        row = tl.program_id(0).to(tl.int64)
        h_N = tl.load(h + row * h_stride + column_N, mask=inside_N, other=0.0)
        dy_N = tl.load(dy + row * dy_stride + column_N, mask=inside_N, other=0.0)
        c_N, mean, r = scale_of(h_N.to(tl.float32), inside_N, width, eps, CENTRED)
        if statistics is not None:
            tl.store(statistics + 2 * row, mean)
            tl.store(statistics + 2 * row + 1, r)
        write_gradient(
            dh, dtotal, row, column_N, inside_N, dy_N, c_N, r, weight_N, width, dtotal_stride, offset, ADD, CENTRED
        )


@triton.jit
def columns_of_gradients(
    dy, h, statistics, dweight, dbias, rows, width, dy_stride, h_stride,
    SUM_WEIGHT: tl.constexpr, SUM_BIAS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Parts of dweight and dbias of BLOCK columns, over every ``num_programs(1)``-th tile of ROWS rows."""
    column_C = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    across_C = column_C < width
    dweight_RC = tl.zeros([ROWS, BLOCK], tl.float32)
    dbias_RC = tl.zeros([ROWS, BLOCK], tl.float32)
    for start in range(tl.program_id(1) * ROWS, rows, tl.num_programs(1) * ROWS):
        row_R = tl.cast(start, tl.int64) + tl.arange(0, ROWS)
        down_R = row_R < rows
        inside_RC = down_R[:, None] & across_C[None, :]
        dy_RC = tl.load(dy + row_R[:, None] * dy_stride + column_C[None, :], mask=inside_RC, other=0.0).to(tl.float32)
        if SUM_WEIGHT:
            h_RC = tl.load(h + row_R[:, None] * h_stride + column_C[None, :], mask=inside_RC, other=0.0)
            mean_R = tl.load(statistics + 2 * row_R, mask=down_R, other=0.0)
            r_R = tl.load(statistics + 2 * row_R + 1, mask=down_R, other=0.0)
            n_RC = (h_RC.to(tl.float32) - mean_R[:, None]) * r_R[:, None]
            dweight_RC += dy_RC * n_RC
        if SUM_BIAS:
            dbias_RC += dy_RC
    part = tl.program_id(1).to(tl.int64) * width
    if SUM_WEIGHT:
        tl.store(dweight + part + column_C, tl.sum(dweight_RC, 0), mask=across_C)
    if SUM_BIAS:
        tl.store(dbias + part + column_C, tl.sum(dbias_RC, 0), mask=across_C)
