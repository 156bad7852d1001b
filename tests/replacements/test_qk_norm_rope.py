"""Norm and rotation of q and k: the layouts, head counts and angle shapes of models."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fused_replacements import Unfused, cpu_path, qk_norm_rope
from fused_replacements.reduction.qk_norm_rope import REPLACEMENT, reference

PATHS = ["compiled", "reference", "triton"]


def heads(batch: int = 2, length: int = 3, q: int = 6, k: int = 2, size: int = 16) -> list[Tensor]:
    """q and k as views of (batch, length, heads, size), two weights, and angles of one sequence."""
    qk = [torch.randn(batch, length, count, size).transpose(1, 2) for count in (q, k)]
    angle = torch.randn(1, length, size)
    return [*qk, torch.randn(size), torch.randn(size), angle.cos(), angle.sin()]


def by_hand(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """One element at a time, as the formula says."""
    batch, count, length, _ = x.shape
    rotary, out = cos.size(-1), torch.empty(x.shape)
    for b in range(batch):
        for s in range(length):
            c, d = cos[b % cos.size(0), s], sin[b % sin.size(0), s]
            for h in range(count):
                n = x[b, h, s] * torch.rsqrt(x[b, h, s].pow(2).mean() + 1e-6) * weight
                out[b, h, s] = n
                for i in range(rotary // 2):
                    j = i + rotary // 2
                    out[b, h, s, i] = n[i] * c[i] - n[j] * d[i]
                    out[b, h, s, j] = n[j] * c[j] + n[i] * d[j]
    return out


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("rotary", [16, 8, 2])
def test_is_the_formula(path: str, rotary: int) -> None:
    # GIVEN other angles for each batch and, in the two halves of a head, other angles too
    q, k, q_weight, k_weight, *_ = heads()
    cos, sin = torch.randn(2, 3, rotary), torch.randn(2, 3, rotary)
    with cpu_path(path):  # type: ignore[arg-type]
        q_out, k_out = qk_norm_rope(q, k, q_weight, k_weight, cos, sin)
    torch.testing.assert_close(q_out, by_hand(q, q_weight, cos, sin))
    torch.testing.assert_close(k_out, by_hand(k, k_weight, cos, sin))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("used", ["both", "q", "k"])
def test_gradients_through_views_at_any_strides(path: str, used: str) -> None:
    # GIVEN q and k as transposed views, and incoming gradients that are views as well
    arguments = heads()
    leaves = [t.requires_grad_() for t in arguments[:4]]
    given = [torch.randn(2, 3, t.size(1), 16).transpose(1, 2) for t in leaves[:2]]
    chosen = {"both": (0, 1), "q": (0,), "k": (1,)}[used]

    def gradients(outputs: tuple[Tensor, Tensor]) -> list[Tensor | None]:
        wanted = [outputs[i] for i in chosen]
        return list(torch.autograd.grad(wanted, leaves, [given[i] for i in chosen], allow_unused=True))

    with cpu_path(path):  # type: ignore[arg-type]
        mine = gradients(qk_norm_rope(*arguments))
    for got, expected in zip(mine, gradients(reference(*arguments)), strict=True):
        assert (got is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(got, expected)


def test_the_callers_q_and_k_stay_as_they_are() -> None:
    arguments = heads()
    before = [t.clone() for t in arguments]
    with cpu_path("triton"):
        outputs = qk_norm_rope(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))
    assert not {o.data_ptr() for o in outputs} & {a.data_ptr() for a in arguments}


def test_angles_that_learn_get_their_gradient() -> None:
    # GIVEN cos with a gradient, which the op has none for
    arguments = heads()
    cos = arguments[4].requires_grad_()
    with pytest.warns(Unfused, match="cos or sin needs a gradient"):
        q_out, _ = qk_norm_rope(*arguments)
    assert torch.autograd.grad(q_out.sum(), cos)[0].abs().sum() > 0
    assert REPLACEMENT.supports(*arguments) == "cos or sin needs a gradient"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({1: torch.randn(2, 2, 4, 16)}, "only the number of heads may differ"),
        ({4: torch.randn(3, 3, 16), 5: torch.randn(3, 3, 16)}, "cos has shape"),
        ({4: torch.randn(1, 3, 7), 5: torch.randn(1, 3, 7)}, "rotated in pairs"),
        ({4: torch.randn(1, 3, 18), 5: torch.randn(1, 3, 18)}, "rotated in pairs"),
        ({0: torch.randn(6, 3, 16)}, "dimensions"),
    ],
)
def test_shapes_that_do_not_fit_are_an_error(change: dict[int, Tensor], reason: str) -> None:
    arguments = heads()
    for place, tensor in change.items():
        arguments[place] = tensor
    with pytest.raises(ValueError, match=reason):
        qk_norm_rope(*arguments)
    assert reason in str(REPLACEMENT.supports(*arguments))
