"""What a gate compiles of a matrix product: every tile and precision that its launcher may choose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from fused_replacements.kernels._gemm import LAUNCHES, GemmLaunch, in_dtype
from fused_replacements.kernels._launch import KernelCase

PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {"fp32": ("ieee", "tf32"), "bf16": ("ieee",), "fp16": ("ieee",)}
"""``precision`` of each dtype. In fp32 products are full ones by default: without tensor cores, and of other code."""


def launches(dtype: str, aligned: bool) -> Iterator[tuple[GemmLaunch, str]]:
    """Each tile that ``gemm_launch`` may give, and each precision that it may be launched with."""
    kind = torch.float32 if dtype == "fp32" else torch.bfloat16
    for tile in dict.fromkeys(in_dtype(launch, kind, aligned) for launch in LAUNCHES):
        for mode in PRECISIONS[dtype]:
            yield tile, mode


def product_case(
    kernel: Any, label: str, tile: GemmLaunch, dtype: str, mode: str, aligned: frozenset[str], values: dict[str, Any],
    narrow: frozenset[str] = frozenset(),
) -> KernelCase:  # fmt: skip
    """``values`` for the parameters that are the kernel's own; the others have what all products have in common.

    Strides from row to row are called ``…_row``, within a row ``…_column``, constexprs in capitals, of which those
    that say whether there is an operand are true; whatever else is unknown points to ``dtype``.
    """
    known = {"rows": "i32", "columns": "i32", "depth": "i32", **tile.constants, "PRECISION": mode, **values}

    def of(name: str) -> Any:
        if name.endswith("_column"):
            return known.get(name, 1)
        return known.get(name, "i32" if name.endswith("_row") else True if name.isupper() else f"*{dtype}")

    return KernelCase(
        kernel, f"{label}, {mode}" if dtype == "fp32" else label, {name: of(name) for name in kernel.arg_names},
        tile.warps, loads=None, stores=None, stages=tile.stages, waves=tile.waves, amd_stages=tile.amd_stages,
        aligned=aligned, tensor_cores=dtype != "fp32" or mode == "tf32", narrow=narrow,
    )  # fmt: skip
