"""How many kernels PyTorch launches for a list of tensors that it works on together.

A multi-tensor kernel takes as many tensors, and chunks of them, as fit in the arguments of one launch; both bounds are
those of ``ATen/native/cuda/MultiTensorApply.cuh`` (``depth_to_max_tensors``, ``depth_to_max_blocks``, ``kChunkSize``).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

CHUNK = 65536
"""Elements that one block works on."""
MAX_BLOCKS = 320
MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors of one launch, by how many lists of them the op reads and writes."""


def multi_tensor_launches(numels: Iterable[int], lists: int) -> int:
    """Launches for tensors of these sizes (elements; 0 where it is not known, so that it is a lower bound)."""
    sizes = list(numels)
    if not sizes:
        return 0
    blocks = sum(max(1, ceil(size / CHUNK)) for size in sizes)
    return max(ceil(len(sizes) / MAX_TENSORS[min(max(lists, 1), 5)]), ceil(blocks / MAX_BLOCKS))
