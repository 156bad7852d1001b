"""What autocast does to the ops that it knows: products run in its dtype, losses and some reductions in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast gives products where ``x`` lies; None where it is off, and for fp64, which it leaves."""
    device = x.device.type
    if device == "meta" or x.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return None  # PyTorch has no autocast for meta tensors, and raises if asked
    return torch.get_autocast_dtype(device)
