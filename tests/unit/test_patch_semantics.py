"""What a program means beyond its numbers: roundings on purpose, gradients that are absent, memory that is shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_models import WIDTH, RMSNorm, Small, applied, patched, rules, x_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from auditor.patching.choose import ByMeasuring, Choice
from auditor.patching.live import Patched
from auditor.patching.step import Step
from auditor.patching.threeway import measure_step

pytestmark = pytest.mark.usefixtures("reference_path")


# roundings on purpose ------------------------------------------------------------------------------------------------


class Rounding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)


class Split(Rounding):
    """In what bf16 holds and the rest."""

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.weight
        return (h - h.bfloat16().float()) * 1024


class Promoted(Rounding):
    def forward(self, x: Tensor) -> Tensor:
        h = x * self.weight
        return (h - h.half()) * 1024


class Viewed(Rounding):
    def forward(self, x: Tensor) -> Tensor:
        h = x * self.weight
        return h.view(-1, 2) + (-h.bfloat16().view(-1, 2)).float()


class RoundedNorm(Rounding):
    def forward(self, x: Tensor) -> Tensor:
        x = x.bfloat16().float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@pytest.mark.parametrize("kind", [Split, Promoted, Viewed, RoundedNorm])
def test_a_rounding_that_the_program_asks_for_stays(kind: type[Rounding]) -> None:
    model, x = kind(), x_of()
    expected = model(x)
    with patched(model) as patch:
        for _ in range(2):
            torch.testing.assert_close(model(x), expected, rtol=1e-6, atol=1e-6)
    assert any("goes on with more digits" in site.reason for site in patch.sites)


def test_the_norms_of_models_in_16_bits_round_before_their_weight_and_are_taken() -> None:
    model, x = RMSNorm(), x_of(dtype=torch.bfloat16)
    with patched(model) as patch:
        model(x)
        assert model(x).dtype is torch.float32
    assert applied(patch)


# gradients that are absent -------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Of which a loss may read one."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x).square().mean(), self.b(x).square().mean()


def test_a_head_that_no_loss_reads_has_no_gradient_and_is_not_decayed() -> None:
    model, x = Heads(), torch.randn(32, 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1.0)
    before = model.b.weight.detach().clone()
    with patched(model, ["packed_linear"]) as patch:
        for _ in range(3):
            optimizer.zero_grad()
            model(x)[0].backward()
            optimizer.step()
    assert applied(patch) == [("a", "packed_linear")]
    assert model.b.weight.grad is None
    assert torch.equal(model.b.weight, before)
    assert model.a.weight.grad is not None


# memory that is shared -----------------------------------------------------------------------------------------------


class Leaving(Heads):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


def test_what_leaves_the_model_lies_as_eager_lays_it() -> None:
    model, x = Leaving(), torch.randn(4, 8, 64)
    with patched(model) as patch:
        for _ in range(2):
            a, b = model(x)
            assert (a.stride(), b.stride()) == ((512, 64, 1), (512, 64, 1))
    assert "leaves the model" in patch.sites[0].reason


def test_weights_that_processes_share_are_not_moved() -> None:
    model, x = Heads(), torch.randn(32, 64)
    model.share_memory()
    with patched(model, ["packed_linear"]) as patch:
        model(x)
    assert "processes share" in patch.sites[0].reason
    assert model.a.weight.is_shared()


def test_weights_that_another_tensor_shows_are_not_moved() -> None:
    model, x = Heads(), torch.randn(32, 64)
    averaged = model.a.weight.detach()
    with patched(model, ["packed_linear"]) as patch:
        model(x)
        with torch.no_grad():
            model.a.weight.add_(1)
    assert "another tensor shows" in patch.sites[0].reason
    assert torch.equal(averaged, model.a.weight)


def test_what_came_to_show_packed_weights_still_shows_them_after_the_undo() -> None:
    model, x = Heads(), torch.randn(32, 64)
    with patched(model, ["packed_linear"]) as patch:
        model(x)
        kept = model.state_dict()
    assert applied(patch) == [("a", "packed_linear")]
    with torch.no_grad():
        model.b.weight.add_(1)
    assert torch.equal(kept["b.weight"], model.b.weight)


# calls in other calls ------------------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, *, counting: bool) -> None:
        super().__init__()
        self.small, self.count, self.counting = Small(), 0, counting

    def forward(self, x: Tensor) -> Tensor:
        if self.counting:  # which makes Dynamo trace it anew in every call, the recomputation among them
            self.count += 1
        return F.silu(self.small(x)) * x


@pytest.mark.parametrize("counting", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_the_first_call_may_be_in_a_checkpoint(counting: bool, timed: bool) -> None:
    model, x = Checkpointed(counting=counting), x_of().requires_grad_()

    def gradients() -> tuple[Tensor, ...]:
        return torch.autograd.grad(checkpoint(model, x, use_reentrant=False).sum(), [x, *model.parameters()])

    expected = gradients()
    chooser = ByMeasuring(Choice(keep_all=True), timed=timed)
    with Patched(model, rules(), chooser) as patch:
        for _ in range(2):
            for found, wanted in zip(gradients(), expected, strict=True):
                torch.testing.assert_close(found, wanted)
        assert sum(site.calls for site in patch.sites)


@pytest.mark.parametrize("training", [False, True])
def test_the_first_call_may_be_under_autocast(training: bool) -> None:
    model, x = Small().train(training), x_of()
    with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(training):
        expected = model(x)
        with patched(model) as patch:
            for _ in range(2):
                torch.testing.assert_close(model(x), expected, rtol=2e-2, atol=2e-2)
    assert applied(patch)
    assert not patch.problems


class Growing(nn.Module):
    """Appends to what it is given, as a model does to its cache of keys."""

    def __init__(self) -> None:
        super().__init__()
        self.small = Small()

    def forward(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache[0] = torch.cat([cache[0], x], 1)
        return self.small(x) + cache[0].mean(1, keepdim=True)


def test_a_step_that_grows_its_input_is_measured_at_one_length() -> None:
    model, cache = Growing(), [x_of()]
    lengths: list[int] = []
    model.register_forward_pre_hook(lambda _module, args: lengths.append(args[1][0].size(1)))
    step = Step(args=(x_of(2, 1, WIDTH), cache), grad_enabled=False)
    with patched(model) as patch:
        found = measure_step(model, patch, step, compile=False, cap_s=0.2)
    assert found.timings.rounds >= 10
    assert set(lengths) == {6}
    assert cache[0].shape == (2, 6, WIDTH)


def test_inputs_in_a_list_are_no_arguments() -> None:
    import auditor

    inputs: Any = [x_of()]
    with pytest.raises(auditor.AuditError, match="a tuple of the arguments"):
        auditor.measure(Small(), inputs, "plan.yaml")
