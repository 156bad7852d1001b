"""Which kernel ``scaled_dot_product_attention`` lands on, and why it is not a fused one.

Asking for SDPA is no promise of a fused kernel: what no kernel takes is computed by parts, without a word.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

BackendName = Literal["flash", "cudnn", "efficient", "math"]


class Backend(NamedTuple):
    """Where SDPA lands. ``math`` computes by parts and stores the scores; ``reason`` then says why."""

    name: BackendName
    reason: str | None = None


CPU_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Backend:
    """The backend for exactly these arguments of SDPA: (batch, heads, length, head_dim), mask ready.

    On a CPU the rules are those of ATen's ``use_flash_attention_cpp``. On a GPU PyTorch itself is asked.
    """
    if q.device.type == "cpu":
        reason = _cpu_refusal(q, k, v, mask, dropout)
        return Backend("flash") if reason is None else Backend("math", reason)
    if q.device.type == "cuda":
        return _cuda_backend(q, k, v, mask, dropout, causal)
    return (
        Backend("flash")
        if q.device.type == "meta"
        else Backend("math", f"SDPA on {q.device.type} has no kernel known here")
    )


def _cpu_refusal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> str | None:
    if not torch.backends.cuda.flash_sdp_enabled():
        return "the flash backend of SDPA is switched off"
    if dropout > 0.0:
        return "SDPA on a CPU has no fused kernel with dropout"
    if q.dim() != 4:
        return f"SDPA fuses 4 dimensions, not {q.dim()}"
    if q.dtype not in CPU_DTYPES:
        return f"SDPA on a CPU has no fused kernel in {q.dtype}"
    if not q.size(-1) == k.size(-1) == v.size(-1):
        return f"SDPA on a CPU needs one head_dim, not {q.size(-1)} for q and k and {v.size(-1)} for v"
    if not q.size(0) == k.size(0) == v.size(0):
        return "SDPA does not broadcast the batch"
    if not q.size(2) or not k.size(2):
        return "there are no queries or no keys"
    return _cpu_stride_refusal(q, k, v, mask) or _cpu_mask_refusal(mask)


def _cpu_stride_refusal(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    for name, x in (("q", q), ("k", k), ("v", v), ("the mask", mask)):
        if x is not None and x.stride(-1) != 1 and x.size(-1) != 1:
            return f"the last dimension of {name} has stride {x.stride(-1)}, not 1"
    return None


def _cpu_mask_refusal(mask: Tensor | None) -> str | None:
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        return "the mask takes a gradient, which SDPA's kernel on a CPU does not compute"
    return None


def _cuda_backend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool) -> Backend:
    grouped = q.size(-3) != k.size(-3)
    params = torch.backends.cuda.SDPAParams(q, k, v, mask, dropout, causal, grouped)
    checks: tuple[tuple[BackendName, Callable[..., bool]], ...] = (
        ("flash", torch.backends.cuda.can_use_flash_attention),
        ("cudnn", torch.backends.cuda.can_use_cudnn_attention),
        ("efficient", torch.backends.cuda.can_use_efficient_attention),
    )
    for name, usable in checks:
        if usable(params, False):
            return Backend(name)
    return Backend("math", "; ".join(f"{name}: {_complaint(usable, params)}" for name, usable in checks))


def _complaint(usable: Callable[..., bool], params: Any) -> str:
    """What PyTorch says against a backend: it says so in warnings only."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        usable(params, True)
    messages = [str(w.message).split("(Triggered", 1)[0].strip() for w in caught]
    return " ".join(messages) or "it can't be used, PyTorch gives no reason"
