"""What is special to linear cross entropy: its chunks, a frozen head, sums in fp32, and memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from memory import peak_bytes
from torch import Tensor

from fused_replacements import cpu_path, find, linear_cross_entropy
from fused_replacements.reduction import linear_cross_entropy as module
from fused_replacements.reduction.cross_entropy import COLUMNS_GRADIENT
from fused_replacements.reduction.linear_cross_entropy import OP, chunk

PATHS = ["reference", "triton"]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 5 rows or classes, of which the last is not full."""
    monkeypatch.setattr(module, "chunk", lambda *_: 5)


def head(
    rows: int, dim: int, classes: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """``hidden``, ``weight``, ``target``, ``bias``."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    target = torch.randint(classes, (rows,), generator=generator)
    target[1::5] = -100
    return random(rows, dim), random(classes, dim), target, random(classes)


def both(loss: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """The loss, and gradients for an incoming gradient that differs from row to row."""
    incoming = torch.linspace(-1.0, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return loss.detach(), *torch.autograd.grad(loss, leaves, incoming)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_option_is_that_of_pytorch(reduction: Any, biased: bool, path: Any) -> None:
    hidden, weight, target, bias = head(17, 6, 23)
    leaves = [t.requires_grad_() for t in ((hidden, weight, bias) if biased else (hidden, weight))]
    for smoothing, softcap in product((0.0, 0.2), (None, 4.0)):
        z = F.linear(hidden, weight, bias if biased else None)
        z = z if softcap is None else softcap * torch.tanh(z / softcap)
        expected = both(F.cross_entropy(z, target, reduction=reduction, label_smoothing=smoothing), *leaves)
        with cpu_path(path):
            loss = linear_cross_entropy(
                hidden, weight, target, bias if biased else None,
                reduction=reduction, label_smoothing=smoothing, softcap=softcap,
            )  # fmt: skip
            found = both(loss, *leaves)
        for mine, its in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-5, atol=5e-6)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("learned", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_what_learns_gets_a_gradient(learned: tuple[int, ...]) -> None:
    # GIVEN a head with parts frozen, as it is under an adapter
    hidden, weight, target, bias = head(12, 6, 23)
    tensors = (hidden, weight, bias)
    leaves = [tensors[i].requires_grad_() for i in learned]
    expected = both(F.cross_entropy(F.linear(hidden, weight, bias), target), *leaves)
    # THEN what is left learns all the same
    with cpu_path("triton"):
        found = both(linear_cross_entropy(hidden, weight, target, bias), *leaves)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=5e-6)
    assert all(tensor.grad is None for tensor in tensors)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_summed_in_fp32(dtype: torch.dtype) -> None:
    # GIVEN 60 chunks in low precision: a sum of them in it would lose two digits more
    hidden, weight, target, bias = head(300, 16, 300, dtype)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    expected = both(F.cross_entropy(F.linear(*exact), target, reduction="sum"), *exact)
    eager = both(F.cross_entropy(F.linear(*leaves), target, reduction="sum"), *leaves)
    with cpu_path("compiled"):
        found = both(linear_cross_entropy(hidden, weight, target, bias, reduction="sum"), *leaves)
    # THEN gradients are about as good as those of whole products
    for mine, its, true in zip(found[1:], eager[1:], expected[1:], strict=True):
        mine_off, its_off = ((t.double() - true).square().mean().sqrt() for t in (mine, its))
        assert mine_off <= 1.5 * its_off


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 2.0), (torch.bfloat16, 2.0)])
def test_memory_is_at_least_halved(dtype: torch.dtype, least: float) -> None:
    # GIVEN a head whose logits are most of what a step holds
    hidden, weight, target, _ = head(2048, 64, 4096, dtype)
    hidden.requires_grad_()
    weight.requires_grad_()

    def step(function: Any) -> Any:
        hidden.grad = weight.grad = None
        return lambda: function().backward()

    with cpu_path("compiled"):
        fused = step(lambda: linear_cross_entropy(hidden, weight, target, dtype=torch.float32))
        fused()  # compiles
        mine = peak_bytes(fused)
    eager = step(lambda: F.cross_entropy(F.linear(hidden, weight).float(), target))
    eager()
    # THEN at its peak it holds less than half of what PyTorch does, and never all logits
    assert peak_bytes(eager) >= least * mine
    assert mine < hidden.size(0) * weight.size(0) * hidden.element_size()


def test_no_row_by_row_product_and_no_whole_one() -> None:
    assert chunk(10, 50, 4) == module.LEAST
    assert chunk(4096, 32000, 4) == 512  # an eighth
    assert chunk(8192, 131072, 2) == 512  # what fits
    assert chunk(131072, 2**20, 2) == module.LEAST  # the floor, over what fits


def test_everything_is_called_and_counted() -> None:
    hidden, weight, target, _ = head(12, 6, 23)
    before = OP.forward.calls, OP.backward.calls, COLUMNS_GRADIENT.calls
    with cpu_path("triton"):
        linear_cross_entropy(hidden.requires_grad_(), weight, target).backward()
    after = OP.forward.calls, OP.backward.calls, COLUMNS_GRADIENT.calls
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1]


@pytest.mark.usefixtures("small_chunks")
def test_nothing_is_written_to_and_strides_are_taken_as_they_are() -> None:
    hidden, weight, target, _ = head(12, 6, 23)
    other = hidden.t().contiguous().t().requires_grad_(), weight.t().contiguous().t().requires_grad_()
    versions = [t._version for t in other]
    expected = both(F.cross_entropy(F.linear(*other), target), *other)
    with cpu_path("triton"):
        found = both(linear_cross_entropy(*other, target), *other)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=5e-6)
    assert [t._version for t in other] == versions


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_where_all_is_ignored_the_mean_is_nan_and_the_gradients_zero() -> None:
    hidden, weight, target, _ = head(12, 6, 23)
    with cpu_path("triton"):
        loss = linear_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), torch.full_like(target, -100))
        loss.backward()
    assert loss.isnan()
    assert hidden.grad is not None
    assert weight.grad is not None
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_autocast_casts_as_a_linear_layer_does() -> None:
    hidden, weight, target, bias = head(12, 6, 23)
    leaves = [t.requires_grad_() for t in (hidden, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        expected = both(F.cross_entropy(F.linear(*leaves), target), *leaves)
        with cpu_path("reference"):
            found = both(linear_cross_entropy(hidden, weight, target, bias), *leaves)
    for mine, its in zip(found, expected, strict=True):
        assert mine.dtype is its.dtype
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=2e-2)


def test_what_does_not_fit_is_said() -> None:
    hidden, weight, target, bias = head(12, 6, 23)
    supports = find("linear_cross_entropy").supports
    assert supports(hidden, weight, target, bias) is None
    assert "several dtypes" in supports(hidden.half(), weight, target)
    assert "(rows, dim)" in supports(hidden[None], weight, target[None])
    assert "int64" in supports(hidden, weight, target.int())
    with pytest.raises(ValueError, match="weight has shape"):
        linear_cross_entropy(hidden, weight[:, :3], target)
    with pytest.raises(ValueError, match="12 rows"):
        linear_cross_entropy(hidden, weight, target[:5])
    with pytest.raises(ValueError, match="23 classes"):
        linear_cross_entropy(hidden, weight, target, bias[:5])
    with pytest.raises(RuntimeError):
        linear_cross_entropy(hidden[None], weight, target[None])


def test_differentiating_twice_is_right() -> None:
    hidden, weight, target, _ = (t.double() if t.is_floating_point() else t for t in head(3, 2, 5))
    assert torch.autograd.gradgradcheck(
        lambda h, w: linear_cross_entropy(h, w, target), (hidden.requires_grad_(), weight.requires_grad_())
    )
