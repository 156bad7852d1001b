"""A model in fp64 from end to end, whatever it casts to by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from auditor.patching.precision import HigherPrecision, copied_tensor, copies, home_of, in_higher_precision, wide_state


def drawn(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


class Norm(nn.Module):
    """As models write it: computed in fp32 whatever comes in, with a constant that is no buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.two = torch.full((width,), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        wide = x.float()
        normal = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * normal.to(x.dtype) * self.two.to(x.dtype)


def norm_in_fp64(norm: Norm, x: Tensor) -> Tensor:
    wide = x.double()
    return norm.weight.double() * wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_norm_that_casts_by_itself_runs_in_fp64(dtype: torch.dtype) -> None:
    norm, x = Norm(64).to(dtype), drawn(4, 64, dtype=dtype)
    found = in_higher_precision(norm, (x,))
    torch.testing.assert_close(found, norm_in_fp64(norm, x), rtol=1e-14, atol=1e-14)


def test_the_module_and_the_arguments_stay_as_they_are() -> None:
    norm, x = Norm(64).bfloat16(), drawn(4, 64, dtype=torch.bfloat16)
    before = {name: (id(t), t.dtype, t.clone()) for name, t in [*norm.named_parameters(), *norm.named_buffers()]}
    in_higher_precision(norm, (x,))
    for name, t in [*norm.named_parameters(), *norm.named_buffers()]:
        assert (id(t), t.dtype) == before[name][:2]
        assert torch.equal(t, before[name][2])
    assert x.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32


def test_gradients_are_in_fp64_too() -> None:
    norm, x = Norm(64).bfloat16(), drawn(4, 64, dtype=torch.bfloat16).requires_grad_()
    state, wide = wide_state(norm), copied_tensor(x, torch.float64)
    with HigherPrecision(torch.bfloat16):
        torch.func.functional_call(norm, state, (wide,)).square().sum().backward()
    weight, y = copied_tensor(norm.weight, torch.float64), copied_tensor(x, torch.float64)
    (weight * y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * 2).square().sum().backward()
    torch.testing.assert_close(state["weight"].grad, weight.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(wide.grad, y.grad, rtol=1e-12, atol=1e-12)
    assert x.grad is None


NARROWING: dict[str, Callable[[Tensor], Tensor]] = {
    "float": lambda x: x.float(),
    "half": lambda x: x.half(),
    "to": lambda x: x.to(torch.bfloat16),
    "type_as": lambda x: x.type_as(torch.ones(1, dtype=torch.float16)),
    "full": lambda x: x + torch.full((5,), 0.1, dtype=torch.bfloat16),
    "zeros": lambda _: torch.zeros(5, dtype=torch.float16),
    "ones_like": lambda x: torch.ones_like(x, dtype=torch.float32),
    "new_ones": lambda x: x.new_ones(3, dtype=torch.float32),
    "arange": lambda _: torch.arange(0, 1, 0.1, dtype=torch.float32),
    "arange by default": lambda _: torch.arange(0, 1, 0.1),
    "integers divided": lambda _: torch.arange(5) / 3,
    "scalar_tensor": lambda _: torch.scalar_tensor(0.1, dtype=torch.float32),
    "sum": lambda x: x.sum(0, dtype=torch.float32),
    "mean": lambda x: x.mean(dtype=torch.bfloat16),
    "softmax": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "log_softmax": lambda x: F.log_softmax(x, -1, dtype=torch.float32),
    "cumsum": lambda x: x.cumsum(0, dtype=torch.float32),
    "norm": lambda x: torch.linalg.vector_norm(x, dtype=torch.float32),
    "mask": lambda x: x.masked_fill(x > 0, torch.finfo(x.dtype).min).clamp_min(-9),
    "complex": lambda x: torch.view_as_real(torch.polar(x.float(), x.float())),
    "rand": lambda _: torch.rand(5, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("how", NARROWING)
def test_what_asks_for_a_narrow_dtype_is_fp64_and_not_rounded(how: str) -> None:
    x = drawn(5)
    with HigherPrecision():
        found = NARROWING[how](x)
    assert found.dtype == torch.float64
    if how in ("float", "half", "to", "type_as"):
        assert torch.equal(found, x)
    if how == "integers divided":
        assert torch.equal(found, torch.arange(5, dtype=torch.float64) / 3)


def test_integers_booleans_and_views_are_untouched() -> None:
    x, ids = drawn(4, 4), torch.arange(4)
    with HigherPrecision():
        assert (ids + 1).dtype == torch.int64
        assert (x > 0).dtype == torch.bool
        assert x.int().dtype == torch.int32
        assert x.view(torch.int64).dtype == torch.int64
        narrow = torch.empty(0).new_tensor([1.0, 2.0])
        assert narrow[1:].data_ptr() == narrow.data_ptr() + narrow.element_size()


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.4),
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "normal_": lambda x: torch.empty_like(x).normal_(),
    "rand": lambda x: torch.rand(x.shape),
    "randn": lambda x: torch.randn(x.shape, dtype=x.dtype) if x.dtype != torch.float64 else torch.randn_like(x),
    "randint": lambda x: torch.randint(0, 100, x.shape),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", RANDOM)
def test_the_same_seed_draws_the_same_numbers_as_in_low_precision(how: str, dtype: torch.dtype) -> None:
    x = torch.ones(1003, dtype=dtype)
    torch.manual_seed(5)
    low, state = RANDOM[how](x), torch.get_rng_state()
    torch.manual_seed(5)
    high = in_higher_precision(RANDOM[how], (x,), mode=HigherPrecision(dtype))
    assert torch.equal(torch.get_rng_state(), state)
    if "dropout" in how:
        assert torch.equal(low != 0, high != 0)
    torch.testing.assert_close(high.to(low.dtype), low, rtol=1e-2 if "dropout" in how else 0, atol=0)


def test_autocast_is_off_inside() -> None:
    linear, x = nn.Linear(8, 8), drawn(2, 8, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = in_higher_precision(linear, (x,))
    exact = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    torch.testing.assert_close(found, exact, rtol=1e-14, atol=1e-14)


def test_attention_and_embedding() -> None:
    def model(ids: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        q = F.embedding(ids, table).view(2, 8, 2, 16).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q, q, mask)

    ids, table = torch.randint(0, 9, (2, 8)), drawn(9, 32, dtype=torch.bfloat16)
    mask = torch.zeros(8, 8, dtype=torch.bfloat16).masked_fill(torch.ones(8, 8).triu(1) > 0, float("-inf"))
    found = in_higher_precision(model, (ids, table, mask))
    torch.testing.assert_close(found, model(ids, table.double(), mask.double()), rtol=1e-12, atol=1e-12)


def test_an_error_inside_leaves_no_trace() -> None:
    def broken(_: Tensor) -> Tensor:
        raise KeyError("no")

    with pytest.raises(KeyError):
        in_higher_precision(broken, (drawn(2),))
    assert torch.get_default_dtype() == torch.float32
    assert drawn(2, dtype=torch.float32).half().dtype == torch.float16


def test_an_op_without_an_fp64_kernel_runs_in_fp32_and_is_counted() -> None:
    with torch.library._scoped_library("precision_test", "FRAGMENT") as library:
        library.define("narrow(Tensor x) -> Tensor")

        def narrow(x: Tensor) -> Tensor:
            if x.dtype == torch.float64:
                raise RuntimeError('"narrow" not implemented for Double')
            return x * 2

        library.impl("narrow", narrow, "CPU")
        mode = HigherPrecision()
        found = in_higher_precision(lambda x: torch.ops.precision_test.narrow(x), (drawn(3),), mode=mode)
    assert found.dtype == torch.float64
    assert mode.narrow == {"precision_test.narrow.default": 1}


def test_a_narrow_tensor_of_the_callers_is_written_in_its_own_dtype() -> None:
    held, mode = torch.zeros(3), HigherPrecision()

    def store(x: Tensor) -> Tensor:
        held.index_put_((torch.arange(3),), x)
        return held * 2

    found = in_higher_precision(store, (drawn(3),), mode=mode)
    assert torch.equal(held, drawn(3).float())
    assert torch.equal(found, held.double() * 2)
    assert mode.narrow.total() == 1


@dataclass
class Cache:
    keys: list[Tensor] = field(default_factory=list)
    seen: dict[str, Tensor] = field(default_factory=dict)


def test_a_cache_among_the_arguments_is_copied() -> None:
    def step(x: Tensor, cache: Cache) -> Tensor:
        cache.keys.append(x)
        cache.seen["last"] += 1
        return torch.cat(cache.keys)

    cache = Cache([drawn(2, dtype=torch.bfloat16)], {"last": torch.zeros(1)})
    assert in_higher_precision(step, (drawn(2), cache)).shape == (4,)
    assert len(cache.keys) == 1
    assert float(cache.seen["last"]) == 0


def test_copies_keep_strides_sharing_and_what_requires_grad() -> None:
    base = drawn(4, 6)
    views = {"sliced": base[:, :3], "turned": base.t(), "expanded": base[:1].expand(4, 6), "empty": base[:0]}
    for view in views.values():
        copy = copied_tensor(view)
        assert copy.stride() == view.stride()
        assert torch.equal(copy, view)
        assert not view.numel() or copy.data_ptr() != view.data_ptr()
    leaf = base.clone().requires_grad_()
    first, second = copies((leaf, [leaf]))
    assert first is second[0]
    assert first.requires_grad
    assert first is not leaf


def test_the_home_dtype_is_that_of_most_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 2).bfloat16(), nn.Linear(2, 2).bfloat16(), nn.LayerNorm(2))
    assert home_of(model) == torch.bfloat16
    assert home_of(len, torch.ones(1, dtype=torch.float16)) == torch.float16
    assert home_of(len) == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_of_transformers(dtype: torch.dtype, attention: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=attention).to(dtype)
    ids = torch.randint(3, 50, (2, 16))
    mode = HigherPrecision(dtype)
    high = in_higher_precision(model, (), {"input_ids": ids, "labels": ids}, mode=mode)
    low = model(input_ids=ids, labels=ids)
    assert high.logits.dtype == high.loss.dtype == torch.float64
    assert mode.narrow.total() == 0
    torch.testing.assert_close(
        high.loss.float(), low.loss.float(), rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0
    )
