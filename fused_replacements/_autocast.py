"""What autocast does to the ops that it knows: products run in its dtype, losses and some reductions in fp32."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of the autocast that is on for this type of device; None where none is, as for meta tensors."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None  # PyTorch raises if asked for a device that it has no autocast for
    return torch.get_autocast_dtype(device)


def product_dtype(x: Tensor) -> torch.dtype | None:
    """The dtype that autocast gives products where ``x`` lies; None where it is off, and for fp64, which it leaves."""
    return None if x.dtype is torch.float64 else autocast_dtype(x.device.type)
