"""Inside ``torch.func`` transforms, forward-mode differentiation and whole graphs: right, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from calls import as_list
from torch import Tensor
from torch.autograd import forward_ad

import fused_replacements as fused
from fused_replacements import Unfused, _paths

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Dynamo and functorch, about themselves

WEIGHT = torch.linspace(0.5, 2, 8)
COS = torch.linspace(-1, 1, 40).view(1, 5, 8)
LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu_squared": lambda x: fused.relu_squared(x).sum(),
    "rms_norm": lambda x: fused.rms_norm(x, WEIGHT).square().sum(),
    "softmax": lambda x: fused.softmax(x, scale=0.5).square().sum() * 100,
}


@pytest.fixture(autouse=True)
def nothing_compiled_yet() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def eager_gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    mine = x.detach().requires_grad_()
    return torch.autograd.grad(loss(mine), mine)[0]


@pytest.mark.parametrize("name", LOSSES)
def test_a_compiled_transform_gives_the_gradient(name: str) -> None:
    x, loss = torch.randn(4, 8), LOSSES[name]
    expected = eager_gradient(loss, x)
    assert expected.norm() > 0.1

    def by_vjp(x: Tensor) -> Tensor:
        y, pullback = torch.func.vjp(loss, x)
        gradient: Tensor = pullback(torch.ones_like(y))[0]
        return gradient

    for gradient in (torch.func.grad(loss), by_vjp):
        torch.testing.assert_close(torch.compile(gradient, fullgraph=True)(x), expected)


def test_compiled_vmap_of_a_gradient() -> None:
    x, loss = torch.randn(3, 4, 8), LOSSES["rms_norm"]
    found = torch.compile(torch.vmap(torch.func.grad(loss)), fullgraph=True)(x)
    torch.testing.assert_close(found, eager_gradient(loss, x))


def test_compiled_vmap_with_a_weight_that_learns() -> None:
    x, weight = torch.randn(3, 4, 8), WEIGHT.clone().requires_grad_()
    y = torch.compile(torch.vmap(lambda row: fused.rms_norm(row, weight)), fullgraph=True)(x)
    expected = fused.rms_norm(x, weight)
    torch.testing.assert_close(y, expected)
    mine, its = (torch.autograd.grad(out.square().sum(), weight)[0] for out in (y, expected))
    torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("name", LOSSES)
def test_a_tangent_is_carried_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an input with a direction, in forward mode
    monkeypatch.setattr(_paths, "_said", set())
    x, direction = torch.randn(4, 8), torch.randn(4, 8)
    with forward_ad.dual_level(), pytest.warns(Unfused, match="forward-mode"):
        tangent = forward_ad.unpack_dual(LOSSES[name](forward_ad.make_dual(x, direction))).tangent
    # THEN the derivative in that direction comes out, and that it ran unfused is said
    torch.testing.assert_close(tangent, (eager_gradient(LOSSES[name], x) * direction).sum())


TWICE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "weight and bias": (lambda x, y, w: fused.add_layer_norm(x, y, w, w), [(4, 8), (4, 8), (8,)]),
    "both terms of a sum": (lambda x, w: fused.add_rms_norm(x, x, w), [(4, 8), (8,)]),
    "one weight for q and k": (
        lambda q, k, w: fused.qk_norm_rope(q, k, w, w, COS, COS),
        [(1, 2, 5, 8), (1, 1, 5, 8), (8,)],
    ),
    "keys are values": (lambda q, kv: fused.flash_attention(q, kv, kv, softcap=5.0), [(1, 2, 5, 8), (1, 1, 5, 8)]),
    "queries are keys are values": (
        lambda x: fused.flash_attention(x, x, x, window=3, causal="upper_left"),
        [(1, 2, 5, 8)],
    ),
    "gate and up": (lambda x: fused.act_mul(x, x), [(4, 8)]),
    "tied weights": (lambda x, w: fused.packed_linear(x, [w, w]), [(4, 8), (6, 8)]),
    "a residual of itself": (lambda x: fused.dropout_add(x, x, 0.3, seed=torch.tensor(5)), [(4, 8)]),
}


@pytest.mark.parametrize("case", TWICE)
def test_one_tensor_as_two_arguments_of_a_whole_graph(case: str) -> None:
    function, shapes = TWICE[case]
    mine = [torch.randn(shape, requires_grad=True) for shape in shapes]
    found, expected = (as_list(f(*mine)) for f in (torch.compile(function, fullgraph=True), function))
    for outputs in zip(found, expected, strict=True):
        torch.testing.assert_close(*outputs)
    gradients = [
        torch.autograd.grad([output.square().sum() for output in outputs], mine) for outputs in (found, expected)
    ]
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair)


@pytest.mark.parametrize("groups", [1, 2])
def test_causal_attention_of_any_length_in_one_graph(groups: int) -> None:
    # GIVEN prefill, then one token at a time: as many queries as keys, or fewer
    def attend(q: Tensor, kv: Tensor) -> Tensor:
        return fused.attention(q, kv, kv, causal="lower_right")

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for q_len, kv_len in ((5, 5), (5, 8), (9, 9), (1, 10)):
        q, kv = torch.randn(1, 2, q_len, 8), torch.randn(1, groups, kv_len, 8)
        torch.testing.assert_close(compiled(q, kv), attend(q, kv))
