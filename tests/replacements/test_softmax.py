"""What is special to softmax: masks and their strides, rows with everything masked, rows too wide to be held."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from calls import strided
from torch import Tensor

from fused_replacements import cpu_path, find, softmax
from fused_replacements.kernels import softmax as kernels

INF = float("inf")
PATHS = ["reference", "triton"]
numpy_says_nan = pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # Triton's interpreter runs on it


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3


def gradients(y: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    return (y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype)))


def same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 40), (2, 1, 1, 40), (1, 3, 4, 40), (1, 1, 4, 1), (2, 3, 4, 1), (4, 40), (40,)]
)
@pytest.mark.parametrize("boolean", [False, True])
def test_masks_of_any_shape_are_read_where_they_lie(
    boolean: bool, shape: tuple[int, ...], dtype: torch.dtype | None, path: Any
) -> None:
    # GIVEN a mask that is broadcast over some dimensions, and rows of it that lie in a wider tensor
    x = scores(2, 3, 4, 40).requires_grad_()
    mask = strided(torch.where(scores(*shape) > 2, -INF, scores(*shape)), "sliced")
    mask = mask > -INF if boolean else mask
    mask[..., 0] = True if boolean else 0.5
    # THEN the result and the gradient are those of the steps in PyTorch
    added = torch.where(mask, 0.0, -INF) if boolean else mask
    expected = gradients(torch.softmax(x * 0.3 + added, -1).to(dtype or x.dtype), x)
    with cpu_path(path):
        same(gradients(softmax(x, mask, scale=0.3, dtype=dtype), x), expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(1, 3, 4, 40), (4, 1), (40,)])
def test_a_learned_mask_gets_the_sum_over_what_it_was_broadcast_to(shape: tuple[int, ...], path: Any) -> None:
    x, bias = scores(2, 3, 4, 40).requires_grad_(), scores(*shape).requires_grad_()
    expected = gradients(torch.softmax(x * 0.5 + bias, -1), x, bias)
    with cpu_path(path):
        same(gradients(softmax(x, bias, scale=0.5), x, bias), expected)


@numpy_says_nan
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fill", [-INF, -1e4])
@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_row_with_everything_masked_is_what_pytorch_makes_of_it(
    dtype: torch.dtype | None, fill: float, path: Any
) -> None:
    # GIVEN one row without a key that takes part
    x, mask = scores(3, 24).requires_grad_(), scores(3, 24) > 0
    mask[1] = False
    # THEN it is NaN, or equal shares, and what was masked has gradient zero either way
    expected = gradients(torch.softmax(x.masked_fill(~mask, fill), -1).to(dtype or x.dtype), x)
    assert bool(expected[0][1].isnan().all()) == (fill == -INF)
    assert not expected[1][1].any()
    with cpu_path(path):
        same(gradients(softmax(x, mask, fill=fill, dtype=dtype), x), expected)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (2, 6), (1, 6)])
def test_causal_scores_end_at_the_last_key(queries: int, keys: int, path: Any) -> None:
    x = scores(2, queries, keys).requires_grad_()
    keep = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    expected = gradients(torch.softmax((x * 0.5).masked_fill(~keep, -INF), -1), x)
    with cpu_path(path):
        same(gradients(softmax(x, scale=0.5, causal=True), x), expected)


@pytest.mark.parametrize("dtype", [None, torch.float16])
@pytest.mark.parametrize("kind", ["added", "boolean", "causal"])
def test_rows_too_wide_to_be_held_are_walked(
    kind: str, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN rows of several trips, of which the first holds masked keys only
    monkeypatch.setattr(kernels, "WIDEST", 32)
    monkeypatch.setattr(kernels, "TILE", 16)
    monkeypatch.setattr(kernels, "TILE_WARPS", 1)
    x, keep = scores(5, 75).requires_grad_(), scores(5, 75) < 3
    keep[:, :20] = False
    mask = {"added": torch.where(keep, 0.0, -INF), "boolean": keep, "causal": None}[kind]
    expected = gradients(find("softmax").reference(x, mask, scale=0.4, causal=kind == "causal", dtype=dtype), x)
    with cpu_path("triton"):
        same(gradients(softmax(x, mask, scale=0.4, causal=kind == "causal", dtype=dtype), x), expected)


@numpy_says_nan
@pytest.mark.parametrize("looped", [False, True])
def test_nan_and_infinity_are_what_pytorch_makes_of_them(looped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if looped:
        monkeypatch.setattr(kernels, "WIDEST", 8)
        monkeypatch.setattr(kernels, "TILE", 16)
    x = scores(4, 40)
    x[0, 3], x[1, 30], x[2, 5] = float("nan"), INF, -INF
    with cpu_path("triton"), torch.no_grad():
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize(("dtype", "freed"), [(None, True), (torch.bfloat16, False)])
def test_the_scores_are_freed_where_the_result_is_enough(dtype: torch.dtype | None, freed: bool) -> None:
    # GIVEN scores that only softmax needs
    x = scores(4, 16).bfloat16().requires_grad_() * 1
    alive = weakref.ref(x)
    with cpu_path("reference"):
        y = softmax(x, dtype=dtype)
    del x
    # THEN backward keeps the result; the scores only where the result was rounded
    assert y.requires_grad
    assert (alive() is None) == freed


def test_a_rounded_result_does_not_round_its_gradient() -> None:
    # GIVEN near-certain rows in bf16, whose gradient is what rounding leaves of 1 − y
    x = (scores(64, 8) * 2).bfloat16().double()
    exact = gradients(torch.softmax(x.requires_grad_(), -1), x)[1]
    low = x.detach().bfloat16().requires_grad_()

    def error(y: Tensor) -> float:
        dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        return float((torch.autograd.grad(y, low, dy.to(y.dtype))[0] - exact).abs().max())

    with cpu_path("reference"):
        upcast = error(softmax(low, dtype=torch.bfloat16))
    assert upcast <= 1.1 * error(torch.softmax(low, -1, dtype=torch.float32).to(torch.bfloat16))


def test_differentiating_twice_is_right() -> None:
    x, bias = scores(3, 7).double().requires_grad_(), scores(7).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda x, bias: softmax(x, bias, scale=0.7), (x, bias))


def test_a_mask_larger_than_the_scores_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"mask has shape \(3, 2, 4\), which can't be broadcast to \(2, 4\)"):
        softmax(scores(2, 4), scores(3, 2, 4))
    with pytest.raises(ValueError, match=r"mask has shape \(2, 3\), which can't be broadcast to \(2, 4\)"):
        softmax(scores(2, 4), scores(2, 3))
    with pytest.raises(ValueError, match="int64"):
        softmax(scores(2, 4), torch.ones(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="a dimension of queries"):
        softmax(scores(4), causal=True)


def test_what_is_not_fused_is_said() -> None:
    supports, x = find("softmax").supports, torch.empty(2, 3, 4, 8, device="meta")
    assert supports(x, torch.empty(3, 4, 8, device="meta")) is None
    assert "broadcast" in supports(x, torch.empty(5, 8, device="meta"))
    assert "together" in supports(x, torch.empty(8, 4, device="meta").t())
    assert "stride" in supports(x.transpose(2, 3))
    assert "queries" in supports(torch.empty(8, device="meta"), causal=True)
    many = torch.empty(2, 3, 4, 5, 8, device="meta")
    assert supports(many, torch.empty(4, 1, 8, device="meta")) is None
    assert "folded" in supports(many, torch.empty(5, 4, 3, 2, 8, device="meta").permute(3, 2, 1, 0, 4))
    assert supports(scores(4, 8).t()) is None
