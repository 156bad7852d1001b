"""Activation times up: packed and apart, each tensor with strides of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from calls import called, worse_than_eager
from torch import Tensor

from fused_replacements import Sample, _layout, act_mul, cpu_path, find
from fused_replacements._activations import ACTIVATIONS
from fused_replacements.elementwise.act_mul import gelu_mul, silu_mul

REPLACEMENT = find("act_mul")
PATHS = ["reference", "triton"]
both_paths = pytest.mark.parametrize("path", PATHS)
numpy_warns = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of inf · 0 and exp(1000), which a GPU computes


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@both_paths
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_is_right_forward_and_backward(path: str, activation: str) -> None:
    # GIVEN model code that rounds the activation before it multiplies
    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return ACTIVATIONS[activation](gate) * up

    for dtype in (torch.float32, torch.float16):
        sample = Sample("", (random(4, 37, dtype=dtype), random(4, 37, seed=1, dtype=dtype)))
        with cpu_path(path):  # type: ignore[arg-type]
            fused = called(REPLACEMENT, lambda gate, up: act_mul(gate, up, activation), sample)
        wide = Sample("", tuple(tensor.double() for tensor in sample.args))
        # THEN one rounding is at most twice as far from the truth as two
        assert worse_than_eager(fused, called(REPLACEMENT, eager, sample), called(REPLACEMENT, eager, wide)) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_the_compiled_kernel_is_at_most_twice_as_far_off_as_eager_rounding(dtype: torch.dtype) -> None:
    sample = Sample("", (random(16, 64, dtype=dtype), random(16, 64, seed=1, dtype=dtype)))
    wide = Sample("", tuple(tensor.double() for tensor in sample.args))
    fused = called(REPLACEMENT, silu_mul, sample)

    def eager(gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate) * up

    assert worse_than_eager(fused, called(REPLACEMENT, eager, sample), called(REPLACEMENT, eager, wide)) == []


@both_paths
@pytest.mark.parametrize("gate_first", [True, False], ids=["gate first", "up first"])
def test_packed_is_the_same_as_its_halves(path: str, gate_first: bool) -> None:
    # GIVEN one tensor that holds gate and up, a slice of a wider one
    packed = random(2, 3, 100)[..., 10:84]
    halves = packed.chunk(2, -1) if gate_first else reversed(packed.chunk(2, -1))
    gate, up = (half.clone() for half in halves)
    with cpu_path(path):  # type: ignore[arg-type]
        together = called(REPLACEMENT, lambda p: act_mul(p, gate_first=gate_first), Sample("", (packed,)))
        apart = called(REPLACEMENT, act_mul, Sample("", (gate, up)))
    # THEN outputs are equal bit for bit, and the gradient is both gradients side by side
    assert torch.equal(together.outputs[0], apart.outputs[0])
    order = apart.gradients if gate_first else apart.gradients[::-1]
    assert together.gradients[0] is not None
    assert torch.equal(together.gradients[0], torch.cat([g for g in order if g is not None], -1))


@both_paths
def test_the_order_of_the_halves_matters(path: str) -> None:
    packed = random(3, 8)
    with cpu_path(path):  # type: ignore[arg-type]
        assert not torch.allclose(act_mul(packed), act_mul(packed, gate_first=False))
        torch.testing.assert_close(act_mul(packed, activation="sigmoid", gate_first=False), F.glu(packed))


@pytest.mark.parametrize("needed", [(True, True), (True, False), (False, True)])
def test_each_tensor_has_strides_of_its_own(needed: tuple[bool, bool]) -> None:
    # GIVEN gate, up and the incoming gradient, all at other row strides, in buffers of NaN
    def slice_of(width: int, start: int, seed: int) -> Tensor:
        buffer = torch.full((5, width), float("nan"))
        buffer[:, start : start + 33] = random(5, 33, seed=seed)
        return buffer[:, start : start + 33]

    gate, up, dy = slice_of(50, 3, 0), slice_of(81, 17, 1), slice_of(64, 31, 2)
    gradients = []
    for function, path in ((act_mul, "triton"), (REPLACEMENT.reference, "reference")):
        leaves = [t.detach().requires_grad_(need) for t, need in zip((gate, up), needed, strict=True)]
        with cpu_path(path):  # type: ignore[arg-type]
            y = function(*leaves)
            gradients.append(torch.autograd.grad(y, [t for t in leaves if t.requires_grad], dy))
    for mine, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-6)


def test_halves_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the two halves of one projection, as views
    made: list[Any] = []
    original = _layout.new

    def counted(*args: Any, **kwargs: Any) -> Tensor:
        made.append(original(*args, **kwargs))
        return made[-1]  # type: ignore[no-any-return]

    def forbidden(self: Tensor, *_: object, **__: object) -> Tensor:
        raise AssertionError(f"a tensor of shape {tuple(self.shape)} was copied")

    monkeypatch.setattr(_layout, "new", counted)
    monkeypatch.setattr(Tensor, "contiguous", forbidden)
    monkeypatch.setattr(Tensor, "clone", forbidden)
    # WHEN the kernel runs, THEN it allocates its output and nothing else
    with cpu_path("triton"):
        y = act_mul(*random(6, 64).chunk(2, -1))
    assert [tensor.data_ptr() for tensor in made] == [y.data_ptr()]


@both_paths
def test_mixed_dtypes_are_promoted(path: str) -> None:
    with cpu_path(path):  # type: ignore[arg-type]
        y = act_mul(random(3, 16, dtype=torch.float16), random(3, 16))
    assert y.dtype is torch.float32


def test_the_short_names_are_the_usual_activations() -> None:
    gate, up = random(3, 16), random(3, 16, seed=1)
    packed = torch.cat([gate, up], -1)
    with cpu_path("reference"):
        torch.testing.assert_close(silu_mul(gate, up), F.silu(gate) * up)
        torch.testing.assert_close(silu_mul(packed), F.silu(gate) * up)
        torch.testing.assert_close(gelu_mul(gate, up), F.gelu(gate) * up)
        torch.testing.assert_close(gelu_mul(packed, approximate="tanh"), F.gelu(gate, approximate="tanh") * up)
    with pytest.raises(ValueError, match="approximate is 'sigmoid'"):
        gelu_mul(gate, up, "sigmoid")  # type: ignore[arg-type]


def test_wrong_arguments_are_errors_that_say_why() -> None:
    with pytest.raises(ValueError, match="no activation is called 'swish'"):
        act_mul(random(2, 4), random(2, 4), "swish")
    with pytest.raises(ValueError, match=r"shape \(2, 5\) has no two halves"):
        act_mul(random(2, 5))


def test_supports_says_what_would_not_run_fused() -> None:
    def meta(*shape: int) -> Tensor:
        return torch.empty(shape, device="meta")

    supports = REPLACEMENT.supports
    assert supports(meta(4, 16), meta(4, 16)) is None
    assert supports(*meta(4, 32).chunk(2, -1)) is None
    assert supports(meta(4, 32)) is None
    assert "up has shape (4, 16), and gate (4, 1)" in str(supports(meta(4, 1), meta(4, 16)))
    assert "rows of gate do not lie at one stride" in str(supports(meta(16, 4).t(), meta(4, 16)))
    assert "even" in str(supports(meta(4, 5)))
    assert "no activation" in str(supports(meta(4, 6), None, "swish"))
    assert supports(random(4, 1), random(4, 16)) is None  # a CPU's kernel broadcasts


@numpy_warns
def test_infinities_come_out_as_in_eager() -> None:
    gate = torch.tensor([[float("inf"), -float("inf"), float("nan"), 200.0, -200.0]])
    with cpu_path("triton"):
        y = act_mul(gate, torch.ones_like(gate), "gelu_tanh")
    wanted = torch.tensor([[float("inf"), float("nan"), float("nan"), 200.0, 0.0]])
    torch.testing.assert_close(y, wanted, equal_nan=True)
