"""Random q, k, v and masks for the samples of both kinds of attention."""

from __future__ import annotations

import torch
from torch import Tensor


class Make:
    """Tensors for ``rows`` queries of ``width`` channels in a batch of 1; a head has at most 64 channels."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.head_dim = max(1, min(64, width // 2))
        self.heads = max(1, width // self.head_dim)
        self.rows, self.dtype, self.device = rows, dtype, device

    def randn(self, *shape: int) -> Tensor:
        """Standard normal."""
        return torch.randn(shape, dtype=self.dtype, device=self.device)

    def qkv(
        self, past: int = 0, groups: int = 1, scale: float = 1.0, transposed: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v with ``past`` more keys than queries; ``transposed``: views of (batch, length, heads, head)."""
        groups = groups if self.heads % groups == 0 else 1
        sizes = [(self.heads, self.rows), *[(self.heads // groups, self.rows + past)] * 2]
        if transposed:
            q, k, v = (self.randn(1, length, heads, self.head_dim).transpose(1, 2) for heads, length in sizes)
        else:
            q, k, v = (self.randn(1, heads, length, self.head_dim) for heads, length in sizes)
        return q * scale, k, v

    def padding(self) -> Tensor:
        """(1, 1, 1, kv_len), True for the last third of the keys, which are padding."""
        return (torch.arange(self.rows, device=self.device) >= max(1, 2 * self.rows // 3)).view(1, 1, 1, -1)

    def bias(self) -> Tensor:
        """(1, heads, q_len, kv_len), as T5's relative bias."""
        return self.randn(1, self.heads, self.rows, self.rows)

    def slopes(self) -> Tensor:
        """ALiBi's slopes 2^(-8 i / heads), in fp32."""
        return torch.exp2(-8.0 * torch.arange(1, self.heads + 1, device=self.device) / self.heads).float()
