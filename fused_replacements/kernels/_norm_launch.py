"""How the norms are launched: backward in one kernel or in two, what they refuse, and what a gate compiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
from torch import Tensor

from fused_replacements import _layout
from fused_replacements.kernels._launch import ELEMENT_BYTES, KernelCase, RowLaunch, on, programs, row_launch

MAX_NORM_BLOCK: Final = 16384
"""The widest row of a norm: above it a program of 1,024 threads spills in backward."""
MAX_KEPT_BLOCK: Final = 8192
"""The widest row beside which the sums of dweight and dbias fit in the registers of one program."""
COLUMN_ROWS: Final = 8
COLUMN_BLOCK: Final = 128
COLUMN_WARPS: Final = 4


def backward_launch(width: int, element_bytes: int) -> RowLaunch:
    """As for other rows, but at most 16 warps where sums are kept: 32 leave a thread 64 registers, and it spills.

    Either way one program fills a processor, with one row in flight. Where rows start anywhere, each element has an
    address of its own: then a thread takes half as many of them.
    """
    config = row_launch(width, 4)
    if not keeps_sums(config.block, width, element_bytes):
        return config
    most = 32 if _of_many_addresses(width, element_bytes) else 16
    return RowLaunch(config.block, min(most, config.warps if width % 16 == 0 else 2 * config.warps))


def keeps_sums(block: int, width: int, element_bytes: int) -> bool:
    """Whether the sums of dweight and dbias fit in registers beside a row: if not, a second kernel makes them."""
    return block <= (MAX_KEPT_BLOCK // 2 if _of_many_addresses(width, element_bytes) else MAX_KEPT_BLOCK)


def _of_many_addresses(width: int, element_bytes: int) -> bool:
    return element_bytes == 4 and width % 16 != 0


@dataclass(frozen=True)
class RowGradients:
    """What a backward of a norm returns: of the row, and in fp32 of weight and bias where they were asked for."""

    row: Tensor
    weight: Tensor | None
    bias: Tensor | None

    def asked_for(self, needs: Sequence[bool], weight: Tensor | None, bias: Tensor | None = None) -> list[Tensor]:
        """The gradients that ``needs`` marks, of row, weight and bias, in the dtypes of those."""
        found = [self.row]
        for total, vector in ((self.weight, weight), (self.bias, bias)):
            if total is not None and vector is not None:
                found.append(total.to(vector.dtype))
        return found if needs[0] else found[1:]


def launch_backward(
    kernel: Any, columns: Any, dy: Tensor, dtotal: Tensor | None, h: Tensor, weight: Tensor | None, eps: float,
    offset: float, sum_weight: bool, sum_bias: bool,
) -> RowGradients:  # fmt: skip
    """Gradients of ``norm(h)`` and of ``h`` itself (``dtotal``), by ``backward_rows`` as ``kernel`` names it."""
    rows, width, dh = _layout.rows(h), h.size(-1), _layout.new(h)
    config = backward_launch(width, h.element_size())
    hold = keeps_sums(config.block, width, h.element_size())
    apart = not hold and (sum_weight or sum_bias)
    count = max(1, min(rows, programs(h.device))) if hold else rows
    dweight = _parts(h, count, width) if sum_weight and not apart else None
    dbias = _parts(h, count, width) if sum_bias and not apart else None
    statistics = _layout.new(h, (rows, 2), torch.float32) if apart else None
    if not h.numel():
        return RowGradients(dh, _no_rows(h, sum_weight), _no_rows(h, sum_bias))
    with on(h):
        kernel[(count,)](
            dy, dtotal, h, weight, dh, dweight, dbias, statistics, rows, width, _layout.row_stride(dy),
            0 if dtotal is None else _layout.row_stride(dtotal), _layout.row_stride(h), eps, offset,
            ADD=dtotal is not None, HAS_WEIGHT=weight is not None,
            SUM_WEIGHT=dweight is not None, SUM_BIAS=dbias is not None, HOLD=hold, BLOCK=config.block,
            num_warps=config.warps, num_stages=1,
        )  # fmt: skip
        if statistics is not None:
            dweight, dbias = _launch_columns(columns, dy, h, statistics, sum_weight, sum_bias)
    return RowGradients(dh, *(None if parts is None else parts.sum(0) for parts in (dweight, dbias)))


def _launch_columns(
    kernel: Any, dy: Tensor, h: Tensor, statistics: Tensor, sum_weight: bool, sum_bias: bool
) -> tuple[Tensor | None, Tensor | None]:
    rows, width = _layout.rows(h), h.size(-1)
    blocks = triton.cdiv(width, COLUMN_BLOCK)
    count = max(1, min(triton.cdiv(rows, COLUMN_ROWS), programs(h.device) // blocks))
    dweight = _parts(h, count, width) if sum_weight else None
    dbias = _parts(h, count, width) if sum_bias else None
    kernel[(blocks, count)](
        dy, h, statistics, dweight, dbias, rows, width, _layout.row_stride(dy), _layout.row_stride(h),
        SUM_WEIGHT=sum_weight, SUM_BIAS=sum_bias, ROWS=COLUMN_ROWS, BLOCK=COLUMN_BLOCK,
        num_warps=COLUMN_WARPS, num_stages=1,
    )  # fmt: skip
    return dweight, dbias


def _parts(like: Tensor, count: int, width: int) -> Tensor:
    return _layout.new(like, (count, width), torch.float32)


def _no_rows(like: Tensor, wanted: bool) -> Tensor | None:
    return torch.zeros(like.size(-1), device=like.device) if wanted else None


def too_wide(x: Tensor) -> str | None:
    """Why one program can't hold a row of ``x``, or None."""
    if x.size(-1) > MAX_NORM_BLOCK:
        return f"rows of {x.size(-1)} elements are wider than the {MAX_NORM_BLOCK} that one program holds"
    return None


