"""Kernels that are compiled from a definition: shared where that is right, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fused_replacements._compiled import CompiledKernels


def run(kernels: CompiledKernels, *arguments: Any) -> Tensor:
    kernel = kernels.find(arguments)
    assert kernel is not None
    return kernel([argument for argument in arguments if isinstance(argument, Tensor)])[0]


def test_one_kernel_for_every_length() -> None:
    kernels = CompiledKernels(lambda x, w: torch.relu(x) * w, 2)
    for rows in (5, 9, 70):
        x, w = torch.randn(rows, 33), torch.randn(33)
        assert torch.equal(run(kernels, x, w), torch.relu(x) * w)
    assert kernels.built == 1


def test_a_definition_that_asks_about_sizes_gets_a_kernel_for_each_answer() -> None:
    # GIVEN a definition that goes two ways
    def definition(x: Tensor, y: Tensor) -> Tensor:
        return x * y.sum() + 1 if x.size(0) == y.size(0) else x - y.sum()

    kernels = CompiledKernels(definition, 2)
    for lengths in ((4, 4), (4, 6), (5, 5), (7, 3)):
        x, y = (torch.randn(length) for length in lengths)
        # THEN each call goes its own way
        torch.testing.assert_close(run(kernels, x, y), definition(x, y))
    assert kernels.built == 2


@pytest.mark.parametrize(
    "layout",
    [
        lambda base: base[:12, :8].t(),  # rows at a stride that is a size at first
        lambda base: base[:12, 3:11].t(),
        lambda base: base.t()[:8, :12],
        lambda base: base[:16:2, :12],
    ],
)
def test_strides_that_look_like_sizes_are_not_taken_for_them(layout: Callable[[Tensor], Tensor]) -> None:
    kernels = CompiledKernels(lambda x: x * 2 + 1, 1)
    for width in (8, 12, 20, 31):
        x = layout(torch.randn(40, width if width > 12 else 12))
        assert torch.equal(run(kernels, x), x * 2 + 1)


def test_fp64_and_nothing_run_the_definition() -> None:
    kernels = CompiledKernels(torch.relu, 1)
    assert kernels.find((torch.randn(3, dtype=torch.float64),)) is None
    assert kernels.find((torch.randn(0, 3),)) is None


def test_what_is_not_admitted_runs_the_definition() -> None:
    # GIVEN a definition that goes another way for each length, and may have two kernels
    asked: list[tuple[int, int]] = []

    def admits(arguments: Any, known: int) -> bool:
        asked.append((len(arguments[0]), known))
        return known < 2

    kernels = CompiledKernels(lambda x: x * int(x.size(0)), 1, admits)
    found = [kernels.find((torch.ones(length),)) is not None for length in (3, 4, 5, 4, 5)]
    # THEN the third gets none, and no length is asked about twice
    assert found == [True, True, False, True, False]
    assert asked == [(3, 0), (4, 1), (5, 2)]


def test_each_choice_of_gradients_has_a_kernel_of_its_own() -> None:
    # GIVEN a definition that returns what a list of booleans asks for, as every backward does
    def definition(x: Tensor, y: Tensor, needs: list[bool]) -> list[Tensor]:
        return [tensor * 2 for tensor, need in zip((x, y), needs, strict=True) if need]

    kernels, x, y = CompiledKernels(definition, 3), torch.randn(5), torch.randn(5)
    for needs in ([True, False], [False, True], [True, True], [True, False]):
        kernel = kernels.find((x, y, needs))
        assert kernel is not None
        for found, expected in zip(kernel([x, y]), definition(x, y, needs), strict=True):
            assert torch.equal(found, expected)
    assert kernels.built == 3


def test_a_dtype_among_the_arguments_tells_kernels_apart() -> None:
    kernels, x = CompiledKernels(lambda x, dtype: (x * 3).to(dtype), 2), torch.randn(7)
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
        assert torch.equal(run(kernels, x, dtype), (x * 3).to(dtype))
    assert kernels.built == 2
