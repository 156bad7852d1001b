"""RMS norm after a residual add: two outputs, the gradient of either or both, and what is kept for backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fused_replacements import Unfused, add_rms_norm, cpu_path
from fused_replacements.reduction.add_rms_norm import OP, REPLACEMENT, reference

PATHS = ["compiled", "reference", "triton"]


def leaves(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(*shape, dtype=dtype).requires_grad_() for shape in ((6, 48), (6, 48), (48,))]


def gradients(function: Any, tensors: list[Tensor], dy: Tensor | None, dtotal: Tensor | None) -> list[Tensor | None]:
    used = [(o, g) for o, g in zip(function(*tensors), (dy, dtotal), strict=True) if g is not None]
    return list(torch.autograd.grad([o for o, _ in used], tensors, [g for _, g in used], allow_unused=True))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("used", ["both", "norm", "sum"])
def test_gradient_of_either_output_may_be_absent(path: str, used: str) -> None:
    # GIVEN a loss that reads both results, or one of them (the residual's gradient comes after that of the norm)
    tensors = leaves()
    dy = torch.randn(6, 48) if used != "sum" else None
    dtotal = torch.randn(6, 48) if used != "norm" else None
    with cpu_path(path):  # type: ignore[arg-type]
        mine = gradients(add_rms_norm, tensors, dy, dtotal)
    for got, expected in zip(mine, gradients(reference, tensors, dy, dtotal), strict=True):
        assert (got is None) == (expected is None)  # zeros would be taken for a gradient, and the weight decayed
        if expected is not None:
            torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("path", PATHS)
def test_incoming_gradients_are_not_written_to(path: str) -> None:
    tensors, dy, dtotal = leaves(), torch.randn(6, 48), torch.randn(6, 48)
    before = [t.clone() for t in (*tensors, dy, dtotal)]
    with cpu_path(path):  # type: ignore[arg-type]
        found = gradients(add_rms_norm, tensors, dy, dtotal)
    assert all(torch.equal(a, b) for a, b in zip((*tensors, dy, dtotal), before, strict=True))
    assert all(f is not None and f.data_ptr() not in {dy.data_ptr(), dtotal.data_ptr()} for f in found)


def test_the_sum_is_that_of_an_add_and_the_norm_reads_it_rounded() -> None:
    x, residual = torch.randn(8, 64).bfloat16(), torch.randn(8, 64).bfloat16()
    y, total = add_rms_norm(x, residual, torch.randn(64).bfloat16())
    assert torch.equal(total, x + residual)
    y, total = add_rms_norm(x, residual.float(), None)
    assert total.dtype is torch.float32
    assert y.dtype is torch.float32


def test_only_the_sum_is_kept() -> None:
    # GIVEN a forward that will need a backward
    kept: list[Tensor] = []
    x, residual, weight = leaves()

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, total = add_rms_norm(x, residual, weight)
    # THEN it keeps one array, the sum that the caller has anyway, and neither summand
    assert {t.data_ptr() for t in kept} == {total.data_ptr(), weight.data_ptr()}


def test_both_summands_get_one_gradient_in_their_own_dtypes() -> None:
    x, residual, weight = leaves()
    low = x.detach().bfloat16().requires_grad_()
    y, total = add_rms_norm(low, residual, weight)
    dx, dresidual = torch.autograd.grad((y.sum() + total.sum()), (low, residual))
    assert (dx.dtype, dresidual.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(dx, dresidual.bfloat16())


def test_differentiates_twice() -> None:
    x, residual, weight = leaves(torch.float64)
    assert torch.autograd.gradgradcheck(lambda *a: add_rms_norm(*a), (x[:2, :5], residual[:2, :5], weight[:5]))


def test_a_broadcast_add_runs_the_reference_and_says_so() -> None:
    x, row = torch.randn(4, 8), torch.randn(8)
    with pytest.warns(Unfused, match="different shapes"):
        y, total = add_rms_norm(x, row)
    assert torch.equal(total, x + row)
    assert y.shape == x.shape
    assert "residual has shape (8,)" in str(REPLACEMENT.supports(x, row))


def test_counts_its_calls() -> None:
    before = OP.forward.calls
    add_rms_norm(torch.randn(2, 8), torch.randn(2, 8))
    assert OP.forward.calls == before + 1
