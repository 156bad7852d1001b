"""How a kernel of PyTorch's own walks its tensors, as far as its template says.

``at::native::vectorized_elementwise_kernel<4, …>`` runs where all tensors are dense and alike; other elementwise
kernels where one is broadcast, strided or cast. ``reduce_kernel<128, 4, …>`` has as its second number how many results
a thread makes side by side: more than one where it goes down columns (aten/src/ATen/native/cuda/Reduce.cuh,
``setReduceConfig``: ``output_vec_size``). The same templates are in ROCm's builds.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal

from auditor.kernels.name import read_name

Walk = Literal["dense", "spread", "rows", "columns", ""]
"""Elementwise over dense tensors alike, elementwise over others, a reduction along rows, one along columns."""

_VECTOR_OF_RESULTS = re.compile(r"<\s*\d+(?:u)?\s*,\s*(\d+)")
_KEPT = 16_384


@lru_cache(maxsize=_KEPT)
def walk_of(kernel: str) -> Walk:
    """How the kernel called ``kernel`` walks; ``""`` where its name does not say."""
    name = read_name(kernel)
    if "vectorized_elementwise_kernel" in name.head:
        return "dense"
    if "elementwise_kernel" in name.head:
        return "spread"
    if name.head.endswith("reduce_kernel"):
        results = _VECTOR_OF_RESULTS.match(name.args)
        return "columns" if results and int(results[1]) > 1 else "rows"
    return ""
