"""Five calls of a small model, then an end of the caller's choice."""

import os
import signal
import sys

import torch
from torch import nn

ENDS = {
    "return": lambda: None,
    "raise": lambda: 1 / 0,
    "exit": lambda: sys.exit(7),
    "exit-text": lambda: sys.exit("nothing left to do"),
    "os-exit": lambda: os._exit(9),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: torch.Tensor, fail: bool = False) -> torch.Tensor:
        if fail:
            try:
                raise KeyError("deep")
            except KeyError:
                raise ValueError("the model gave up")  # noqa: B904
        return self.inner(x) * 2


def main() -> None:
    end = sys.argv[1]
    model = Net()
    with torch.no_grad():
        for _ in range(5):
            model(torch.randn(4, 8))
        if end == "fail-in-forward":
            model(torch.randn(4, 8), fail=True)
    print("last words", file=sys.stderr)
    ENDS[end]()


if __name__ == "__main__":
    main()
