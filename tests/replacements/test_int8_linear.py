"""int8_linear: the packer's error, the few rows of a generating model, what is constant, PyTorch's own op."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fused_replacements import find, int8_linear
from fused_replacements.prologue.int8_linear import (
    _FEW,
    OP,
    dequantize_int8,
    quantize_int8,
    reference,
    supports,
)


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(0, 9), st.integers(0, 70)),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 0.7, -3.0]),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_weight_comes_back_within_half_a_step(
    shape: tuple[int, int], size: float, offset: float, symmetric: bool, dtype: torch.dtype
) -> None:
    weight = ((random(*shape) + offset) * size).to(dtype)
    packed = quantize_int8(weight, symmetric=symmetric)
    assert packed.values.dtype is torch.int8
    assert packed.values.shape == weight.shape
    assert packed.scale.dtype is dtype
    assert (packed.zero is None) == symmetric
    error = (dequantize_int8(*packed, torch.float64) - weight.double()).abs()
    reach = 127 if symmetric else 255
    step = packed.scale.double()[:, None]
    assert (error <= step * (0.5 + 1e-3 + reach * torch.finfo(dtype).eps + (0 if symmetric else 0.5))).all()


def test_a_row_of_zeros_comes_back_as_zeros() -> None:
    weight = torch.cat([torch.zeros(1, 8), random(1, 8)])
    for symmetric in (True, False):
        assert torch.equal(dequantize_int8(*quantize_int8(weight, symmetric=symmetric))[0], torch.zeros(8))


def test_what_is_no_matrix_is_refused() -> None:
    for wrong in (random(3), random(2, 3).int()):
        with pytest.raises(ValueError, match="a weight is a floating matrix"):
            quantize_int8(wrong)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 40])
@pytest.mark.parametrize("symmetric", [True, False])
def test_few_rows_and_many_take_two_ways_to_one_result(rows: int, symmetric: bool) -> None:
    weight = quantize_int8(random(33, 48) + 0.3, symmetric=symmetric)
    x, bias = random(rows, 48), random(33)
    exact = reference(x.double(), weight.values, weight.scale, weight.zero, bias.double())
    torch.testing.assert_close(int8_linear(x, *weight, bias).double(), exact, rtol=1e-5, atol=1e-5)


def test_few_rows_never_dequantise_the_weight() -> None:
    weight, x = quantize_int8(random(64, 64)), random(1, 64)
    before, built = OP.forward.compiled.built, _FEW._compiled.built
    int8_linear(x, *weight)
    int8_linear(random(1, 96), *quantize_int8(random(64, 96)))
    assert OP.forward.compiled.built == before
    assert _FEW._compiled.built - built <= 1  # one kernel for both sizes


def test_the_integers_are_exact_in_low_precision() -> None:
    """With ones for an input and a scale of 1 the result is a sum of integers, which fp32 holds."""
    values = torch.randint(-127, 128, (5, 64), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    y = int8_linear(torch.ones(1, 64, dtype=torch.bfloat16), values, torch.ones(5, dtype=torch.bfloat16))
    assert torch.equal(y, values.sum(1, dtype=torch.int64).to(torch.bfloat16)[None])


def test_the_gradient_goes_to_input_and_bias_and_the_weight_is_constant() -> None:
    weight = quantize_int8(random(7, 12))
    x, bias = random(4, 12).requires_grad_(), random(7).requires_grad_()
    grad = random(4, 7)
    mine = torch.autograd.grad(int8_linear(x, *weight, bias), [x, bias], grad)
    dense = dequantize_int8(*weight)
    torch.testing.assert_close(mine[0], grad @ dense)
    torch.testing.assert_close(mine[1], grad.sum(0))


def test_a_learned_scale_has_its_gradient_through_the_definition() -> None:
    weight, x = quantize_int8(random(7, 12)), random(4, 12)
    scale = weight.scale.requires_grad_()
    assert supports(x, weight.values, scale) == "the scale is learned"
    with pytest.warns(RuntimeWarning, match="the scale is learned"):
        y = int8_linear(x, weight.values, scale)
    (grad,) = torch.autograd.grad(y.sum(), scale)
    torch.testing.assert_close(grad, (x @ weight.values.float().t()).sum(0))


def test_under_autocast_the_input_is_cast() -> None:
    weight, x = quantize_int8(random(7, 12)), random(4, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert int8_linear(x, *weight).dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": random(2, 11)}, "11 elements"),
        ({"values": random(7, 12)}, "not an int8 matrix"),
        ({"scale": random(6)}, "scale has shape"),
        ({"zero": torch.zeros(7)}, "not int8"),
        ({"bias": random(8)}, "bias has shape"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(change: dict[str, Tensor], reason: str) -> None:
    weight = quantize_int8(random(7, 12))
    arguments = {"x": random(2, 12), "values": weight.values, "scale": weight.scale} | change
    assert reason in str(supports(**arguments))


def test_pytorchs_own_op_is_offered_where_it_is_right() -> None:
    (torchs,) = find("int8_linear").alternatives
    weight, x = quantize_int8(random(16, 64)), random(2, 3, 64)
    assert torchs.supports(x, *weight) is None
    torch.testing.assert_close(torchs.function(x, *weight, random(16)), reference(x, *weight, random(16)))
    assert "steps of 32" in str(torchs.supports(random(2, 65), *quantize_int8(random(16, 65))))
    assert "zero point" in str(torchs.supports(x, *quantize_int8(random(16, 64), symmetric=False)))
    assert "gradient" in str(torchs.supports(x.requires_grad_(), *weight))
