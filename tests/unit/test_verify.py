"""Faults that a patch may have, planted one by one: each is caught, and named; a patch without one passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from auditor.patching.errors import compare, named_leaves
from auditor.patching.step import Step
from auditor.patching.verify import Verification, verify


class Patch:
    """Puts ``forward`` on a module while it is enabled."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module, self._forward, self.calls = module, forward, 0

    @contextmanager
    def enabled(self) -> Iterator[None]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return self._forward(self._module, *args, **kwargs)

        self._module.forward = counted  # type: ignore[method-assign]
        try:
            yield
        finally:
            del self._module.forward

    @contextmanager
    def disabled(self) -> Iterator[None]:
        yield


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * normal.to(x.dtype)


class Residual(nn.Module):
    """Two blocks of norm and linear around a stream; the norm of the second one also returns the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm = AddNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        normal, stream = self.norm(self.first(x), x)
        return stream + self.second(normal)


class AddNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        stream = x + residual
        return F.rms_norm(stream, stream.shape[-1:], self.weight, 1e-6), stream


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def training(*args: Tensor, **kwargs: Any) -> Step:
    return Step(tuple(arg.requires_grad_() for arg in args), kwargs, training=True)


def fused_norm(norm: Norm, x: Tensor) -> Tensor:
    """The same roundings, by PyTorch's own kernel."""
    return F.rms_norm(x.float(), x.shape[-1:], None, 1e-6).to(x.dtype) * norm.weight


def norm_step(dtype: torch.dtype, width: int = 96) -> tuple[Norm, Step]:
    torch.manual_seed(0)
    step = training(drawn(4, 16, width, dtype=dtype))
    return Norm(width).to(dtype), replace(step, cotangents=(drawn(4, 16, width, dtype=dtype, seed=1),))


DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_faithful_patch_passes(dtype: torch.dtype) -> None:
    norm, step = norm_step(dtype)
    patch = Patch(norm, fused_norm)
    found = verify(norm, patch, step, faithful=True)
    assert found.ok, found.reason
    assert found.reason is None
    assert found.inputs == ("captured inputs", "other values", "another batch size and length")
    assert patch.calls == 3 + 3  # three inputs, and three SGD steps
    assert {leaf.path for leaf in found.leaves} == {
        "output", "gradient of weight", "gradient of args[0]", "loss over 3 SGD steps"
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wrong_casting_mode_is_caught_by_the_bits(dtype: torch.dtype) -> None:
    def weight_before_the_cast(norm: Norm, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], norm.weight.float(), 1e-6).to(x.dtype)

    norm, step = norm_step(dtype)
    found = verify(norm, Patch(norm, weight_before_the_cast), step, faithful=True)
    assert not found.ok
    assert found.mismatch > 0.1
    assert "same roundings" in str(found.reason)
    assert verify(norm, Patch(norm, weight_before_the_cast), step).ok  # it is no less accurate