def vector_refusal(x: Tensor, **vectors: Tensor | None) -> str | None:
    """Why a kernel can't read ``vectors`` beside a row of ``x``: it takes one element of each for every column."""
    for name, vector in vectors.items():
        if vector is not None and (tuple(vector.shape) != (x.size(-1),) or not vector.is_contiguous()):
            return f"{name} has shape {tuple(vector.shape)} and strides {vector.stride()}, not ({x.size(-1)},) and (1,)"
    return None


def add_refusal(x: Tensor, residual: Tensor, *vectors: Tensor | None) -> str | None:
    """Why a kernel can't add ``residual`` to ``x`` row by row and norm the sum, or None."""
    if x.shape != residual.shape:
        return f"residual has shape {tuple(residual.shape)}, and x {tuple(x.shape)}"
    named = dict(zip(("weight", "bias"), vectors, strict=False))
    return too_wide(x) or vector_refusal(x, **named) or _layout.row_refusal(x=x, residual=residual)


def sum_alone(dtotal: Tensor, total: Tensor, needs: Sequence[bool], *vectors: Tensor | None) -> list[Tensor]:
    """The gradients where only the sum was used: its own, and zeros for what the norm would have learned."""
    found = [dtotal.to(total.dtype, copy=True).contiguous()] if needs[0] else []
    return found + [torch.zeros_like(v) for v, need in zip(vectors, needs[1:], strict=True) if need and v is not None]


def result_dtype(
    dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None, round_first: bool, wide: bool = False
) -> torch.dtype:
    """What a norm of rows of ``dtype`` returns: it promotes where weight and bias act on rounded rows."""
    for vector in (weight, bias) if round_first else ():
        dtype = dtype if vector is None else torch.promote_types(dtype, vector.dtype)
    return torch.float32 if wide else dtype


def forward_case(
    kernel: Any, label: str, width: int, dtype: str, round_first: bool, *, add: bool = False, bias: bool = False
) -> KernelCase:
    """A forward with weight: x, residual, weight and bias are read once, y and the sum written once."""
    config, size = row_launch(width, 2), ELEMENT_BYTES[dtype] * width
    values = {
        **dict.fromkeys(("x", "residual", "weight", "y", "total"), f"*{dtype}"),
        "bias": f"*{dtype}" if bias else None,
        "ROUND_FIRST": round_first, "HAS_WEIGHT": True, "HAS_BIAS": bias, "BLOCK": config.block,
    }  # fmt: skip
    loads, stores = size * (2 + add + bias), size * (1 + add)
    return _case(kernel, f"forward, {label}", values, width, config.warps, loads, stores)


def backward_cases(
    kernel: Any, columns: Any, width: int, dtype: str, *, add: bool = False, bias: bool = False
) -> Iterator[KernelCase]:
    """The backward that learns weight (and bias): one kernel, or above MAX_KEPT_BLOCK two."""
    config, size = backward_launch(width, ELEMENT_BYTES[dtype]), ELEMENT_BYTES[dtype] * width
    apart = not keeps_sums(config.block, width, ELEMENT_BYTES[dtype])
    values = {
        **dict.fromkeys(("dy", "x", "total", "h", "weight", "dx", "dh"), f"*{dtype}"),
        "dtotal": f"*{dtype}" if add else None,
        "dweight": None if apart else "*fp32", "dbias": "*fp32" if bias and not apart else None,
        "statistics": "*fp32" if apart else None,
        "ADD": add, "HAS_WEIGHT": True, "SUM_WEIGHT": not apart,
        "SUM_BIAS": bias and not apart, "HOLD": not apart, "BLOCK": config.block,
    }  # fmt: skip
    sums = 8 if apart else 4 * width * (1 + bias)
    yield _case(kernel, "backward", values, width, config.warps, size * (3 + add), size + sums)
    if apart:
        yield _columns_case(columns, width, dtype, bias)


def _columns_case(kernel: Any, width: int, dtype: str, bias: bool) -> KernelCase:
    tile = ELEMENT_BYTES[dtype] * COLUMN_ROWS * COLUMN_BLOCK
    values = {
        "dy": f"*{dtype}", "h": f"*{dtype}", "statistics": "*fp32", "dweight": "*fp32",
        "dbias": "*fp32" if bias else None, "SUM_WEIGHT": True, "SUM_BIAS": bias,
        "ROWS": COLUMN_ROWS, "BLOCK": COLUMN_BLOCK,
    }  # fmt: skip
    loads, stores = 2 * tile + 8 * COLUMN_ROWS, 4 * COLUMN_BLOCK * (1 + bias)
    return _case(kernel, "backward, columns", values, width, COLUMN_WARPS, loads, stores)


def _case(
    kernel: Any, label: str, values: dict[str, Any], width: int, warps: int, loads: int, stores: int
) -> KernelCase:
    """``values`` for the parameters that ``kernel`` has; sizes and strides are those of every norm."""
    scalars = {"rows": "i32", "width": "i32", "eps": "fp32", "offset": "fp32"}
    strides = {name: "i64" for name in kernel.arg_names if name.endswith("_stride")}
    known = {**values, **scalars, **strides}
    arguments = {name: known[name] for name in kernel.arg_names}
    aligned = frozenset({"width", *strides}) if width % 16 == 0 else frozenset()
    return KernelCase(kernel, label, arguments, warps, loads, stores, aligned=aligned)
