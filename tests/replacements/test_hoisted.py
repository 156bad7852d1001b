"""What is dear and broadcast is computed once, before the loop that reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from fused_replacements._compiled import CompiledKernels
from fused_replacements._hoisted import hoist


def power_norm(x: Tensor, power: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred * centred).mean(-1, keepdim=True).sqrt() ** power


def scaled(x: Tensor, decay: Tensor) -> Tensor:
    return x * (decay.exp() * 0.5)[:, None]


def stored(function: Callable[..., Tensor], *arguments: Tensor) -> tuple[list[str], fx.GraphModule]:
    """Names of the nodes that are stored, in the graph with and without symbolic sizes alike."""
    found = []
    for tracing in ("real", "symbolic"):
        graph = make_fx(function, tracing_mode=tracing)(*arguments)
        hoist(graph)
        realize = torch.ops._inductor_test.realize.default
        found.append([node.args[0].name for node in graph.graph.nodes if node.target is realize])
    assert found[0] == found[1]
    return found[0], graph


@pytest.mark.parametrize(
    ("function", "shapes", "names"),
    [
        (power_norm, [(4, 64), ()], ["pow_1"]),
        (scaled, [(64, 64), (64,)], ["unsqueeze"]),  # the last of the small ones: its own product is taken once too
        (power_norm, [(16, 4), ()], []),  # rows that are too short for it
        (lambda x, y: torch.sigmoid(x) * y, [(4, 64), (4, 64)], []),
        (lambda x, y: x * y.sqrt()[:, None], [(4, 64), (4,)], []),  # cheap
        (lambda x, y: torch.softmax(x, -1) * y, [(4, 64), ()], []),
    ],
)
def test_what_is_stored(function: Callable[..., Tensor], shapes: list[tuple[int, ...]], names: list[str]) -> None:
    arguments = [torch.rand(shape) + 0.5 for shape in shapes]
    found, graph = stored(function, *arguments)
    assert found == names
    torch.testing.assert_close(graph(*arguments), function(*arguments))


def test_a_kernel_with_a_stored_value_is_right_at_other_sizes() -> None:
    kernels = CompiledKernels(power_norm, 2)
    power = torch.tensor(0.9)
    for rows, width in ((64, 128), (3, 128), (5, 2)):
        x = torch.randn(rows, width)
        kernel = kernels.find((x, power))
        assert kernel is not None
        torch.testing.assert_close(kernel([x, power])[0], power_norm(x, power))
    assert kernels.built == 1
