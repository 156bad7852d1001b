"""Tensors that lie one behind the other in one buffer, read as one."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def adjacent(tensors: Sequence[Tensor]) -> bool:
    """Whether ``tensors``, contiguous and of one dtype and width, follow each other without a gap in one storage."""
    first = tensors[0]
    place, storage = first.storage_offset(), first.untyped_storage()._cdata
    for tensor in tensors:
        if tensor.storage_offset() != place or tensor.untyped_storage()._cdata != storage:
            return False
        if tensor.dtype is not first.dtype or tensor.shape[1:] != first.shape[1:] or not tensor.is_contiguous():
            return False
        place += tensor.numel()
    return True


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """All rows of ``tensors`` as one tensor, without a copy. They must be ``adjacent``."""
    first = tensors[0]
    return first.as_strided((sum([tensor.size(0) for tensor in tensors]), *first.shape[1:]), first.stride())
