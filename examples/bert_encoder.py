"""A BERT-style encoder: post-norm, attention by parts, GELU in the feed-forward part.

    fusion-audit run examples/bert_encoder.py

What to look for in the audit:

* attention-by-parts: matmul, scale, mask, softmax, matmul are written out, as many older models do;
* residual add + layer norm: the sum before each of PyTorch's own layer norms;
* the bias and GELU after the first linear layer: an epilogue of that matrix product;
* q, k and v: three matrix products on one input.
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention by parts, with an additive mask."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores + mask, dim=-1)
        return self.output((weights @ v).transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] → [batch, heads, length, hidden / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Layer(nn.Module):
    """Attention and feed-forward, each followed by residual add and norm."""

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = SelfAttention(hidden, heads)
        self.attention_norm = nn.LayerNorm(hidden)
        self.intermediate = nn.Linear(hidden, inner)
        self.output = nn.Linear(inner, hidden)
        self.output_norm = nn.LayerNorm(hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.output(F.gelu(self.intermediate(x))))


class Encoder(nn.Module):
    """Embeddings, layers, and the first token's pooled vector."""

    def __init__(self, hidden: int, layers: int, heads: int, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(longest, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(Layer(hidden, heads, 4 * hidden) for _ in range(layers))
        self.pooler = nn.Linear(hidden, hidden)

    def forward(self, tokens: Tensor, keep: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(positions))
        mask = (1.0 - keep[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return torch.tanh(self.pooler(x[:, 0]))


def main() -> None:
    parser = argparse.ArgumentParser(description="Embed a batch of padded sequences.")
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Encoder(args.hidden, args.layers, args.heads, 8192, args.length).to(device).eval()
    tokens = torch.randint(8192, (args.batch, args.length), device=device)
    lengths = torch.randint(args.length // 2, args.length + 1, (args.batch, 1), device=device)
    keep = torch.arange(args.length, device=device) < lengths
    with torch.no_grad():
        for _ in range(args.steps):
            pooled = model(tokens, keep)
    print(f"{args.steps} steps, pooled vectors {tuple(pooled.shape)}, mean norm {pooled.norm(dim=-1).mean():.3f}")


if __name__ == "__main__":
    main()
