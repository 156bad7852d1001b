"""Layer norm after a residual add: pre-norm and post-norm use, and rows for which a careless formula breaks down."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fused_replacements import add_layer_norm, cpu_path

PATHS = ["compiled", "reference", "triton"]


@pytest.mark.parametrize("path", PATHS)
def test_pre_norm_block_reads_both_results(path: str) -> None:
    # GIVEN a pre-norm block: the sum goes on as the residual, the norm into a layer
    x, residual, weight, bias = (torch.randn(*s).requires_grad_() for s in ((5, 32), (5, 32), (32,), (32,)))

    def block(norm: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return (total + norm.tanh()).pow(2).sum()

    with cpu_path(path):  # type: ignore[arg-type]
        fused = torch.autograd.grad(block(*add_layer_norm(x, residual, weight, bias)), (x, residual, weight, bias))
    total = x + residual
    eager = torch.autograd.grad(block(F.layer_norm(total, (32,), weight, bias), total), (x, residual, weight, bias))
    for mine, its in zip(fused, eager, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("path", PATHS)
def test_post_norm_block_reads_the_norm_alone(path: str) -> None:
    x, residual, weight = (torch.randn(*s).requires_grad_() for s in ((5, 32), (5, 32), (32,)))
    with cpu_path(path):  # type: ignore[arg-type]
        y, _ = add_layer_norm(x, residual, weight)
        fused = torch.autograd.grad(y.tanh().sum(), (x, residual, weight))
    eager = torch.autograd.grad(F.layer_norm(x + residual, (32,), weight).tanh().sum(), (x, residual, weight))
    for mine, its in zip(fused, eager, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_constant_rows_and_zero_weights_have_finite_gradients(path: str) -> None:
    x = torch.full((2, 16), 3.0, requires_grad=True)
    residual = torch.full((2, 16), -1.0, requires_grad=True)
    weight = torch.zeros(16, requires_grad=True)
    with cpu_path(path):  # type: ignore[arg-type]
        y, total = add_layer_norm(x, residual, weight, None, 1e-30)
        found = torch.autograd.grad((y, total), (x, residual, weight), (torch.randn(2, 16), torch.randn(2, 16)))
    assert all(torch.isfinite(g).all() for g in found)


def test_the_norm_is_of_the_rounded_sum() -> None:
    # GIVEN summands whose sum bf16 can't hold
    x, residual = torch.randn(4, 64).bfloat16(), 100 * torch.randn(4, 64).bfloat16()
    y, total = add_layer_norm(x, residual)
    torch.testing.assert_close(y.float(), F.layer_norm(total.float(), (64,)), rtol=8e-3, atol=8e-3)
    assert torch.equal(total, x + residual)
