"""int4_linear: the packer's error and layout, padding of K, few rows, PyTorch's own op and its repacked copy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fused_replacements import find, int4_linear
from fused_replacements.prologue.int4_linear import (
    OP,
    _in_torch_layout,
    dequantize_int4,
    quantize_int4,
    reference,
    supports,
)
from fused_replacements.prologue.packing import GROUPS, pack_nibbles, unpack_nibbles


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(0, 9), st.integers(1, 200)),
    group=st.sampled_from(GROUPS),
    size=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 0.7, -3.0]),
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_weight_comes_back_within_half_a_step(
    shape: tuple[int, int], group: int, size: float, offset: float, symmetric: bool, dtype: torch.dtype
) -> None:
    weight = ((random(*shape) + offset) * size).to(dtype)
    packed = quantize_int4(weight, group, symmetric=symmetric)
    groups = -(-shape[1] // group)
    assert packed.packed.shape == (shape[0], groups * group // 2)
    assert packed.scale.shape == (shape[0], groups)
    assert packed.scale.dtype is dtype
    assert packed.group == group
    dense = dequantize_int4(*packed, torch.float64)
    error = (dense[:, : shape[1]] - weight.double()).abs()
    step = packed.scale.double().repeat_interleave(group, 1)[:, : shape[1]]
    assert (error <= step * (0.5 + 1e-3 + 16 * torch.finfo(dtype).eps + (0 if symmetric else 0.5))).all()
    assert (dense[:, shape[1] :] == 0).all()


def test_a_byte_holds_two_elements_half_a_group_apart() -> None:
    nibbles = torch.arange(64, dtype=torch.uint8).reshape(1, 2, 32) % 16
    packed = pack_nibbles(nibbles)
    assert packed[0, 3].item() == 3 | ((3 + 16) % 16) << 4
    assert torch.equal(unpack_nibbles(packed, 2), nibbles)


def test_other_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="group is 48"):
        quantize_int4(random(3, 96), 48)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("width", [128, 130])
@pytest.mark.parametrize("rows", [1, 8, 9])
def test_rows_few_and_many_and_a_padded_width_give_one_result(group: int, width: int, rows: int) -> None:
    weight = quantize_int4(random(17, width) + 0.3, group, symmetric=False)
    x, bias = random(rows, width), random(17)
    dense = dequantize_int4(*weight, torch.float64)[:, :width]
    exact = F.linear(x.double(), dense, bias.double())
    torch.testing.assert_close(int4_linear(x, *weight, bias).double(), exact, rtol=1e-5, atol=1e-5)


def test_few_rows_never_dequantise_the_weight() -> None:
    before = OP.forward.compiled.built
    int4_linear(random(1, 128), *quantize_int4(random(24, 128), 64))
    assert OP.forward.compiled.built == before


def test_the_gradient_goes_to_input_and_bias() -> None:
    weight = quantize_int4(random(7, 100), 32, symmetric=False)
    x, bias, grad = random(4, 100).requires_grad_(), random(7).requires_grad_(), random(4, 7)
    mine = torch.autograd.grad(int4_linear(x, *weight, bias), [x, bias], grad)
    torch.testing.assert_close(mine[0], grad @ dequantize_int4(*weight)[:, :100])
    torch.testing.assert_close(mine[1], grad.sum(0))


def test_a_learned_scale_has_its_gradient_through_the_definition() -> None:
    weight, x = quantize_int4(random(7, 64), 32), random(4, 64)
    scale = weight.scale.requires_grad_()
    with pytest.warns(RuntimeWarning, match="the scale is learned"):
        y = int4_linear(x, weight.packed, scale)
    (grad,) = torch.autograd.grad(y.sum(), scale)
    assert grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"x": random(2, 31)}, "31 elements"),
        ({"x": random(2, 65)}, "65 elements"),
        ({"packed": random(7, 32)}, "not a uint8 matrix"),
        ({"scale": random(6, 2)}, "scale has shape"),
        ({"scale": random(7, 4)}, "make no groups"),
        ({"zero": torch.zeros(7, 2)}, "not uint8"),
        ({"bias": random(8)}, "bias has shape"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_reason(change: dict[str, Tensor], reason: str) -> None:
    weight = quantize_int4(random(7, 64), 32)
    arguments = {"x": random(2, 64), "packed": weight.packed, "scale": weight.scale} | change
    assert reason in str(supports(**arguments))


@pytest.mark.parametrize("symmetric", [True, False])
def test_pytorchs_own_op_is_offered_and_its_weight_is_repacked_once(symmetric: bool) -> None:
    (torchs,) = find("int4_linear").alternatives
    weight, x = quantize_int4(random(32, 128), 64, symmetric=symmetric), random(3, 128)
    assert torchs.supports(x, *weight) is None
    torch.testing.assert_close(torchs.function(x, *weight), reference(x, *weight), rtol=1e-4, atol=1e-4)
    first = _in_torch_layout(*weight, x.dtype)
    assert _in_torch_layout(*weight, x.dtype)[0] is first[0]
    weight.scale.mul_(2)  # a change of the weight must reach the copy
    torch.testing.assert_close(torchs.function(x, *weight), reference(x, *weight), rtol=1e-4, atol=1e-4)
    assert "multiple of 16" in str(torchs.supports(x, *quantize_int4(random(33, 128), 64)))
    assert "gradient" in str(torchs.supports(x.requires_grad_(), *weight))
