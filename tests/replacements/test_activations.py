"""The activations: Triton's against PyTorch's, value and derivative; and relu² and quick_gelu, which are only that."""

from __future__ import annotations

import pytest
import torch
from calls import called, worse_than_eager
from torch import Tensor

from fused_replacements import Sample, cpu_path, find, quick_gelu, relu_squared
from fused_replacements._activations import ACTIVATIONS, find_activation

triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from fused_replacements.kernels import _activations as device  # noqa: E402

activate, activate_with_slope = device.activate, device.activate_with_slope
SIZE = 2048
EDGES = [0.0, -0.0, 1e-30, -1e-30, 1e-3, -1e-3, 0.2499, 0.2501, -0.25, 20.0, -20.0, 100.0, -100.0, float("nan")]


@triton.jit
def all_three(x, alone, value, slope, NAME: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    lane = tl.arange(0, BLOCK)
    at = tl.load(x + lane)
    tl.store(alone + lane, activate(at, NAME))
    value_here, slope_here = activate_with_slope(at, NAME)
    tl.store(value + lane, value_here)
    tl.store(slope + lane, slope_here)


def inputs() -> Tensor:
    x = torch.randn(SIZE, generator=torch.Generator().manual_seed(0)) * 4
    x[: len(EDGES)] = torch.tensor(EDGES)
    return x


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's exp, where a GPU's is infinite
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_triton_activations_are_those_of_pytorch(name: str) -> None:
    # GIVEN ordinary numbers, the ends of the range, both zeros and a NaN
    x = inputs()
    alone, value, slope = (torch.full((SIZE,), float("nan")) for _ in range(3))
    all_three[(1,)](x, alone, value, slope, name, SIZE)
    exact = x.double().requires_grad_()
    wanted = ACTIVATIONS[name](exact)
    (wanted_slope,) = torch.autograd.grad(wanted.sum(), exact)
    # THEN value and derivative agree to a few units of the last place, and a NaN stays one
    torch.testing.assert_close(alone.double(), wanted.detach(), rtol=2e-6, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(value, alone, rtol=1e-6, atol=1e-7, equal_nan=True)
    torch.testing.assert_close(slope.double(), wanted_slope, rtol=4e-6, atol=1e-6, equal_nan=True)


def test_tanh_keeps_its_relative_precision_near_zero() -> None:
    # GIVEN numbers so small that 1 - exp(-2x) would have no digit left
    x = torch.logspace(-12, -0.1, SIZE)
    alone, value, slope = (torch.empty(SIZE) for _ in range(3))
    all_three[(1,)](x, alone, value, slope, "tanh", SIZE)
    assert ((alone.double() - x.double().tanh()) / x.double().tanh()).abs().max() < 1e-6


def test_both_tables_hold_the_same_names() -> None:
    assert all(hasattr(device, name) for name in ACTIVATIONS)
    assert all(function.__name__ == name for name, function in ACTIVATIONS.items())


def test_an_unknown_activation_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(ValueError, match="no activation is called 'swish'; there are identity, relu, "):
        find_activation("swish")


def eager_relu_squared(x: Tensor) -> Tensor:
    return torch.relu(x) * torch.relu(x)


def eager_quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize("path", ["reference", "triton"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize(
    ("name", "eager"), [("relu_squared", eager_relu_squared), ("quick_gelu", eager_quick_gelu)], ids=["relu²", "quick"]
)
def test_errors_are_at_most_twice_those_of_model_code(path: str, dtype: torch.dtype, name: str, eager: object) -> None:
    # GIVEN the formula as models write it, which rounds after each step
    replacement, x = find(name), torch.randn(5, 37, generator=torch.Generator().manual_seed(1)).to(dtype)
    with cpu_path(path):  # type: ignore[arg-type]
        fused = called(replacement, replacement.function, Sample("fused", (x,)))
    model, exact = (called(replacement, eager, Sample("", (t,))) for t in (x, x.double()))  # type: ignore[arg-type]
    assert worse_than_eager(fused, model, exact) == []


@pytest.mark.parametrize("path", ["reference", "triton"])
def test_a_nan_comes_through_relu_squared(path: str) -> None:
    x = torch.tensor([[float("nan"), -1.0, 2.0]])
    with cpu_path(path):  # type: ignore[arg-type]
        torch.testing.assert_close(relu_squared(x), torch.tensor([[float("nan"), 0.0, 4.0]]), equal_nan=True)


def test_what_a_kernel_cannot_read_is_said() -> None:
    transposed = torch.empty(4, 8, 16, device="meta").permute(2, 0, 1)
    supports = find("quick_gelu").supports
    assert supports(torch.empty(4, 8, device="meta")) is None
    assert "rows of x do not lie at one stride" in str(supports(transposed))
    assert "float64" in str(supports(torch.empty(4, dtype=torch.float64)))


def test_a_scalar_and_one_dimension_are_computed() -> None:
    for x in (torch.tensor(1.5), torch.tensor([1.5, -2.0])):
        with cpu_path("reference"):
            torch.testing.assert_close(quick_gelu(x), x * torch.sigmoid(1.702 * x))
