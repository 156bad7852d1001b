"""Whether a reduction of PyTorch's own goes down columns, as its template says.

``reduce_kernel<128, 4, …>`` has as its second number how many results a thread makes side by side: more than one only
where it reduces along another than the innermost dimension (aten/src/ATen/native/cuda/Reduce.cuh, ``setReduceConfig``:
``output_vec_size``). ROCm's builds have the same template.
"""

from __future__ import annotations

import re
from functools import lru_cache

from auditor.kernels.name import read_name

_RESULTS = re.compile(r"<\s*\d+u?\s*,\s*(\d{1,4})")
_KEPT = 16_384


@lru_cache(maxsize=_KEPT)
def goes_down_columns(kernel: str) -> bool:
    """Whether the kernel of this name is known to; one that is not may do so all the same."""
    name = read_name(kernel)
    results = _RESULTS.match(name.args) if name.head.endswith("reduce_kernel") else None
    return results is not None and int(results[1]) > 1
