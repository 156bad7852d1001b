"""Dropout draws the numbers that it would have drawn; what stands beside it is fused, also where attention is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_models import applied, patched, reasons, rules
from torch import Tensor, fx, nn

from auditor.patching.choose import as_plan
from auditor.patching.live import Patched
from auditor.patching.plan import Plan
from auditor.patching.writes import OpenedWrites

pytestmark = pytest.mark.usefixtures("reference_path")


class Dropping(nn.Module):
    """A projection, dropout, and the residual: in that order in every transformer that is trained."""

    def __init__(self, p: float = 0.25) -> None:
        super().__init__()
        self.project, self.drop, self.norm = nn.Linear(16, 16), nn.Dropout(p), nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.drop(self.project(x)) * 1.5 + x)
        return self.drop(self.project(x)) + x


class Attention(nn.Module):
    """By parts, with dropout: as minGPT has it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.drop = nn.Linear(16, 48), nn.Dropout(0.25)
        self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        scores = ((q @ k.transpose(-2, -1)) / math.sqrt(4)).masked_fill(~self.mask, -math.inf)
        return self.drop(F.softmax(scores, -1)) @ v


class Whole(nn.Module):
    """PyTorch's own attention with dropout, which a CPU computes by parts."""

    def __init__(self, mask: str = "", **options: Any) -> None:
        super().__init__()
        self.qkv, self.options = nn.Linear(16, 48), options
        given = torch.ones(6, 6, dtype=torch.bool).tril() if mask == "bool" else torch.randn(6, 6) if mask else None
        self.register_buffer("mask", given)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(2, 6, 3, 4, 4).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v, self.mask, 0.25, **self.options)


def seeded(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    output = model(x)
    return [output, *torch.autograd.grad(output.square().sum(), list(model.parameters())), torch.rand(2)]


@pytest.mark.parametrize(
    "model",
    [Dropping(), Attention(), Whole(), Whole("bool"), Whole("float", scale=0.3), Whole(is_causal=True)],
    ids=["residual", "by parts", "whole", "boolean mask", "additive mask", "causal"],
)
def test_the_same_numbers_are_drawn_in_the_same_order(model: nn.Module) -> None:
    x = torch.randn(2, 6, 16)
    expected = seeded(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(seeded(model, x), expected, rtol=1e-4, atol=1e-4)
        chains = [site for site in patch.sites if site.chosen and site.key.rule == "FUS101"]
        assert chains
        assert all(site.calls for site in chains)
    assert all(map(torch.equal, seeded(model, x), expected))


def test_copies_that_16_bit_attention_makes_of_its_heads_are_fused_with_their_casts() -> None:
    model, x = Whole().bfloat16(), torch.randn(2, 6, 16, dtype=torch.bfloat16)
    expected = seeded(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(seeded(model, x), expected, rtol=0.05, atol=0.05)
        casts = [site for site in patch.sites if site.chosen and site.function and "float()" in site.function.code]
        assert ["flatten" in site.function.code for site in casts if site.function] == [True, True, True]
        assert ["return (" in site.function.code or not site.calls for site in casts if site.function] == [False] * 3


class OneKey(nn.Module):
    """One key and value for all of the batch."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, None, 0.25)


def test_keys_of_another_batch_than_the_queries_are_spread_over_it() -> None:
    q, k, v = (torch.randn(n, 3, 6, 4) for n in (2, 1, 1))
    torch.manual_seed(7)
    expected = OneKey()(q, k, v)
    with patched(model := OneKey()):
        torch.manual_seed(7)
        torch.testing.assert_close(model(q, k, v), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (1.0, True), (0.25, False)])
def test_dropout_that_draws_nothing_is_left_alone(p: float, training: bool) -> None:
    model, x = Dropping(p).train(training), torch.randn(2, 6, 16)
    expected = seeded(model, x)
    with patched(model):
        torch.testing.assert_close(seeded(model, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", [Dropping(), Whole("bool")], ids=["residual", "attention"])
def test_where_no_site_is_applied_nothing_is_opened(model: nn.Module) -> None:
    x = torch.randn(2, 6, 16)
    expected = seeded(model, x)
    with patched(model, only=["nothing"]) as patch:
        assert all(map(torch.equal, seeded(model, x), expected))
        assert patch.sites
        assert not applied(patch)


def test_what_is_left_of_attention_that_nothing_computes_is_fused() -> None:
    model, x = Attention(), torch.randn(2, 6, 16)
    with patched(model) as patch:
        model(x)
        assert {site.key.rule for site in patch.sites if site.chosen} == {"FUS204", "FUS101"}
        assert any("bernoulli_" in reason for reason in reasons(patch).values())
        sites = applied(patch)
        plan = as_plan([], patch.sites, Plan(model="Attention"))
    with Patched.by_plan(model, rules(), plan) as planned:
        model(x)
        assert applied(planned) == sites
        assert planned.problems == []


# --- writes in place ------------------------------------------------------------------------------------


class Writing(nn.Module):
    """A convolution's block as vision models write it, and a gate that is divided by its sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x) * 2.0)
        z = self.second(y)
        z += y
        z = self.relu(z)
        gate = z.mean((2, 3))
        gate /= gate.sum(-1, keepdim=True)
        return torch.sigmoid(gate.mul_(3.0).clamp_(min=-1.0))


def aliased(x: Tensor) -> Tensor:
    y = x * 2.0
    y.view(-1).add_(1.0)
    return torch.tanh(y + 1.0)


def its_input(x: Tensor) -> Tensor:
    x = x.view(x.shape)
    x.mul_(2.0)
    return torch.tanh(x + 1.0)


def of_another_dtype(x: Tensor) -> Tensor:
    y = (x > 0).to(torch.int64)
    y += 1
    z = x.half() * 1.5
    z += x
    return torch.tanh(z + 1.0) * y


def read_before(x: Tensor) -> Tensor:
    y = torch.exp(x)
    z = y + 1.0
    y += 1.0
    return torch.tanh(z * y)


class Called(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_what_writes_into_a_tensor_of_its_own_is_fused() -> None:
    model, x = Writing(), torch.randn(2, 3, 6, 6)
    expected = seeded(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(seeded(model, x), expected, rtol=1e-4, atol=1e-4)
        assert sum(site.kernels for site in patch.sites if site.chosen and site.key.rule == "FUS101") >= 8
        assert not any("writes in place" in reason for reason in reasons(patch).values())
    assert all(map(torch.equal, seeded(model, x), expected))


@pytest.mark.parametrize("function", [aliased, its_input, of_another_dtype, read_before])
def test_a_write_that_something_else_shows_is_a_write(function: Callable[[Tensor], Tensor]) -> None:
    model, x = Called(function), torch.randn(4, 6)
    expected, given = model(x.clone()), x.clone()
    eager = x.clone()
    model(eager)
    with torch.no_grad(), patched(model):
        torch.testing.assert_close(model(given), expected)
    assert torch.equal(given, eager)


def test_a_write_that_no_site_takes_over_is_a_write_again() -> None:
    codes: list[str] = []

    def backend(module: fx.GraphModule, _inputs: object) -> Callable[..., object]:
        codes.append(str(module.graph))
        writes = OpenedWrites(module.graph)
        codes.append(str(module.graph))
        writes.close()
        codes.append(str(module.graph))
        module.recompile()
        return module.forward

    model = Writing()
    torch.compile(model, backend=backend)(torch.randn(2, 3, 6, 6))
    before, opened, closed = codes
    for written in ("iadd]", "itruediv]", "target=mul_]", "target=clamp_]", "inplace: True"):
        assert written in before
        assert written not in opened
        assert written in closed
