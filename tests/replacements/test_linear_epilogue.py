"""linear_epilogue: weight layouts, the residual's gradient, what is kept for backward, autocast, PyTorch's own op."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fused_replacements import find, linear_epilogue, providers
from fused_replacements._activations import ACTIVATIONS
from fused_replacements.epilogue.linear_epilogue import ONEDNN, OP, reference, supports


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_the_linear_layer_then_the_activation(activation: str) -> None:
    x, weight, bias = random(5, 24), random(7, 24) / 5, random(7)
    expected = ACTIVATIONS[activation](F.linear(x.double(), weight.double(), bias.double()))
    torch.testing.assert_close(linear_epilogue(x, weight, bias, activation).double(), expected, rtol=1e-5, atol=1e-5)


def test_a_conv1d_weight_gives_what_gpt2s_layer_gives() -> None:
    x, weight, bias = random(2, 3, 16), random(16, 9), random(9)
    expected = torch.addmm(bias, x.view(-1, 16), weight).view(2, 3, 9)  # the body of GPT-2's Conv1D
    torch.testing.assert_close(linear_epilogue(x, weight, bias, conv1d=True), expected)


def test_an_unknown_activation_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"mish.*gelu_tanh"):
        linear_epilogue(random(2, 4), random(3, 4), None, "mish")
    known = "identity, relu, relu_squared, sigmoid, tanh, silu, gelu, gelu_tanh, quick_gelu"
    assert supports(random(2, 4), random(3, 4), None, "mish") == f"no activation is called 'mish'; there are {known}"


def test_the_gradient_of_the_residual_is_the_incoming_one_itself() -> None:
    x, weight, residual = random(4, 8), random(6, 8), random(4, 6).requires_grad_()
    grad = random(4, 6)
    (found,) = torch.autograd.grad(linear_epilogue(x, weight, residual=residual), residual, grad)
    assert found.data_ptr() == grad.data_ptr()


def test_the_residual_is_neither_changed_nor_kept() -> None:
    x, weight, residual = random(4, 8).requires_grad_(), random(6, 8), random(4, 6)
    before = residual.clone()
    y = linear_epilogue(x, weight, None, "gelu", residual=residual)
    assert torch.equal(residual, before)
    residual.zero_()  # were it kept for backward, its version would be checked there
    y.sum().backward()


def test_a_broadcast_residual_is_added_outside() -> None:
    x, weight, residual = random(4, 8).requires_grad_(), random(6, 8), random(6).requires_grad_()
    y = linear_epilogue(x, weight, None, "relu", residual=residual)
    torch.testing.assert_close(y, reference(x, weight, None, "relu", residual=residual))
    y.sum().backward()
    assert residual.grad is not None
    assert torch.equal(residual.grad, torch.full((6,), 4.0))
    assert "residual has shape (6,)" in str(supports(x, weight, None, "relu", residual=residual))


def test_the_pre_activation_is_written_only_where_backward_needs_it() -> None:
    x, weight = random(4, 8), random(6, 8)
    _, kept = OP.forward.overload(x, weight, None, None, "gelu", False, False)
    assert kept.numel() == 0
    _, kept = OP.forward.overload(x, weight, None, None, "gelu", False, True)
    torch.testing.assert_close(kept, F.linear(x, weight))


def test_backward_without_a_kept_pre_activation_recomputes_it() -> None:
    x, weight, grad = random(4, 8), random(6, 8), random(4, 6)
    arguments = (x, weight, None, None, "gelu")
    kept = OP.forward.overload(*arguments, False, True)[1]
    with_it = OP.backward.overload(grad, *arguments, False, True, kept, [True, True, False])
    without = OP.backward.overload(grad, *arguments, False, False, x.new_empty(0), [True, True, False])
    for mine, its in zip(without, with_it, strict=True):
        torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("activation", ONEDNN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_and_training_agree(activation: str, dtype: torch.dtype) -> None:
    x, weight, bias = random(9, 32, dtype=dtype), random(20, 32, dtype=dtype) / 6, random(20, dtype=dtype)
    trained = linear_epilogue(x.requires_grad_(), weight, bias, activation).detach()
    with torch.no_grad():
        inferred = linear_epilogue(x, weight, bias, activation)
    torch.testing.assert_close(inferred, trained)


@pytest.mark.parametrize("conv1d", [False, True])
def test_autocast_casts_as_the_eager_layer_does(conv1d: bool) -> None:
    x, weight, bias, residual = random(5, 16), random(6, 16), random(6), random(5, 6)
    weight = weight.t().contiguous() if conv1d else weight
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = linear_epilogue(x, weight, bias, "gelu", residual=residual, conv1d=conv1d)
        eager = reference(x, weight, bias, "gelu", residual=residual, conv1d=conv1d)
    assert y.dtype is eager.dtype is torch.float32  # the residual is fp32, and promotes
    torch.testing.assert_close(y, eager, rtol=2e-2, atol=2e-2)
    y.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype is torch.float32


def test_strided_operands_are_read_where_they_lie() -> None:
    x = random(6, 40)[:, ::2]
    weight, residual = random(20, 7).t(), random(7, 6).t()
    torch.testing.assert_close(
        linear_epilogue(x, weight, None, "silu", residual=residual),
        reference(x, weight, None, "silu", residual=residual),
    )


def test_mixed_dtypes_are_refused_with_the_reason() -> None:
    assert "the weight or bias is not" in str(supports(random(2, 4), random(3, 4).bfloat16()))


def test_pytorchs_own_epilogue_is_offered_for_exactly_what_it_computes() -> None:
    (own, *_), (torchs,) = providers("linear_epilogue"), find("linear_epilogue").alternatives
    assert own.function is linear_epilogue
    x, weight, bias = random(5, 16), random(6, 16), random(6)
    for activation in ACTIVATIONS:
        reason = torchs.supports(x, weight, bias, activation)
        assert (reason is None) == (activation in ("relu", "gelu_tanh"))
        if reason is None:
            y = torchs.function(x, weight, bias, activation)
            torch.testing.assert_close(y, reference(x, weight, bias, activation), rtol=1e-3, atol=1e-3)
    assert "gradient" in str(torchs.supports(x.requires_grad_(), weight, bias, "relu"))
    assert "bias" in str(torchs.supports(x.detach(), weight, None, "relu"))


def test_it_trains_a_layer_as_eager_does() -> None:
    torch.manual_seed(0)
    layer, x, target = nn.Linear(8, 4), random(32, 8), random(32, 4)
    copy = nn.Linear(8, 4)
    copy.load_state_dict(layer.state_dict())
    for model, forward in ((layer, linear_epilogue), (copy, reference)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            optimizer.zero_grad()
            F.mse_loss(forward(x, model.weight, model.bias, "gelu_tanh"), target).backward()
            optimizer.step()
    torch.testing.assert_close(layer.weight, copy.weight)
    torch.testing.assert_close(layer.bias, copy.bias)
