"""Dropout and add: what is dropped is a function of seed, row and column, the same in PyTorch and in Triton."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fused_replacements import cpu_path, dropout_add, find
from fused_replacements.elementwise.dropout_add import philox, random_bits

REPLACEMENT = find("dropout_add")
both_paths = pytest.mark.parametrize("path", ["reference", "triton"])


def seeded(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("counter", "seed", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),  # the known answer that Random123 publishes
        (1, 0, None),
        (2**32 - 1, -1, None),
        (2**40 + 12345, -(2**62) + 77, None),
    ],
)
def test_philox_is_that_of_its_paper_in_plain_integers(counter: int, seed: int, words: tuple[int, ...] | None) -> None:
    found = tuple(int(word) for word in philox(seeded(counter), seeded(seed)))
    assert found == (words or _philox_in_python(counter, seed))
    assert found == _philox_in_python(counter, seed)


def _philox_in_python(counter: int, seed: int) -> tuple[int, ...]:
    word = 2**32 - 1
    c, k = [counter & word, counter >> 32 & word, 0, 0], [seed & word, seed >> 32 & word]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & word, a >> 32 ^ c[3] ^ k[1], a & word]
        k = [(k[0] + 0x9E3779B9) & word, (k[1] + 0xBB67AE85) & word]
    return tuple(c)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 2, -(2**63)])
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (2, 3, 65), (3, 2100)])
def test_triton_drops_the_same_elements_bit_for_bit(seed: int, shape: tuple[int, ...]) -> None:
    x, zero = torch.ones(shape), torch.zeros(shape)
    for p in (0.1, 0.5, 0.999):
        wanted = random_bits(x, seeded(seed)) >= round(p * 2**32)
        with cpu_path("triton"):
            y = dropout_add(x, zero, p, seed=seeded(seed))
        assert torch.equal(y != 0, wanted)


def test_strides_do_not_change_what_is_dropped() -> None:
    # GIVEN the same numbers, contiguous and as slices at two strides
    x, residual = random(6, 33), random(6, 33, seed=1)
    wider, widest = torch.full((6, 50), float("nan")), torch.full((6, 81), float("nan"))
    wider[:, 3:36], widest[:, 40:73] = x, residual
    with cpu_path("triton"):
        apart = dropout_add(wider[:, 3:36], widest[:, 40:73], 0.3, seed=seeded(4))
        assert torch.equal(apart, dropout_add(x, residual, 0.3, seed=seeded(4)))


def test_the_share_dropped_is_p_and_draws_are_independent() -> None:
    n, width, p = 256, 4096, 0.1
    x = torch.empty(n, width)

    def dropped(seed: int) -> Tensor:
        return (random_bits(x, seeded(seed)) < round(p * 2**32)).double()

    def z(a: Tensor, b: Tensor) -> float:
        return float(((a - p) * (b - p)).mean()) / (p * (1 - p)) * a.numel() ** 0.5

    # THEN share, and correlation along rows, down columns and from seed to seed, are within 4 standard deviations
    for seed in (0, 12345, -7):
        a, b = dropped(seed), dropped(seed + 1)
        assert abs(float(a.mean()) - p) < 4 * (p * (1 - p) / a.numel()) ** 0.5
        for first, second in ((a[:, 1:], a[:, :-1]), (a[:, 2:], a[:, :-2]), (a[1:], a[:-1]), (a, b)):
            assert abs(z(first, second)) < 4
        assert float(((a.sum(1) - width * p) ** 2).mean()) / (width * p * (1 - p)) == pytest.approx(1, abs=0.36)
        assert float(((a.sum(0) - n * p) ** 2).mean()) / (n * p * (1 - p)) == pytest.approx(1, abs=0.1)


@both_paths
def test_backward_drops_what_forward_dropped(path: str) -> None:
    x, residual = torch.ones(5, 40, requires_grad=True), torch.zeros(5, 40, requires_grad=True)
    incoming = random(5, 40)
    with cpu_path(path):  # type: ignore[arg-type]
        y = dropout_add(x, residual, 0.4, seed=seeded(9))
        dx, dresidual = torch.autograd.grad(y, (x, residual), incoming)
    assert 0 < int((y == 0).sum()) < y.numel()
    torch.testing.assert_close(dx, incoming * y.detach())  # y is the mask over 1 - p
    assert torch.equal(dresidual, incoming)


def test_only_the_seed_is_kept_for_backward() -> None:
    kept: list[Tensor] = []
    x, residual = (random(64, 64).requires_grad_() for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t), cpu_path("reference"):
        dropout_add(x, residual, 0.1)
    assert [(tensor.numel(), tensor.dtype) for tensor in kept] == [(1, torch.int64)]


def test_manual_seed_governs_the_draw() -> None:
    x, residual = random(8, 64), random(8, 64, seed=1)
    with cpu_path("reference"):
        torch.manual_seed(5)
        first, second = dropout_add(x, residual, 0.5), dropout_add(x, residual, 0.5)
        torch.manual_seed(5)
        again = dropout_add(x, residual, 0.5)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


def test_activation_checkpointing_draws_the_same_again() -> None:
    x, residual, incoming = random(8, 64).requires_grad_(), random(8, 64, seed=1), random(8, 64, seed=2)
    gradients = []
    with cpu_path("reference"):
        for recompute in (False, True):
            torch.manual_seed(5)

            def block(t: Tensor) -> Tensor:
                return dropout_add(t * t, residual, 0.5).sin()

            y = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
            gradients.append(torch.autograd.grad(y, x, incoming)[0])
    assert torch.equal(*gradients)


@both_paths
def test_without_a_draw_it_is_plain_addition(path: str) -> None:
    x, residual = random(3, 8), random(3, 8, seed=1)
    with cpu_path(path):  # type: ignore[arg-type]
        assert torch.equal(dropout_add(x, residual, 0.3, training=False), residual + x)
        assert torch.equal(dropout_add(x, residual, 0.0), residual + x)
        assert torch.equal(dropout_add(x, residual, 1.0), residual)
    assert "one addition" in str(REPLACEMENT.supports(x, residual, 0.0))
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="a probability lies between 0 and 1"):
            dropout_add(x, residual, p)


@both_paths
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's inf · 0 in the interpreter
def test_a_nan_is_never_hidden_as_in_eager(path: str) -> None:
    # GIVEN infinities, most of which are dropped
    x = torch.full((4, 64), float("inf"))
    with cpu_path(path):  # type: ignore[arg-type]
        y = dropout_add(x, torch.zeros_like(x), 0.9, seed=seeded(1))
    # THEN a dropped one is NaN, as inf · 0 is in F.dropout
    assert y.isnan().any()
    assert F.dropout(x, 0.9).isnan().any()
    assert not y.isfinite().any()


def test_the_mean_is_kept() -> None:
    x = torch.ones(256, 1024)
    for p in (0.1, 0.5, 0.9):
        with cpu_path("reference"):
            y = dropout_add(x, torch.zeros_like(x), p, seed=seeded(3))
        assert float(y.mean()) == pytest.approx(1.0, abs=4 * (p / (1 - p) / x.numel()) ** 0.5)


@pytest.mark.filterwarnings("ignore:dropout_add runs unfused.*x is broadcast:RuntimeWarning")
def test_what_broadcasts_is_computed_with_the_mask_of_x() -> None:
    x, row = random(4, 16).requires_grad_(), random(16, seed=1).requires_grad_()
    with cpu_path("reference"):
        y = dropout_add(x, row, 0.5, seed=seeded(2))
        torch.testing.assert_close(y, REPLACEMENT.reference(x, row, 0.5, seed=seeded(2)))
        assert torch.autograd.grad(y.sum(), row)[0].tolist() == [4.0] * 16
        few = dropout_add(row, x, 0.5, seed=seeded(2))
    kept = random_bits(row, seeded(2)) >= 2**31
    torch.testing.assert_close(few, x + row * kept * 2)
    assert "broadcast" in str(REPLACEMENT.supports(row, x))


def test_it_can_be_differentiated_twice() -> None:
    x, residual = random(3, 5).double().requires_grad_(), random(3, 5, seed=1).double().requires_grad_()

    def function(a: Tensor, b: Tensor) -> Tensor:
        return dropout_add(a * a, b, 0.5, seed=seeded(8))

    assert torch.autograd.gradgradcheck(function, (x, residual))


@pytest.mark.parametrize(("x_dtype", "residual_dtype"), [("float16", "float32"), ("float32", "float16")])
@both_paths
def test_gradients_have_the_dtypes_of_their_tensors(path: str, x_dtype: str, residual_dtype: str) -> None:
    # GIVEN autocast's mixture: a low-precision branch and an fp32 residual stream, or the other way round
    x = random(4, 16).to(getattr(torch, x_dtype)).requires_grad_()
    residual = random(4, 16, seed=1).to(getattr(torch, residual_dtype)).requires_grad_()
    with cpu_path(path):  # type: ignore[arg-type]
        y = dropout_add(x, residual, 0.2, seed=seeded(1))
        grads = torch.autograd.grad(y, (x, residual), torch.ones_like(y))
    assert y.dtype is torch.float32
    assert [g.dtype for g in grads] == [x.dtype, residual.dtype]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Dynamo, about itself
def test_it_compiles_whole_and_draws_anew_at_each_call() -> None:
    torch._dynamo.reset()
    x, residual = random(8, 64).requires_grad_(), random(8, 64, seed=1)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def block(t: Tensor) -> Tensor:
        return dropout_add(t, residual, 0.5)

    with cpu_path("reference"):
        torch.manual_seed(1)
        first, second = block(x), block(x)
        torch.manual_seed(1)
        assert torch.equal(first, block(x))
        (dx,) = torch.autograd.grad(first, x, torch.ones_like(first))
    assert not torch.equal(first, second)
    torch.testing.assert_close(dx * x.detach(), (first - residual).detach(), rtol=1e-4, atol=1e-5)
