"""One patched model in every mode that a call may come in: lengths, gradients, autocast, checkpointing, a cache."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_models import WIDTH, Block, RMSNorm, Small, applied, patched, step, x_of
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("reference_path")


def test_four_lengths_with_and_without_gradients_take_three_compiles_at_most() -> None:
    model = Block()
    with patched(model) as patch:
        for grad in (True, False):
            for length in (5, 6, 7, 32):
                with torch.set_grad_enabled(grad):
                    result = model(x_of(3, length, WIDTH))
                    with patch.disabled():
                        torch.testing.assert_close(result, model(x_of(3, length, WIDTH)))
        assert patch.compiles <= 3
        assert [site.calls for site in patch.sites if site.chosen] == [4] * len(applied(patch))
        assert patch.problems == []


def test_modes_are_switched_between_calls() -> None:
    model, x = Small(), x_of()
    with patched(model) as patch:
        for _ in range(2):
            for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
                with mode:
                    result = model(x)
                    with patch.disabled():
                        expected = model(x)
                torch.testing.assert_close(result, expected)
                assert result.requires_grad == expected.requires_grad
                assert result.is_inference() == expected.is_inference()
        torch.testing.assert_close(step(model, x)[0], expected)
        assert patch.unpatched_calls == 0


@pytest.mark.parametrize("modules", [(), ("norm",)])
def test_autocast_is_followed_when_it_is_switched(modules: tuple[str, ...]) -> None:
    model, x = Small(), x_of()
    with patched(model, modules=modules) as patch:
        for enabled in (False, True, False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                result = model(x)
                assert result.dtype is (torch.bfloat16 if enabled else torch.float32)
                near = {"rtol": 2e-2, "atol": 5e-3} if enabled else {}  # a rounding of the gate, of 8 bits
                with patch.disabled():
                    torch.testing.assert_close(result, model(x), **near)
        assert patch.compiles == 2
        assert patch.unpatched_calls == 0
        assert not patch.problems


def test_transforms_and_compilers_see_the_ops_of_the_model() -> None:
    model, x = Small(), x_of()
    expected, state = model(x), dict(model.named_parameters())

    def loss(state: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, state, (x,)).pow(2).mean()

    gradients = torch.func.grad(loss)(state)
    with patched(model) as patch:
        model(x)
        calls = [site.calls for site in patch.sites]
        torch.testing.assert_close(torch.vmap(model)(x), expected)
        torch.testing.assert_close(torch.func.grad(loss)(state), gradients)
        torch.testing.assert_close(torch.compile(nn.Sequential(model), backend="eager")(x), expected)
        assert [site.calls for site in patch.sites] == calls
        doubled = {name: value.detach() * 2.0 for name, value in state.items()}
        result = torch.func.functional_call(model, doubled, (x,))
        with patch.disabled():
            torch.testing.assert_close(result, torch.func.functional_call(model, doubled, (x,)))
        assert patch.unpatched_calls == 0


class Recomputing(nn.Module):
    """Half of it is computed again in backward."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.first, self.second, self.drop, self.calls = Small(), Small(), drop, 0

    def part(self, x: Tensor) -> Tensor:
        return F.dropout(self.first(x), self.drop)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(checkpoint(self.part, x, use_reentrant=False))  # type: ignore[no-any-return]


def test_what_is_checkpointed_is_patched_inside_and_computed_again() -> None:
    model, x = Recomputing(), x_of()
    expected = step(model, x)
    with patched(model) as patch:
        torch.testing.assert_close(step(model, x), expected)
        calls = {site.key.module: site.calls for site in patch.sites if site.chosen}
        assert calls == {"first.norm": 2, "first.mlp": 2, "second.norm": 1, "second.mlp.gate": 1, "second.mlp": 1}
        with torch.no_grad():
            torch.testing.assert_close(model(x), expected[0])
        assert patch.compiles <= 3
        assert patch.problems == []


def test_what_is_computed_again_draws_the_same_random_numbers() -> None:
    model, x = Recomputing(0.5), x_of()
    torch.manual_seed(5)
    expected = step(model, x)
    with patched(model) as patch:
        torch.manual_seed(5)
        torch.testing.assert_close(step(model, x), expected)
        assert ("first.norm", "rms_norm") in applied(patch)