class _Swapped(torch.autograd.Function):
    """Adds and normalises, and gives back the gradients of its two results in the wrong order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        stream = x + residual
        ctx.save_for_backward(stream, weight)
        return F.rms_norm(stream, stream.shape[-1:], weight, 1e-6), stream.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        stream, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            normal = F.rms_norm(stream, stream.shape[-1:], weight, 1e-6)
        through, on_weight = torch.autograd.grad(normal, (stream, weight), grads[1])
        return through + grads[0], through + grads[0], on_weight


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_swapped_residual_gradient_is_caught(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Residual(32).to(dtype)
    patch = Patch(model.norm, lambda norm, x, residual: _Swapped.apply(x, residual, norm.weight))
    found = verify(model, patch, training(drawn(3, 8, 32, dtype=dtype)))
    assert not found.ok
    assert "gradient of" in str(found.reason)
    assert verify(model, patch, Step((drawn(3, 8, 32, dtype=dtype),), grad_enabled=False)).ok


def test_a_kernel_that_overwrites_its_input_is_caught() -> None:
    def in_place(norm: Norm, x: Tensor) -> Tensor:
        found = fused_norm(norm, x)
        x.data.mul_(2)  # no version counter tells
        return found

    norm, step = norm_step(torch.float32)
    found = verify(norm, Patch(norm, in_place), replace(step, training=False, cotangents=None, grad_enabled=False))
    assert not found.ok
    assert found.reason == "args[0] after the step is float32[4, 16, 96], not 'untouched', on captured inputs"


def test_a_kernel_that_overwrites_what_the_stream_still_needs_is_caught() -> None:
    def in_place(norm: AddNorm, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        stream = x + residual
        normal = F.rms_norm(stream, stream.shape[-1:], norm.weight, 1e-6)
        stream.data.copy_(normal)
        return normal, stream

    model = Residual(32)
    found = verify(model, Patch(model.norm, in_place), Step((drawn(3, 8, 32),), grad_enabled=False))
    assert str(found.reason).startswith("output is off by")


def test_a_written_parameter_is_caught_and_put_back() -> None:
    def in_place(norm: Norm, x: Tensor) -> Tensor:
        found = norm.weight * fused_norm(norm, x) / norm.weight
        norm.weight.data.add_(1)
        return found

    norm, step = norm_step(torch.float32)
    before = norm.weight.detach().clone()
    found = verify(norm, Patch(norm, in_place), replace(step, training=False, cotangents=None))
    assert "weight after the step" in str(found.reason)
    assert torch.equal(norm.weight, before)


FAULTS: dict[str, tuple[Callable[[Norm, Tensor], Tensor], str]] = {
    "a constant weight": (lambda n, x: fused_norm(n, x) / n.weight * n.weight.detach(), "gradient of weight is"),
    "a detached result": (lambda n, x: fused_norm(n, x).detach(), "requires_grad of output is False, not True"),
    "another dtype": (lambda n, x: fused_norm(n, x).double(), "output is float64[4, 16, 96], not float32[4, 16, 96]"),
    "another shape": (lambda n, x: fused_norm(n, x)[:, :1], "not float32[4, 16, 96]"),
    "another eps": (lambda n, x: F.rms_norm(x, x.shape[-1:], n.weight, 1e-2), "is off by"),
    "a NaN": (lambda n, x: torch.where(x == x.max(), torch.nan, fused_norm(n, x)), "NaN"),
    "a tuple": (lambda n, x: (fused_norm(n, x),), "output is missing"),
    "only the captured length": (lambda n, x: fused_norm(n, x.view(-1, 16, 96)), "another batch size and length"),
    "only an even length": (
        lambda n, x: fused_norm(n, x) * (1 if x.shape[1] % 2 == 0 else 1.001),
        "another batch size and length",
    ),
    "the captured values": (lambda n, x: fused_norm(n, x.clamp(-4.5, 4.5)), "on other values"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_a_norm_are_caught_and_named(fault: str) -> None:
    norm, step = norm_step(torch.float32)
    forward, words = FAULTS[fault]
    found = verify(norm, Patch(norm, forward), step)
    assert not found.ok
    assert words in str(found.reason)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gradient_that_only_a_second_step_gets_wrong_shows_in_the_loss(dtype: torch.dtype) -> None:
    """As a weight that was cached when the patch was made."""
    norm, step = norm_step(dtype)
    cached = norm.weight.detach().clone()

    def stale(norm: Norm, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], cached + norm.weight - norm.weight.detach(), 1e-6)

    found = verify(norm, Patch(norm, stale), step)
    assert str(found.reason).startswith("loss over 3 SGD steps is off by")
    assert verify(norm, Patch(norm, stale), step, steps=0).ok


class Everything(nn.Module):
    """Running statistics, dropout, a cache, a frozen weight, a plain tensor, weights that are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.linear, self.tied = nn.BatchNorm1d(16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.tied.weight = self.linear.weight
        self.tied.bias.requires_grad_(False)
        self.plain = torch.zeros(16)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, cache: list[Tensor]) -> dict[str, Any]:
        self.steps = self.steps + 1  # another tensor in the slot
        self.plain += 1
        cache.append(x)
        hidden = self.tied(F.dropout(self.linear(self.batch(x)), 0.5, self.training)) + len(cache)
        return {"loss": hidden.square().mean(), "hidden": [hidden, None], "count": self.steps}


def everything() -> tuple[Everything, Step]:
    torch.manual_seed(0)
    model = Everything()
    model.linear.weight.grad = torch.ones(16, 16)
    model.tied.eval()
    return model, Step((drawn(8, 16),), {"cache": [drawn(8, 16)]}, training=True)


def snapshot(model: Everything) -> list[Any]:
    tensors = [*model.parameters(), *model.buffers(), model.plain]
    return [
        [(id(t), t.data_ptr(), t.clone(), t.requires_grad, id(t.grad), t.is_leaf) for t in tensors],
        [module.training for module in model.modules()],
        torch.get_rng_state(),
        list(model.state_dict()),
        sorted(vars(model)),
    ]


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_same(first, second)
    else:
        assert one == other


