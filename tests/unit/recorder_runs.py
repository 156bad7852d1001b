"""A model to be recorded in this process, and what a recording of it holds."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from auditor.collect.recorder import Recorder
from auditor.collect.recording import GRAPH_ET, GRAPH_KINETO, Recording, timing_file


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.act = nn.Tanh()
        self.last = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.act(self.first(x)) + 1)


@contextmanager
def recorder(folder: Path, steps: int = 1) -> Iterator[Recorder]:
    with Recorder(folder, steps=steps) as active:
        yield active


def nodes(folder: Path) -> list[dict[str, Any]]:
    """Nodes of the execution trace in the order in which ops began."""
    return sorted(json.loads((folder / GRAPH_ET).read_text())["nodes"], key=lambda node: node["id"])


def names(folder: Path) -> Counter[str]:
    return Counter(node["name"] for node in nodes(folder))


def check_complete(folder: Path, recording: Recording) -> None:
    """Every file that the recording promises is there and both files of the graph hold one step."""
    assert recording.has_graph
    for index in range(len(recording.timing_us)):
        assert json.loads((folder / timing_file(index)).read_text())["traceEvents"]
    assert not (folder / timing_file(len(recording.timing_us))).exists()
    kineto = json.loads((folder / GRAPH_KINETO).read_text())["traceEvents"]
    assert [event["name"] for event in kineto].count("fa.step") == 1
    assert names(folder)["fa.step"] == 1
    known = {node["id"] for node in nodes(folder)}
    assert all(node["ctrl_deps"] in known for node in nodes(folder))
