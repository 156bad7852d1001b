"""Leaves its model to a thread and ends before that does; with ``stuck`` a daemon thread never comes back."""

import sys
import threading
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, stuck: bool = False) -> torch.Tensor:
        if stuck:
            inside.set()
            time.sleep(3600)
        return self.inner(x)


model, inside = Net(), threading.Event()


def serve(stuck: bool) -> None:
    time.sleep(0.2)
    for _ in range(2 if stuck else 5):
        model(torch.randn(4, 8))
    if stuck:
        model(torch.randn(4, 8), stuck=True)


stuck = sys.argv[1:] == ["stuck"]
threading.Thread(target=serve, args=(stuck,), daemon=stuck).start()
if stuck:
    inside.wait()