@pytest.mark.parametrize("failing", [False, True])
def test_the_model_is_left_as_it_was(failing: bool) -> None:
    model, step = everything()

    def patched(model: Everything, x: Tensor, cache: list[Tensor]) -> Any:
        found = Everything.forward(model, x, cache)
        if failing and len(cache) == 2:
            raise RuntimeError("no kernel\nfor this")
        return found

    before, ones = snapshot(model), model.linear.weight.grad
    found = verify(model, Patch(model, patched), step)
    assert found.reason == ("it raises on captured inputs: RuntimeError: no kernel" if failing else None)
    assert_same(snapshot(model), before)
    assert model.linear.weight.grad is ones
    assert torch.equal(ones, torch.ones(16, 16))
    assert model.tied.bias.grad is None
    assert len(step.kwargs["cache"]) == 1


def test_a_statistic_that_is_not_updated_is_caught() -> None:
    def frozen(model: Everything, x: Tensor, cache: list[Tensor]) -> Any:
        mean = model.batch.running_mean.clone()
        found = Everything.forward(model, x, cache)
        model.batch.running_mean.copy_(mean)
        return found

    model, step = everything()
    step = replace(step, grad_enabled=False)
    assert "batch.running_mean after the step" in str(verify(model, Patch(model, frozen), step).reason)


