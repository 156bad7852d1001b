"""What is special to cross entropy: its options, the gradient of each row, what is ignored, and memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from memory import peak_bytes
from torch import Tensor

from fused_replacements import Unfused, cpu_path, cross_entropy, find
from fused_replacements.kernels import cross_entropy as kernels
from fused_replacements.reduction.cross_entropy import COLUMNS_GRADIENT, OP

PATHS = ["reference", "triton"]
numpy_says_nan = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.*")  # Triton's interpreter runs on it


def logits(rows: int, classes: int, factor: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed)) * factor


def targets(rows: int, classes: int) -> Tensor:
    found = torch.randint(classes, (rows,), generator=torch.Generator().manual_seed(2))
    found[1::5] = -100
    return found


def both(loss: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and the gradient of ``x`` for an incoming gradient that differs from row to row."""
    incoming = torch.linspace(-1.0, 2.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return loss.detach(), torch.autograd.grad(loss, x, incoming)[0]


def same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-6, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_every_option_is_that_of_pytorch(reduction: Any, weighted: bool, path: Any, monkeypatch: Any) -> None:
    # GIVEN rows of several trips and tiles, some of them ignored
    monkeypatch.setattr(kernels, "WIDEST_TRIP", 16)
    monkeypatch.setattr(kernels, "WIDEST_TILE", 32)
    target = targets(7, 75)
    weight = torch.rand(75, generator=torch.Generator().manual_seed(3)) + 0.1 if weighted else None
    for smoothing, softcap in product((0.0, 0.2), (None, 4.0)):
        x = logits(7, 75).requires_grad_()
        z = x if softcap is None else softcap * torch.tanh(x / softcap)
        loss = F.cross_entropy(z, target, weight, reduction=reduction, label_smoothing=smoothing)
        expected = both(loss, x)
        # THEN the loss and its gradient are PyTorch's
        with cpu_path(path):
            mine = cross_entropy(x, target, weight, reduction=reduction, label_smoothing=smoothing, softcap=softcap)
            same(both(mine, x), expected)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_of_an_expanded_loss_is_read_at_its_stride(path: Any) -> None:
    x, target = logits(6, 20).requires_grad_(), targets(6, 20)
    expected = torch.autograd.grad(F.cross_entropy(x, target, reduction="none").sum() * 0.5, x)
    with cpu_path(path):
        same(torch.autograd.grad(cross_entropy(x, target, reduction="none").sum() * 0.5, x), expected)


@pytest.mark.parametrize("path", [*PATHS, "compiled"])
@numpy_says_nan
def test_where_all_is_ignored_the_mean_is_nan_and_the_gradient_zero(path: Any) -> None:
    x, target = logits(4, 20).requires_grad_(), torch.full((4,), -100)
    with cpu_path(path):
        loss, gradient = both(cross_entropy(x, target), x)
        assert loss.isnan()
        assert not gradient.any()
        assert cross_entropy(x, target, reduction="sum").item() == 0.0
        assert not cross_entropy(x, target, reduction="none").any()


@pytest.mark.parametrize("path", PATHS)
@numpy_says_nan
def test_what_is_ignored_may_hold_anything(path: Any) -> None:
    # GIVEN a row of NaN and one of infinity that don't count
    x, target = logits(5, 20), torch.tensor([3, 7, 7, 0, 19])
    x[1], x[2] = float("nan"), float("inf")
    live = [0, 3, 4]
    y = x[live].requires_grad_()
    expected = both(F.cross_entropy(y, target[live]), y)
    with cpu_path(path):
        loss, gradient = both(cross_entropy(x.requires_grad_(), target, ignore_index=7), x)
    same((loss, gradient[live]), expected)
    assert not gradient[1:3].any()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("beyond", [20, -1, 2**40, -(2**40)])
@numpy_says_nan
def test_a_target_that_is_no_class_shows_in_its_row(beyond: int, path: Any) -> None:
    # GIVEN a target out of range, and a label smoothing that adds terms
    x, target = logits(4, 20).requires_grad_(), torch.tensor([3, beyond, 19, 0])
    good = target.clone()
    good[1] = 0
    expected = both(F.cross_entropy(x, good, reduction="none", label_smoothing=0.1), x)
    with cpu_path(path):
        found = both(cross_entropy(x, target, reduction="none", label_smoothing=0.1), x)
    # THEN its loss and gradient are NaN, and no other row's
    for mine, its in zip(found, expected, strict=True):
        assert mine[1].isnan().all()
        others = [0, 2, 3]
        torch.testing.assert_close(mine[others], its[others], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
def test_large_logits_lose_no_digits(path: Any) -> None:
    # GIVEN fp32 logits around 4000, where log-sum-exp itself is only known to 2e-4
    x, target = (logits(8, 50) + 4000).requires_grad_(), targets(8, 50)
    exact = x.detach().double().requires_grad_()
    expected = both(F.cross_entropy(exact, target, reduction="none"), exact)
    with cpu_path(path):
        found = both(cross_entropy(x, target, reduction="none"), x)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.double(), its, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("path", PATHS)
@numpy_says_nan
def test_classes_that_are_ruled_out_take_no_part(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN −inf for more classes than the first trip has
    monkeypatch.setattr(kernels, "WIDEST_TRIP", 16)
    x, target = logits(5, 60), torch.full((5,), 55)
    x[:, :40] = -float("inf")
    expected = both(F.cross_entropy(x.requires_grad_(), target), x)
    with cpu_path(path):
        same(both(cross_entropy(x, target), x), expected)


def test_a_quarter_of_a_million_classes() -> None:
    x, target = logits(2, 256_001).half().requires_grad_(), torch.tensor([256_000, 17])
    exact = x.detach().double().requires_grad_()
    expected = both(F.cross_entropy(exact, target, reduction="sum"), exact)
    with cpu_path("triton"):
        loss, gradient = both(cross_entropy(x, target, reduction="sum", dtype=torch.float32), x)
    torch.testing.assert_close(loss.double(), expected[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-3, atol=6e-8)


def test_logits_are_neither_written_to_nor_copied_in_a_wider_dtype() -> None:
    # GIVEN bf16 logits and an fp32 loss
    x, target = logits(256, 3000).bfloat16().requires_grad_(), targets(256, 3000)
    before, size = x.detach().clone(), x.numel() * 2
    with cpu_path("compiled"):
        cross_entropy(x, target, dtype=torch.float32).backward()  # compiles
        losses: list[Tensor] = []
        forward = peak_bytes(lambda: losses.append(cross_entropy(x, target, dtype=torch.float32)))
        x.grad = None
        backward = peak_bytes(lambda: losses[0].backward())
    # THEN forward holds nothing of the size of the logits, and backward their gradient
    assert torch.equal(x.detach(), before)
    assert forward < 0.1 * size
    assert size <= backward < 1.1 * size
    eager = peak_bytes(lambda: F.cross_entropy(x.float(), target).backward())
    assert eager > 4 * size


def test_rows_of_a_longer_sequence_are_taken_where_they_lie() -> None:
    # GIVEN logits and targets shifted by one, as language models do, both views
    x, tokens = logits(2 * 9, 30).requires_grad_(), targets(9, 30)
    view, target = x.view(9, 60)[:-1, :30], torch.stack([tokens, tokens], 1)[1:, 0]
    assert target.stride() == (2,)
    expected = both(F.cross_entropy(view, target), x)
    with cpu_path("triton"):
        same(both(cross_entropy(view, target), x), expected)


def test_other_shapes_run_as_the_reference_and_say_so() -> None:
    x = logits(6, 20).view(2, 3, 20).transpose(1, 2)
    target = targets(6, 20).view(2, 3)
    with pytest.warns(Unfused, match="rows, classes"):
        torch.testing.assert_close(cross_entropy(x, target), F.cross_entropy(x, target))
    supports = find("cross_entropy").supports
    assert "dimensions" in supports(x, target)
    assert "int64" in supports(x[0], target[0].int())
    assert supports(logits(6, 20), target[0]) == "target has shape (3,), and there are 6 rows of logits"
    assert "stride" in supports(torch.empty(6, 20, device="meta").t(), torch.empty(20, dtype=torch.long, device="meta"))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"reduction": "average"}, "'mean', 'sum' or 'none'"),
        ({"label_smoothing": 1.5}, "between 0 and 1"),
        ({"softcap": 0.0}, "positive"),
        ({"weight": torch.ones(3)}, "20 classes"),
    ],
)
def test_what_has_no_meaning_is_an_error(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cross_entropy(logits(6, 20), targets(6, 20), **options)
    with pytest.raises(ValueError, match="6 rows"):
        cross_entropy(logits(6, 20), targets(5, 20))


def test_the_loss_is_fp32_under_autocast() -> None:
    x, target = logits(6, 20).bfloat16(), targets(6, 20)
    with cpu_path("reference"), torch.autocast("cpu", torch.bfloat16):
        assert cross_entropy(x, target).dtype is F.cross_entropy(x, target).dtype is torch.float32
    assert find("cross_entropy").reference(x, target).dtype is torch.bfloat16


def test_differentiating_twice_is_right() -> None:
    x, target = logits(3, 7).double().requires_grad_(), targets(3, 7)
    assert torch.autograd.gradgradcheck(lambda x: cross_entropy(x, target, softcap=3.0, label_smoothing=0.1), (x,))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("smoothing", "softcap"), [(0.0, 0.0), (0.1, 5.0)])
def test_the_gradient_of_some_columns_needs_no_others(smoothing: float, softcap: float, path: Any) -> None:
    # GIVEN the statistics of whole rows
    x, target = logits(6, 40), targets(6, 40)
    arguments = (x, target, None, -100, "none", smoothing, softcap, torch.float32)
    with cpu_path(path):
        _, top, logsum, total = OP.forward.overload(*arguments)
        row_grad = torch.linspace(-1, 1, 6).masked_fill(target == -100, 0.0)
        whole = OP.backward.overload(row_grad, *arguments, top, logsum, total, [True])[0]
        # THEN the gradient of columns 13 to 31 is that part of the whole
        part = COLUMNS_GRADIENT.overload(
            row_grad, x[:, 13:31], target - 13, top, logsum, softcap, smoothing, smoothing / 40
        )
    same((part,), (whole[:, 13:31],))


def test_the_op_of_some_columns_is_sound() -> None:
    x = logits(4, 12)
    with cpu_path("reference"):
        torch.library.opcheck(
            COLUMNS_GRADIENT.overload,
            (torch.ones(4), x, targets(4, 12), x.amax(1), torch.ones(4), 5.0, 0.1, 0.01),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
        )
