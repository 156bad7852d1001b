"""Leaves its model to a thread and ends before that does."""

import threading
import time

import torch
from torch import nn

model = nn.Linear(8, 8)


def serve() -> None:
    time.sleep(0.2)
    for _ in range(5):
        model(torch.randn(4, 8))


threading.Thread(target=serve).start()
