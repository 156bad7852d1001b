"""Kernels for the tests of the static gates: each fault beside the healthy twin that differs in that fault only.

Imported by the processes that compile, never by a test session, where Triton makes kernels for its interpreter.
"""

# ruff: noqa: N803 - constexpr arguments are capital, shapes are suffixes

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import triton
import triton.language as tl

from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, row_launch


@triton.jit
def scale_rows(x, y, width, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    y_N = x_N * tl.rsqrt(tl.sum(x_N * x_N, 0) / width + eps)
    tl.store(y + row * y_stride + column_N, y_N, mask=inside_N)


@triton.jit
def reads_twice(x, y, width, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    r = tl.rsqrt(tl.sum(x_N * x_N, 0) / width + eps)
    again_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0, eviction_policy="evict_first")
    tl.store(y + row * y_stride + column_N, again_N.to(tl.float32) * r, mask=inside_N)


@triton.jit
def writes_twice(x, y, width, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + column_N, x_N * x_N, mask=inside_N)
    y_N = x_N * tl.rsqrt(tl.sum(x_N * x_N, 0) / width + eps)
    tl.store(y + row * y_stride + column_N, y_N, mask=inside_N)


@triton.jit
def narrow_rows(x, y, width, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    y_N = x_N * tl.rsqrt(tl.sum(x_N * x_N, 0) / width + eps)
    tl.store(y + row.to(tl.int64) * y_stride + column_N, y_N, mask=inside_N)


@triton.jit
def narrow_rows_in_a_loop(x, y, rows, width, x_stride, y_stride, BLOCK: tl.constexpr):
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0)
        tl.store(y + tl.cast(row, tl.int64) * y_stride + column_N, x_N * 2.0, mask=inside_N)


@triton.jit
def apart(x, y, width, x_stride, y_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N * 2, mask=inside_N, other=0.0).to(tl.float32)
    y_N = x_N * tl.rsqrt(tl.sum(x_N * x_N, 0) / width + eps)
    tl.store(y + row * y_stride + column_N, y_N, mask=inside_N)


@triton.jit
def row_statistic(x, mean, factor, width, x_stride, BLOCK: tl.constexpr):
    """One element in, one element out, beside the row: every thread loads the first, one stores the second."""
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.arange(0, BLOCK)
    x_N = tl.load(x + row * x_stride + column_N, mask=column_N < width, other=0.0).to(tl.float32)
    tl.store(mean + row, tl.sum(x_N, 0) / width * tl.load(factor + row))


@triton.jit
def flat(x, y, count, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    offset_N = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offset_N, tl.load(x + offset_N, mask=offset_N < count) * 2.0, mask=offset_N < count)


@triton.jit
def columns(x, bias, y, width, x_stride, y_stride, BLOCK: tl.constexpr):
    """A row in several programs: ``column_N`` is an offset in 32 bits within a row that has one in 64."""
    row = tl.program_id(0).to(tl.int64)
    column_N = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside_N = column_N < width
    x_N = tl.load(x + row * x_stride + column_N, mask=inside_N, other=0.0).to(tl.float32)
    x_N += tl.load(bias + column_N, mask=inside_N, other=0.0).to(tl.float32)
    tl.store(y + row * y_stride + column_N, x_N, mask=inside_N)


@triton.jit
def multiply(a, b, c, depth, a_stride, b_stride, c_stride, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    row_M = tl.program_id(0) * M + tl.arange(0, M)
    column_N = tl.program_id(1) * N + tl.arange(0, N)
    inner_K = tl.arange(0, K)
    sum_MN = tl.zeros([M, N], tl.float32)
    for start in range(0, depth, K):
        a_MK = tl.load(a + row_M[:, None].to(tl.int64) * a_stride + (start + inner_K)[None, :])
        b_KN = tl.load(b + (start + inner_K)[:, None].to(tl.int64) * b_stride + column_N[None, :])
        sum_MN = tl.dot(a_MK, b_KN, sum_MN)
    tl.store(c + row_M[:, None].to(tl.int64) * c_stride + column_N[None, :], sum_MN)


def cases(width: int, dtype: str) -> Iterator[KernelCase]:
    """Every fault and its twin; ``label`` says which."""
    pointer, size = f"*{dtype}", ELEMENT_BYTES[dtype] * width
    launch = row_launch(width)
    strides = {"width": "i32", "x_stride": "i64", "y_stride": "i64"}
    known = frozenset(strides) if width % 16 == 0 else frozenset()
    arguments = {"x": pointer, "y": pointer, **strides, "eps": "fp32", "BLOCK": launch.block}
    healthy = KernelCase(scale_rows, "healthy", arguments, launch.warps, loads=size, stores=size, aligned=known)
    yield healthy
    yield replace(healthy, label="fp64 eps", arguments={**arguments, "eps": "fp64"})
    yield replace(healthy, label="says too much", loads=size * 2)
    yield replace(healthy, label="forgets a parameter", arguments={**arguments, "z": pointer})
    yield replace(healthy, label="unknown alignment", aligned=frozenset())
    yield replace(healthy, label="no matrix instructions", tensor_cores=True)
    for kernel in (reads_twice, writes_twice, narrow_rows, apart):
        yield replace(healthy, kernel=kernel, label=kernel.__name__)
    yield replace(healthy, kernel=apart, label="apart, and says so", narrow=frozenset({"x"}))
    for label, block in (("oversized tile", 131072), ("tile that fits", 32768)):
        yield KernelCase(
            scale_rows, label, {**arguments, "BLOCK": block}, 16, loads=None, stores=None, aligned=known
        )  # fmt: skip
    yield KernelCase(
        narrow_rows_in_a_loop,
        "narrow_rows_in_a_loop",
        {"x": pointer, "y": pointer, "rows": "i32", **strides, "BLOCK": launch.block},
        launch.warps, loads=size, stores=size, aligned=known,
    )  # fmt: skip
    yield KernelCase(
        row_statistic,
        "row_statistic",
        {"x": pointer, "mean": "*fp32", "factor": "*fp32", "width": "i32", "x_stride": "i64", "BLOCK": launch.block},
        launch.warps, loads=size + 4, stores=4, aligned=known,
    )  # fmt: skip
    yield from _elementwise(pointer, ELEMENT_BYTES[dtype])
    yield from _tiles(pointer, ELEMENT_BYTES[dtype], strides, known)


def _elementwise(pointer: str, size: int) -> Iterator[KernelCase]:
    for wide in (True, False):
        yield KernelCase(
            flat,
            f"flat in {64 if wide else 32} bits",
            {"x": pointer, "y": pointer, "count": "i64", "BLOCK": 1024, "WIDE": wide},
            4, loads=1024 * size, stores=1024 * size, aligned=frozenset({"count"}),
        )  # fmt: skip


def _tiles(pointer: str, size: int, strides: dict[str, str], known: frozenset[str]) -> Iterator[KernelCase]:
    column = KernelCase(
        columns,
        "columns",
        {"x": pointer, "bias": pointer, "y": pointer, **strides, "BLOCK": 512},
        1, loads=1024 * size, stores=512 * size, aligned=known, vectors=frozenset({"bias"}),
    )  # fmt: skip
    yield column
    yield replace(column, label="columns, of a bias as long as rows", vectors=frozenset())
    yield KernelCase(
        multiply,
        "multiply",
        {
            "a": pointer, "b": pointer, "c": pointer, "depth": "i32", "a_stride": "i64", "b_stride": "i64",
            "c_stride": "i64", "M": 64, "N": 64, "K": 32,
        },
        4, loads=None, stores=None, stages=3, tensor_cores=True,
        aligned=frozenset({"depth", "a_stride", "b_stride", "c_stride"}),
    )  # fmt: skip
