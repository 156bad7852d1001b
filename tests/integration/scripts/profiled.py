"""Has a profiler of its own."""

import torch

model = torch.nn.Linear(8, 8)
try:
    with torch.profiler.profile():
        model(torch.randn(4, 8))
except Exception:
    print("not reached: a script must not swallow it")
