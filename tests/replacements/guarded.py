"""Buffers with a guard on either side: an access outside of a tensor shows as a NaN, or as a guard that changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from fused_replacements import _layout

GUARD = 256  # elements before and after


def _poison(dtype: torch.dtype) -> float | int:
    return float("nan") if dtype.is_floating_point else (torch.iinfo(dtype).max // 2 if dtype != torch.bool else 1)


@dataclass
class Guards:
    """Every guarded buffer of one run."""

    buffers: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # all of it, and the mask of the guard

    def place(self, tensor: Tensor) -> Tensor:
        """``tensor`` with its strides, inside a buffer of poison: gaps between its rows are guard too."""
        extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        extent = extent if tensor.numel() else 0
        buffer = torch.full((extent + 2 * GUARD,), _poison(tensor.dtype), dtype=tensor.dtype)
        outside = torch.ones(buffer.shape, dtype=torch.bool)
        view = torch.as_strided(buffer, tensor.shape, tensor.stride(), GUARD)
        torch.as_strided(outside, tensor.shape, tensor.stride(), GUARD).fill_(False)
        view.copy_(tensor)
        self.buffers.append((buffer, outside))
        return view

    def new(
        self, like: Tensor, shape: Sequence[int] | torch.Size | None = None, dtype: torch.dtype | None = None
    ) -> Tensor:
        return self.place(torch.full(tuple(like.shape if shape is None else shape), 7, dtype=dtype or like.dtype))

    def broken(self) -> list[str]:
        """Buffers whose guard a kernel wrote to."""
        found = []
        for number, (buffer, outside) in enumerate(self.buffers):
            rest = buffer[outside]
            intact = rest.isnan() if rest.is_floating_point() else rest == _poison(rest.dtype)
            if not bool(intact.all()):
                found.append(f"buffer {number}: {int((~intact).sum())} elements outside of it were written")
        return found


@contextmanager
def guarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guards]:
    """Kernels allocate their outputs inside guards."""
    guards = Guards()
    with monkeypatch.context() as patch:
        patch.setattr(_layout, "new", guards.new)
        yield guards
