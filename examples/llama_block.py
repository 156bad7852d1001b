"""A Llama-style decoder by hand, run as an inference loop.

    python examples/llama_block.py
    fusion-audit run examples/llama_block.py

Everything between the matrix products is written the way model code usually is: RMSNorm in six ops, the
residual add before it, rotary embedding by halves, silu(gate) * up in two. What to look for in the audit:

* unfused-add-rms-norm: a residual sum and the norm after it, twice a layer; the very first norm has no sum;
* unfused-rotary-embedding: q and k are two sites in each layer;
* unfused-gated-activation: silu(gate) * up;
* sibling matrix products: q, k and v read one tensor, gate and up read another;
* the attention itself is *not* a finding: F.scaled_dot_product_attention is fused already.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Normalises in fp32, multiplies by the weight after casting back, as Llama does."""

    def __init__(self, hidden: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        variance = x32.pow(2).mean(-1, keepdim=True)
        return self.weight * (x32 * torch.rsqrt(variance + self.eps)).to(x.dtype)


def rotate_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.q_proj = nn.Linear(hidden, heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(heads * self.head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class MLP(nn.Module):
    """silu(gate) * up, then down."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Norm, attention, add; norm, MLP, add."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.input_norm = RMSNorm(hidden)
        self.attention = Attention(hidden, heads, kv_heads)
        self.post_norm = RMSNorm(hidden)
        self.mlp = MLP(hidden, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.input_norm(x), cos, sin)
        return x + self.mlp(self.post_norm(x))


class Llama(nn.Module):
    """Embedding, blocks, final norm, output head."""

    def __init__(self, hidden: int, layers: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, heads // 2, hidden * 2) for _ in range(layers))
        self.norm = RMSNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        cos, sin = self.positions(tokens.shape[1], x)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))

    def positions(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding, [length, head_dim]."""
        frequencies = 1e4 ** (-torch.arange(0, self.head_dim, 2, device=like.device) / self.head_dim)
        angles = torch.outer(torch.arange(length, device=like.device), frequencies).repeat(1, 2)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def main() -> None:
    parser = argparse.ArgumentParser(description="Inference loop of a Llama-style decoder.")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=256, help="tokens of each sequence")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Llama(args.hidden, args.layers, args.heads, args.vocabulary)
    model = model.to(device, getattr(torch, args.dtype)).eval()
    tokens = torch.randint(args.vocabulary, (args.batch, args.length), device=device)
    start = time.perf_counter()
    with torch.inference_mode():
        for _ in range(args.steps):
            best = model(tokens)[:, -1].argmax(-1)
    seconds = time.perf_counter() - start
    print(f"{args.steps} steps in {seconds:.2f} s, next tokens {best.tolist()}")


if __name__ == "__main__":
    main()
