"""Tells what a script can know of its process, with workers that need its ``__main__``."""

import json
import multiprocessing
import os
import pickle
import sys
from dataclasses import dataclass

FIRST_PATH = sys.path[0]
TORCH_BEFORE = "torch" in sys.modules


@dataclass
class Point:
    """A class of ``__main__`` that other processes must find."""

    x: int


def double(point: Point) -> Point:
    return Point(2 * point.x)


class Points:
    """A data set; its workers are forked."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int):
        import torch

        return torch.full((8,), float(index))


def main() -> None:
    import torch
    from torch.utils.data import DataLoader

    model = torch.nn.Linear(8, 8)
    seen = []
    with torch.no_grad():
        for _ in range(2):
            for batch in DataLoader(Points(), num_workers=1, multiprocessing_context="fork"):
                model(batch)
                seen.append(batch[0, 0].item())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [Point(1), Point(2)])
    child = os.fork()
    if child == 0:
        for _ in range(3):
            model(torch.randn(1, 8))
        sys.exit(5)
    facts = {
        "argv": sys.argv,
        "name": __name__,
        "file": __file__,
        "path": FIRST_PATH,
        "cwd": os.getcwd(),
        "main": sys.modules["__main__"].__dict__ is globals(),
        "torch_before": TORCH_BEFORE,
        "compiler": "torch._inductor" in sys.modules,
        "seen": seen,
        "doubled": [point.x for point in doubled],
        "pickled": pickle.loads(pickle.dumps(Point(3))) == Point(3),
        "child": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]),
        "stdin": sys.stdin.read(),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
