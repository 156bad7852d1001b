"""A small training loop: forward, loss, backward, optimizer.

    fusion-audit run examples/training_loop.py
    fusion-audit run examples/training_loop.py --optimizer sgd

A step of the audit reaches from the forward pass to the end of optimizer.step(). What to look for:

* the backward pass has findings of its own, marked with their phase;
* a value that backward needs is one more output of the fused kernel: compare bytes with those of inference;
* the update is a few kernels for every parameter: one finding of the optimizer, which fused=True mends;
* with --optimizer sgd-by-hand there is no such argument: on a CPU each parameter's chain could be one kernel, on a GPU
  lists of all parameters take a kernel for each op.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SwishNorm(nn.Module):
    """Linear, RMS norm by hand, swish by hand, residual add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        return x + h * torch.sigmoid(h)


class Regressor(nn.Module):
    """A stack of SwishNorm layers."""

    def __init__(self, features: int, width: int, depth: int) -> None:
        super().__init__()
        self.inward = nn.Linear(features, width)
        self.layers = nn.Sequential(*(SwishNorm(width) for _ in range(depth)))
        self.outward = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.outward(self.layers(self.inward(x))).squeeze(-1)


class SgdByHand(torch.optim.Optimizer):
    """Plain gradient descent with weight decay, one parameter at a time."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": 1e-4})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                p -= group["lr"] * (p.grad + group["weight_decay"] * p)
        return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit a small network to a noisy function.")
    parser.add_argument("--optimizer", choices=["adamw", "sgd", "sgd-by-hand"], default="adamw")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Regressor(16, args.width, args.depth).to(device)
    optimizer = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-3),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        "sgd-by-hand": lambda: SgdByHand(model.parameters(), lr=1e-3),
    }[args.optimizer]()
    first = last = 0.0
    for step in range(args.steps):
        x = torch.randn(args.batch, 16, device=device)
        target = torch.sin(x[:, 0]) * x[:, 1] + 0.1 * torch.randn(args.batch, device=device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        last = loss.item()
        first = first if step else last
    print(f"{args.steps} steps with {args.optimizer}, loss {first:.3f} → {last:.3f}")


if __name__ == "__main__":
    main()
