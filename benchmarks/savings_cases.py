"""The sites that :mod:`savings` measures: what real models write between their GEMMs, as plain functions.

``TUNED`` were looked at while the savings model was written, ``HELD_OUT`` were measured after its last change:
their error is the one to believe. Sizes are those of the main tensor, in MB (2**20 bytes).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH = 1024


@dataclass(frozen=True)
class Case:
    """``make(rows, dtype)`` gives the inputs; ``fn(*inputs)`` is the site."""

    name: str
    family: str
    fn: Callable[..., Tensor | tuple[Tensor, ...]]
    make: Callable[[int, torch.dtype], tuple[Tensor, ...]]
    mb: float
    dtype: torch.dtype = torch.float32

    @property
    def label(self) -> str:
        return f"{self.name} {self.mb:g} MB {'bf16' if self.dtype == torch.bfloat16 else 'f32'}"

    def inputs(self) -> tuple[Tensor, ...]:
        rows = max(1, int(self.mb * 2**20) // (WIDTH * self.dtype.itemsize))
        return self.make(rows, self.dtype)


def same(n: int) -> Callable[[int, torch.dtype], tuple[Tensor, ...]]:
    """``n`` tensors of one shape."""
    return lambda rows, dtype: tuple(torch.randn(rows, WIDTH, dtype=dtype) for _ in range(n))


def with_vectors(n: int, vectors: int) -> Callable[[int, torch.dtype], tuple[Tensor, ...]]:
    """``n`` full tensors, then ``vectors`` of one row."""

    def make(rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        full = [torch.randn(rows, WIDTH, dtype=dtype) for _ in range(n)]
        return (*full, *(torch.rand(WIDTH, dtype=dtype) + 0.5 for _ in range(vectors)))

    return make


def scores(rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Attention scores [batch·heads, q, k] and a mask [q, k]."""
    q = 128
    return torch.randn(max(1, rows * WIDTH // (q * 256)), q, 256, dtype=dtype), torch.randn(q, 256, dtype=dtype)


def heads(rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries [1, heads, sequence, 64] with cos and sin [1, 1, sequence, 64]."""
    q = torch.randn(1, WIDTH // 64, rows, 64, dtype=dtype)
    return q, torch.rand(1, 1, rows, 64, dtype=dtype), torch.rand(1, 1, rows, 64, dtype=dtype)


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + rotate_half(x) * sin


def rope_partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, kept = x[..., :32], x[..., 32:]
    return torch.cat((turned * cos[..., :32] + rotate_half(turned) * sin[..., :32], kept), -1)


def rms(x: Tensor, w: Tensor) -> Tensor:
    wide = x.to(torch.float32)
    return w * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def rms_gemma(x: Tensor, w: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * (1.0 + w.float())).type_as(x)


def add_rms(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return rms(total, w), total


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + 1e-5) * w + b


def add_layer_norm(x: Tensor, r: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = x + r
    return layer_norm(total, w, b), total


def softmax_mask(s: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(s * 0.125 + mask, -1)


def softmax_float(s: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(s / 8.0 + mask, -1, dtype=torch.float32).to(s.dtype)


def gelu_by_hand(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


BF16 = torch.bfloat16
EW, RED = "elementwise", "reduction"

TUNED = [
    Case("2 ops, scalars", EW, lambda x: x * 2 + 1, same(1), 8),
    Case("4 ops, scalars", EW, lambda x: ((x * 2 + 1) * 0.5) - 3, same(1), 32),
    Case("4 ops, scalars", EW, lambda x: ((x * 2 + 1) * 0.5) - 3, same(1), 0.5),
    Case("4 ops, scalars", EW, lambda x: ((x * 2 + 1) * 0.5) - 3, same(1), 8, BF16),
    Case("8 ops, scalars", EW, lambda x: (((x * 2 + 1) * 3 - 4) * 0.5 + 6) * 0.7 - 8, same(1), 2),
    Case("4 ops, tensors", EW, lambda x, a, b, c: ((x * a + b) * c) - a, same(4), 8),
    Case("4 ops, tensors", EW, lambda x, a, b, c: ((x * a + b) * c) - a, same(4), 64),
    Case("row broadcast, relu", EW, lambda x, w, b: torch.relu(x * w + b), with_vectors(1, 2), 16),
    Case("exp(-x)·y", EW, lambda x, y: torch.exp(-x) * y, same(2), 8),
    Case("tanh chain", EW, lambda x, y: torch.tanh(x * 0.8) * y + x, same(2), 16),
    Case("swish by hand", EW, lambda x: x * (1 / (1 + torch.exp(-x))), same(1), 4),
    Case("gelu by hand", EW, gelu_by_hand, same(1), 8),
    Case("bias + gelu", EW, lambda x, b: F.gelu(x + b), with_vectors(1, 1), 16),
    Case("gelu·mul", EW, lambda x, y: F.gelu(x) * y, same(2), 16),
    Case("gelu·mul", EW, lambda x, y: F.gelu(x) * y, same(2), 4, BF16),
    Case("silu·mul", EW, lambda x, y: F.silu(x) * y, same(2), 8),
    Case("silu·mul", EW, lambda x, y: F.silu(x) * y, same(2), 0.5),
    Case("silu·mul", EW, lambda x, y: F.silu(x) * y, same(2), 16, BF16),
    Case("rms_norm", RED, rms, with_vectors(1, 1), 8),
    Case("rms_norm", RED, rms, with_vectors(1, 1), 0.5),
    Case("rms_norm", RED, rms, with_vectors(1, 1), 4, BF16),
    Case("add + rms_norm", RED, add_rms, with_vectors(2, 1), 16),
    Case("add + rms_norm", RED, add_rms, with_vectors(2, 1), 4, BF16),
    Case("layer_norm by hand", RED, layer_norm, with_vectors(1, 2), 8),
    Case("softmax(scale, mask)", RED, softmax_mask, scores, 16),
    Case("softmax(scale, mask)", RED, softmax_float, scores, 4, BF16),
    Case("rope", EW, rope, heads, 8),
    Case("rope", EW, rope, heads, 4, BF16),
    Case("6 ops, mixed", EW, lambda x, a, b: ((x * a + 1) * b - x) * 0.5 + a, same(3), 4),
    Case("sqrt, div chain", EW, lambda x, a: torch.sqrt(x * x + 1) / (a.abs() + 2), same(2), 24),
    Case("squared relu·mul", EW, lambda x, y: torch.relu(x).pow(2) * y, same(2), 8),
    Case("quick gelu", EW, lambda x: x * torch.sigmoid(1.702 * x), same(1), 8, BF16),
    Case("soft cap", EW, lambda x: torch.tanh(x / 30.0) * 30.0, same(1), 64),
    Case("gelu(tanh)·mul", EW, lambda x, y: F.gelu(x, approximate="tanh") * y, same(2), 32, BF16),
    Case("bias + residual, relu", EW, lambda x, r, b: torch.relu(x + b + r), with_vectors(2, 1), 0.5),
    Case("mish by hand", EW, lambda x: x * torch.tanh(torch.log1p(torch.exp(x))), same(1), 2),
    Case("rms_norm (1+w)", RED, rms_gemma, with_vectors(1, 1), 2, BF16),
    Case("add + layer_norm", RED, add_layer_norm, with_vectors(2, 2), 4),
    Case("l2 normalise", RED, lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6), same(1), 16),
    Case("softmax(scale, mask)", RED, softmax_mask, scores, 2, BF16),
    Case("rope, half the head", EW, rope_partial, heads, 2),
    Case("rope", EW, rope, heads, 64),
]

HELD_OUT = [
    Case("hard swish by hand", EW, lambda x: x * torch.clamp(x + 3, 0, 6) / 6, same(1), 12),
    Case("elu by hand", EW, lambda x: torch.where(x > 0, x, torch.exp(x) - 1), same(1), 8),
    Case("sigmoid·tanh gate", EW, lambda a, b: torch.sigmoid(a) * torch.tanh(b), same(2), 4),
    Case("log(x²+1)·y", EW, lambda x, y: torch.log(x * x + 1) * y, same(2), 16),
    Case("sin features", EW, lambda x, w: torch.sin(x * w) * 0.5 + x, with_vectors(1, 1), 2),
    Case("layer scale", EW, lambda x, y, g, b: x + g * (y + b), with_vectors(2, 2), 32, BF16),
    Case("leaky relu, affine", EW, lambda x, w, b: F.leaky_relu(x * w + b, 0.1), with_vectors(1, 2), 1, BF16),
    Case("cast, affine, cast", EW, lambda x: (x.float() * 1.5 + 0.25).to(x.dtype), same(1), 16, BF16),
    Case("silu·mul + residual", EW, lambda x, y, r: F.silu(x) * y + r, same(3), 32),
    Case("gelu·mul", EW, lambda x, y: F.gelu(x) * y, same(2), 2),
    Case("rms_norm", RED, rms, with_vectors(1, 1), 64),
    Case("add + rms_norm", RED, add_rms, with_vectors(2, 1), 1),
    Case("layer_norm by hand", RED, layer_norm, with_vectors(1, 2), 4, BF16),
    Case(
        "standardise rows", RED, lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6), same(1), 4
    ),
    Case("softmax(temperature)", RED, lambda s, _: torch.softmax(s / 0.7, -1), scores, 32),
    Case("rope", EW, rope, heads, 16, BF16),
]