@pytest.mark.parametrize(
    "step",
    [
        Step((drawn(4, 16),), autocast=("cpu", torch.bfloat16), training=True),
        Step((drawn(4, 16),), autocast=("cpu", torch.bfloat16), inference_mode=True),
        Step((drawn(4, 16),), grad_enabled=False),
        Step((drawn(4, 16),)),
    ],
    ids=["autocast", "inference", "no_grad", "grad"],
)
def test_a_step_runs_in_the_modes_that_it_was_captured_in(step: Step) -> None:
    seen = set()

    def patched(model: nn.Linear, x: Tensor) -> Tensor:
        seen.add((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")))
        return nn.Linear.forward(model, x)

    model = nn.Linear(16, 16)
    found = verify(model, Patch(model, patched), step)
    assert found.ok, found.reason
    assert found.inputs[-1] == "another batch size"
    grad = step.grad_enabled and not step.inference_mode
    assert seen == {(grad, step.inference_mode, step.autocast is not None)}
    assert any("gradient" in leaf.path for leaf in found.leaves) == step.training


def test_no_reference_is_no_pass() -> None:
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            assert x.dtype == torch.float32, "only fp32"
            return x

    model = Picky()
    found = verify(model, Patch(model, lambda _, x: x), Step((drawn(4),)))
    assert found == Verification(False, "there is no reference: AssertionError: only fp32")


def test_integers_are_permuted_and_masks_and_positions_kept() -> None:
    seen: list[tuple[Tensor, ...]] = []

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(50, 8)

        def forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
            seen.append((ids, mask, positions))
            return self.table(ids) * mask.unsqueeze(-1) + positions.unsqueeze(-1)

    ids, mask = torch.randint(0, 50, (2, 7)), torch.ones(2, 7, dtype=torch.int64)
    model = Lookup()
    step = Step((ids, mask, torch.arange(7).expand(2, 7)), grad_enabled=False)
    assert verify(model, Patch(model, Lookup.forward), step, perturbations=1).ok
    other = seen[-1]
    assert not torch.equal(other[0], ids)
    assert sorted(other[0].flatten().tolist()) == sorted(ids.flatten().tolist())
    assert torch.equal(other[1], mask)
    assert torch.equal(other[2], step.args[2])


# ---- comparing


def test_errors_are_relative_to_the_rms_of_the_reference() -> None:
    exact = torch.tensor([3.0, -3.0], dtype=torch.float64)
    found = compare(exact.float() + 0.03, exact.float() + 0.03, exact)
    assert found.error == found.eager_error == pytest.approx(0.01)
    assert found.ok
    assert compare(torch.tensor([1e-9]), torch.zeros(1), torch.zeros(1).double()).error == pytest.approx(1e-9)


@pytest.mark.parametrize(("dtype", "units"), [(torch.float32, 2.0), (torch.bfloat16, 0.5), (torch.float16, 0.5)])
def test_the_bound_is_twice_eagers_error_and_a_rounding_of_the_largest_element(
    dtype: torch.dtype, units: float
) -> None:
    exact = torch.tensor([1.0, 4.0], dtype=torch.float64)
    eager = torch.tensor([1.0, 4.0], dtype=dtype)
    room = units * torch.finfo(dtype).eps * 4
    near, far = (torch.tensor([1.0 + share * room, 4.0], dtype=dtype) for share in (1.0, 1.5))
    assert compare(near, eager, exact).ok
    assert not compare(far, eager, exact).ok
    wider = torch.tensor([1.0, 4.0 + 2 * room], dtype=torch.float64)  # now eager is off too
    assert compare(far, eager, wider).ok


WRONG: dict[str, tuple[Any, Any, Any, str]] = {
    "an integer": (torch.tensor([1, 2]), torch.tensor([1, 3]), torch.tensor([1, 3]), "differs from eager's in 0.5"),
    "a boolean": (torch.tensor([True]), torch.tensor([False]), torch.tensor([False]), "output differs"),
    "an infinity's sign": (
        torch.tensor([torch.inf, 1]), torch.tensor([-torch.inf, 1]), torch.tensor([-torch.inf, 1]).double(), "inf"
    ),
    "a key": ({"a": torch.ones(1)}, {"b": torch.ones(1)}, {"b": torch.ones(1).double()}, "b is missing"),
    "a tensor too many": ([torch.ones(1)] * 2, [torch.ones(1)], [torch.ones(1).double()], "[1] is there"),
    "None": ([None], [torch.ones(1)], [torch.ones(1).double()], "[0] is a NoneType, not float32[1]"),
    "a number": ({"n": 1}, {"n": 2}, {"n": 2}, "n is 1, not 2"),
    "a reference of NaN": (torch.ones(1), torch.ones(1), torch.full((1,), torch.nan).double(), "reference with NaN"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_must_agree_with_eager(what: str) -> None:
    new, eager, exact, words = WRONG[what]
    found = compare(new, eager, exact)
    assert not found.ok
    assert words in str(found.reason)


def test_what_agrees_in_nan_infinity_masks_and_complex_numbers_passes() -> None:
    low = torch.tensor([torch.nan, torch.inf, torch.finfo(torch.float32).min, 1.0])
    exact = torch.tensor([torch.nan, torch.inf, torch.finfo(torch.float64).min, 1.0], dtype=torch.float64)
    value = {"x": [low, torch.zeros(0)], "z": torch.ones(2) * 1j, "n": 3, "none": None}
    truth = {"x": [exact, torch.zeros(0).double()], "z": torch.ones(2).double() * 1j, "n": 3, "none": None}
    assert compare(value, value, truth).ok
    assert compare(value, value, truth).error == 0


def test_the_mismatch_counts_elements_of_16_bit_results_that_differ() -> None:
    eager = torch.ones(8, dtype=torch.bfloat16)
    new = eager.clone()
    new[0] += 0.0078125
    assert compare(new, eager, eager.double()).mismatch == pytest.approx(1 / 8)
    assert compare(new.float(), eager.float(), eager.double()).mismatch == 0


def test_leaves_are_named_by_their_paths() -> None:
    class Layer:
        def __init__(self) -> None:
            self.keys, self.seen = torch.ones(1), 3

    value = {"logits": torch.ones(1), "cache": [Layer(), Layer()], "pair": (1, torch.ones(2))}
    assert [path for path, _ in named_leaves(value)] == [
        "logits", "cache[0].keys", "cache[1].keys", "pair[0]", "pair[1]"
    ]  # fmt: skip
    assert [path for path, _ in named_leaves(torch.ones(1))] == ["output"]


def test_a_loss_in_fp32_is_no_more_exact_than_parameters_of_16_bits() -> None:
    # GIVEN losses over some steps, eager off by 0.1 %, another version by 0.5 %
    exact = {"loss": torch.tensor([7.0, 6.9, 6.8], dtype=torch.float64)}
    eager, new = ({"loss": (exact["loss"] * (1 + off)).float()} for off in (0.001, 0.005))
    # THEN that is wrong where parameters have 32 bits, and rounding where they have 16
    assert not compare(new, eager, exact).ok
    assert not compare(new, eager, exact, {"loss": torch.float32}).ok
    assert compare(new, eager, exact, {"loss": torch.bfloat16}).ok
    # AND parameters in fp64 don't ask more of a loss than it has digits
    near = {"loss": exact["loss"].float() * (1 + 1e-7)}
    assert compare(near, {"loss": exact["loss"].float()}, exact, {"loss": torch.float64}).ok


def test_what_rounding_left_of_a_zero_is_no_measure() -> None:
    exact = torch.full((64,), 1e-18, dtype=torch.float64)
    eager = torch.randn(64, generator=torch.Generator().manual_seed(0)) * 1e-10
    assert compare(eager.flip(0) * 4.0, eager, exact).ok
    assert not compare(eager + 1e-7, eager, exact).ok
