"""An architecture that no library knows: a gated token mixer with a norm and activations of its own.

    fusion-audit run examples/custom_architecture.py

No name in here says what it is, and no table of known models can help; only the dataflow tells. What to look for:

* PowerNorm is a layer norm written out, with a learned power of its scale: the generic chain finds it;
* squash(x) = x / (1 + |x|) and the gate's blend are chains of elementwise kernels;
* the decay of the mixer multiplies, adds and clamps one tensor: one kernel would do;
* `gate` and `candidate` are two matrix products on one input.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class PowerNorm(nn.Module):
    """(x - mean) / std^p, with a learned p and a learned shift."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.power = nn.Parameter(torch.tensor(0.9))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred * centred).mean(-1, keepdim=True).add(1e-6).sqrt()
        return centred / spread**self.power + self.shift


def squash(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


class DecayMixer(nn.Module):
    """Mixes along the sequence with fixed lags and a learned, clamped decay."""

    def __init__(self, width: int, lags: tuple[int, ...] = (1, 2, 4)) -> None:
        super().__init__()
        self.lags = lags
        self.decay = nn.Parameter(torch.linspace(0.2, 0.8, width).repeat(len(lags), 1))

    def forward(self, x: Tensor) -> Tensor:
        mixed = x
        for lag, decay in zip(self.lags, self.decay, strict=True):
            past = torch.roll(x, lag, dims=1)
            mixed = (mixed + past * torch.sigmoid(decay) * 0.5).clamp(-6.0, 6.0)
        return mixed


class GatedCell(nn.Module):
    """Norm, mixer, and a gate that blends a candidate into the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = PowerNorm(width)
        self.mixer = DecayMixer(width)
        self.gate = nn.Linear(width, width)
        self.candidate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixer(self.norm(x))
        gate = torch.sigmoid(self.gate(mixed) * 1.5 - 0.5)
        return gate * squash(self.candidate(mixed)) + (1 - gate) * x


class Stream(nn.Module):
    """Cells in a row, then an average over the sequence."""

    def __init__(self, width: int, cells: int) -> None:
        super().__init__()
        self.cells = nn.Sequential(*(GatedCell(width) for _ in range(cells)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x).mean(1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Classify random sequences with a gated token mixer.")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--cells", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=16)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Stream(args.width, args.cells).to(device).eval()
    x = torch.randn(args.batch, args.length, args.width, device=device)
    with torch.no_grad():
        for _ in range(args.steps):
            scores = model(x)
    print(f"{args.steps} steps, classes {scores.argmax(-1).tolist()}")


if __name__ == "__main__":
    main()
