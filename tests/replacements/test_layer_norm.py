"""Layer norm: the variants of models, and rows for which a careless formula breaks down."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fused_replacements import cpu_path, layer_norm
from fused_replacements.reduction.layer_norm import REPLACEMENT, reference


def test_is_pytorchs_own() -> None:
    x, weight, bias = torch.randn(5, 7, 33), torch.randn(33), torch.randn(33)
    torch.testing.assert_close(layer_norm(x, weight, bias), F.layer_norm(x, (33,), weight, bias))


def test_deberta_rounds_before_the_weight() -> None:
    # GIVEN bf16 rows, and weights for which the order of casts shows
    x, weight, bias = torch.randn(64, 256).bfloat16(), torch.randn(256).bfloat16(), torch.randn(256).bfloat16()
    h = x.float()
    n = (h - h.mean(-1, keepdim=True)) / torch.sqrt(h.var(-1, unbiased=False, keepdim=True) + 1e-7)
    expected = weight * n.to(x.dtype) + bias
    # THEN the result is the model's, and not that of a single cast at the end
    with cpu_path("reference"):
        torch.testing.assert_close(layer_norm(x, weight, bias, 1e-7, cast="deberta"), expected, rtol=8e-3, atol=1e-2)
        assert not torch.equal(layer_norm(x, weight, bias, 1e-7), layer_norm(x, weight, bias, 1e-7, cast="deberta"))


@pytest.mark.parametrize("path", ["compiled", "reference", "triton"])
def test_a_large_mean_does_not_cancel(path: str) -> None:
    # GIVEN rows whose mean is 1,000 times their deviation: mean(x²) − mean(x)² would lose every digit of fp32
    x = torch.randn(4, 128, dtype=torch.float64) + 1000
    with cpu_path(path):  # type: ignore[arg-type]
        y = layer_norm(x.float())
    torch.testing.assert_close(y.double(), reference(x), rtol=0, atol=2e-3)


@pytest.mark.parametrize("path", ["compiled", "reference", "triton"])
@pytest.mark.parametrize("eps", [1e-12, 1e-30])
def test_constant_rows_and_zero_weights_have_finite_gradients(path: str, eps: float) -> None:
    # GIVEN rows of one value, an eps whose inverse root to the third overflows fp32, and a weight of zeros
    x = torch.tensor([[2.0] * 16, [0.0] * 16]).requires_grad_()
    weight, bias = torch.zeros(16, requires_grad=True), torch.zeros(16, requires_grad=True)
    with cpu_path(path):  # type: ignore[arg-type]
        y = layer_norm(x, weight, bias, eps)
        gradients = torch.autograd.grad(y, (x, weight, bias), torch.randn(2, 16))
    assert all(torch.isfinite(g).all() for g in (y, *gradients))


def test_differentiates_twice() -> None:
    x, weight, bias = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((3, 5), (5,), (5,)))
    assert torch.autograd.gradgradcheck(lambda *a: layer_norm(*a), (x, weight, bias))


def test_an_unknown_cast_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"'llama'.*'torch'.*'deberta'"):
        layer_norm(torch.randn(2, 4), cast="llama")  # type: ignore[arg-type]


def test_pytorchs_op_says_what_it_lacks() -> None:
    provider = REPLACEMENT.alternatives[0]
    x, weight = torch.randn(2, 8).bfloat16(), torch.randn(8).bfloat16()
    assert provider.supports(x, weight) is None
    assert provider.supports(x, weight, cast="deberta") == "F.layer_norm rounds after the weight"
    assert provider.supports(x, weight, offset=1.0) == "F.layer_norm has no offset"
    assert provider.supports(x, weight.float()) == "F.layer_norm takes one dtype"


def test_supports_reads_shapes_only() -> None:
    x = torch.empty(2, 8, device="meta")
    assert "has shape (4,)" in str(REPLACEMENT.supports(x, torch.empty(4, device="meta")))
    assert "float64" in str(REPLACEMENT.supports(x.double()))