def test_checkpointing_saves_its_memory_all_the_same() -> None:
    def saved(model: nn.Module, x: Tensor) -> int:
        kept: list[int] = []
        weights = {parameter.data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            kept.append(0 if tensor.data_ptr() in weights else tensor.numel())
            return tensor

        model(x)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(x)
        return sum(kept)

    model, x = Recomputing(), x_of()
    plain = nn.Sequential(model.first, model.second)
    with patched(plain):
        without = saved(plain, x)
    with patched(model):
        assert saved(model, x) < 0.75 * without


# --- a cache that grows --------------------------------------------------------------------------------


class Attention(nn.Module):
    """One head, whose keys and values are kept from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RMSNorm()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> tuple[Tensor, list[Tensor]]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        if cache is not None:
            k, v = torch.cat([cache[0], k], dim=1), torch.cat([cache[1], v], dim=1)
        scores = torch.softmax(q @ k.transpose(-1, -2) * WIDTH**-0.5, dim=-1)
        return x + self.out(scores @ v), [k, v]


def generated(model: nn.Module, x: Tensor, steps: int) -> list[Tensor]:
    cache, outputs = None, []
    for _ in range(steps):
        y, cache = model(x, cache)
        outputs.append(y)
        x = y[:, -1:]
    return outputs


def test_a_cache_grows() -> None:
    model, x = Attention(), x_of(2, 5, WIDTH)
    with torch.no_grad():
        expected = generated(model, x, 7)
        with patched(model) as patch:
            torch.testing.assert_close(generated(model, x, 7), expected)
            assert ("norm", "rms_norm") in applied(patch)
            assert patch.compiles <= 3
            assert patch.unpatched_calls == 0


def test_a_llama_generates_with_its_own_cache() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=50, use_cache=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.arange(6)[None]
    taken = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    name = "cache" if "cache" in taken else "past_key_values"

    def logits(steps: int) -> list[Tensor]:
        cache, given, found = transformers.DynamicCache(config=config), ids, []
        for _ in range(steps):
            output = model(given, use_cache=True, **{name: cache})
            found.append(output.logits[:, -1])
            given = found[-1].argmax(-1, keepdim=True)
        return found

    with torch.no_grad():
        expected = logits(5)
        with patched(model) as patch:
            torch.testing.assert_close(logits(5), expected, rtol=1e-4, atol=1e-5)
            replaced = [replacement for _, replacement in applied(patch)]
            assert {"rms_norm", "act_mul", "add_rms_norm", "rope"} <= set(replaced)
            assert patch.unpatched_calls == 0
            assert patch.compiles <= 3


# --- control flow, graph breaks, many graphs ----------------------------------------------------------


class Deciding(nn.Module):
    """Which norm is taken depends on the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = RMSNorm(), RMSNorm()

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.second(y) if float(x.sum()) > 0 else y * 2.0


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo's own, after a graph break
def test_a_forward_that_looks_at_numbers_runs_right_and_its_graph_break_is_told() -> None:
    model = Deciding()
    with patched(model) as patch:
        for sign in (1.0, -1.0, 1.0):
            x = sign * x_of().abs()
            result = model(x)
            with patch.disabled():
                torch.testing.assert_close(result, model(x))
        assert applied(patch) == [("first", "rms_norm"), ("second", "rms_norm")]
        assert all(site.calls > 1 for site in patch.sites)
        assert patch.graph_breaks
        assert any("falls into several graphs" in problem for problem in patch.problems)
        other = Deciding()
        with patched(other) as again:
            other(x_of().abs())
            assert again.graph_breaks, "a reason that was seen before is one all the same"


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_what_is_undone_leaves_its_place_after_a_graph_break_too() -> None:
    x = x_of().abs()
    with torch._dynamo.config.patch(recompile_limit=2):
        for _ in range(4):
            model = Deciding()
            with patched(model) as patch:
                model(x)
                assert applied(patch) == [("first", "rms_norm"), ("second", "rms_norm")]
                assert patch.unpatched_calls == 0


class Counting(RMSNorm):
    """Computes with a number that is another in each call."""

    number = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.number += 1.0
        return super().forward(x) * self.number


def test_a_storm_of_compiles_is_told_and_ends_unpatched() -> None:
    model, x = Counting(), x_of()
    with patched(model) as patch, torch._dynamo.config.patch(recompile_limit=3):
        for i in range(6):
            result = model(x)
            assert model.number == i + 1
        torch.testing.assert_close(result / 6.0, RMSNorm.forward(model, x))
        assert patch.compiles == 3
        assert patch.unpatched_calls == 3
        assert patch.problems == [
            "The model was traced 3 times: something in it changes from call to call, and each change is traced anew.",
            "3 calls ran without replacements: Dynamo traces no more of this model.",
        ]


def test_a_graph_that_cannot_be_read_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from auditor.patching import rewrite

    def failing(*_args: Any) -> Any:
        raise ValueError("an op without a fake implementation")

    model, x = Small(), x_of()
    monkeypatch.setattr(rewrite, "exchange", failing)
    with patched(model) as patch:
        torch.testing.assert_close(model(x), model.mlp(model.norm(x)))
        assert applied(patch) == []
        assert patch.problems == ["A graph could not be looked at: ValueError: an op without a fake implementation."]
