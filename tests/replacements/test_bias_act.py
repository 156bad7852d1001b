"""Bias and activation: above all the gradient of the bias, a sum over every row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fused_replacements import bias_act, cpu_path, find
from fused_replacements._activations import ACTIVATIONS

both_paths = pytest.mark.parametrize("path", ["reference", "triton"])
supports = find("bias_act").supports


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gradients(x: Tensor, bias: Tensor, dy: Tensor, needs: tuple[bool, bool], activation: str) -> list[Tensor]:
    leaves = [t.detach().requires_grad_(need) for t, need in zip((x, bias), needs, strict=True)]
    return list(torch.autograd.grad(bias_act(*leaves, activation), [t for t in leaves if t.requires_grad], dy))


@both_paths
def test_the_gradient_of_a_low_precision_bias_is_summed_in_fp32(path: str) -> None:
    # GIVEN 3000 rows of a gradient of 1 in fp16, whose running sum would stand still at 2048
    x, bias = torch.zeros(3000, 3, dtype=torch.float16), torch.zeros(3, dtype=torch.float16)
    with cpu_path(path):  # type: ignore[arg-type]
        (dbias,) = gradients(x, bias, torch.ones_like(x), (False, True), "identity")
    # THEN the sum is exact
    assert dbias.dtype is torch.float16
    assert dbias.tolist() == [3000.0] * 3


@both_paths
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_gradients_are_those_of_the_definition(path: str, activation: str, needs: tuple[bool, bool]) -> None:
    # GIVEN rows, bias and gradient at strides of their own
    x, dy = random(9, 60)[:, 5:38], random(9, 41, seed=1)[:, 8:]
    bias = random(66, seed=2)[::2]
    with cpu_path(path):  # type: ignore[arg-type]
        mine = gradients(x, bias, dy, needs, activation)
    leaves = [t.detach().double().requires_grad_(need) for t, need in zip((x, bias), needs, strict=True)]
    y = ACTIVATIONS[activation](leaves[0] + leaves[1])
    wanted = torch.autograd.grad(y, [t for t in leaves if t.requires_grad], dy.double())
    for a, b in zip(mine, wanted, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@both_paths
def test_no_rows_give_a_bias_gradient_of_zero(path: str) -> None:
    with cpu_path(path):  # type: ignore[arg-type]
        dx, dbias = gradients(random(0, 7), random(7), random(0, 7), (True, True), "gelu")
    assert dx.shape == (0, 7)
    assert dbias.tolist() == [0.0] * 7


def test_parts_of_the_bias_gradient_cover_every_row_and_column() -> None:
    # GIVEN more rows than programs, and more columns than one program has
    x, dy = random(37, 2500), random(37, 2500, seed=1)
    with cpu_path("triton"):
        dx, dbias = gradients(x, torch.zeros(2500), dy, (True, True), "identity")
    assert torch.equal(dx, dy)
    torch.testing.assert_close(dbias, dy.sum(0), rtol=1e-5, atol=1e-5)


@both_paths
def test_a_bias_of_another_dtype_is_promoted(path: str) -> None:
    with cpu_path(path):  # type: ignore[arg-type]
        assert bias_act(random(2, 8).half(), random(8), "relu").dtype is torch.float32


def test_wrong_arguments_and_what_is_not_fused_are_said() -> None:
    def meta(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    with pytest.raises(ValueError, match="no activation is called 'swish'"):
        bias_act(random(2, 4), random(4), "swish")
    assert supports(meta(4, 8), meta(8)) is None
    assert "the bias has shape (4, 1), and x (4, 8)" in str(supports(meta(4, 8), meta(4, 1)))
    assert "rows of x do not lie at one stride" in str(supports(meta(8, 4).t(), meta(8)))
