"""What a rule matched becomes a call of a replacement that computes the same, in every spelling that models use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from auditor.engine.rules import Rule, load_rules
from auditor.patching.calls import Proposal
from auditor.patching.patch_site import PatchSite, SiteKey
from auditor.patching.rewrite import Rewriter

Function = Callable[..., Any]


@cache
def rules() -> tuple[Rule, ...]:
    return tuple(load_rules())


@pytest.fixture(autouse=True)
def _own_caches() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(specialize_float=True):
        yield
    torch._dynamo.reset()


@dataclass
class Takes:
    """Chooses a proposal by its name and what its options hold."""

    replacement: str
    options: dict[str, Any]

    def passes_over(self, _key: SiteKey) -> str:
        """None."""
        return ""

    def choose(self, site: PatchSite, placeholders: Sequence[fx.Node]) -> tuple[Proposal | None, str]:
        del placeholders
        for proposal in site.proposals:
            if proposal.replacement == self.replacement and self.options.items() <= proposal.options.items():
                return proposal, ""
        return None, site.reason or "not offered"


class Runs(nn.Module):
    """A function as a model, so that Dynamo sees tensors as it sees a model's."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def sites_of(function: Function, args: Sequence[Tensor], replacement: str = "", **options: Any) -> tuple[Any, Rewriter]:
    rewriter = Rewriter(rules(), Takes(replacement, options))
    result = torch.compile(Runs(function), backend=rewriter, dynamic=True)(*args)
    assert not [frame.failure for frame in rewriter.frames if frame.failure]
    return result, rewriter


def assert_taken(
    function: Function,
    args: Sequence[Tensor],
    replacement: str,
    *,
    sites: int = 1,
    tolerance: float = 2e-5,
    **options: Any,
) -> list[PatchSite]:
    """The rewritten function calls the replacement, and agrees with the original in results and gradients."""
    plain = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    fused = [arg.detach().clone().requires_grad_(arg.requires_grad) for arg in args]
    expected = function(*plain)
    given, rewriter = sites_of(function, fused, replacement, **options)
    taken = [site for site in rewriter.sites if site.chosen is not None]
    assert [site.calls for site in taken] == [1] * sites, [(s.key.rule, s.reason) for s in rewriter.sites]
    torch.testing.assert_close(given, expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(_gradients(given, fused), _gradients(expected, plain), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    return taken


def _gradients(result: Any, args: Sequence[Tensor]) -> list[Tensor]:
    results = result if isinstance(result, tuple) else (result,)
    if not any(r.requires_grad for r in results):
        return []
    torch.manual_seed(5)
    torch.autograd.backward(results, [torch.randn_like(r) for r in results])
    return [arg.grad for arg in args if arg.grad is not None]


def random(*shape: int, dtype: torch.dtype = torch.float32, learns: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_(learns)


def reasons(rewriter: Rewriter) -> str:
    return " | ".join(f"{site.reason} | {site.declined}" for site in rewriter.sites)


# rope ----------------------------------------------------------------------------------------------------------------


def half_turned(x: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat((-x2, x1), -1)


def half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + half_turned(x) * sin


def interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + turned * sin


def partial(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    return torch.cat((half_split(part, cos, sin), rest), -1)


def in_fp32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return half_split(x.float(), cos, sin).to(x.dtype)


def by_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1)


def backward_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x.chunk(2, -1)
    return torch.cat((x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos), -1)


def by_neighbours(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x1, x2 = x[..., ::2], x[..., 1::2]
    return torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), -1).flatten(-2).to(torch.float64)


def as_complex(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(3).to(x.dtype)


@pytest.mark.parametrize(
    ("function", "table", "options"),
    [
        pytest.param(half_split, (1, 1, 6, 16), {"interleaved": False}, id="half-split"),
        pytest.param(half_split, (6, 16), {"interleaved": False}, id="tables without heads"),
        pytest.param(interleaved, (1, 1, 6, 16), {"interleaved": True}, id="interleaved"),
        pytest.param(partial, (1, 1, 6, 8), {"rotary_dim": 8}, id="partial"),
        pytest.param(by_halves, (1, 1, 6, 8), {"interleaved": False}, id="by halves"),
        pytest.param(backward_turned, (1, 1, 6, 8), {"interleaved": False}, id="by halves, turned back"),
    ],
)
def test_rope_in_its_spellings(function: Function, table: tuple[int, ...], options: dict[str, Any]) -> None:
    args = random(2, 3, 6, 16), random(*table, learns=False), random(*table, learns=False) * 0.5
    assert_taken(function, args, "rope", **options)


@pytest.mark.parametrize("function", [in_fp32, as_complex])
def test_rope_in_fp32_between_casts(function: Function) -> None:
    size = 16 if function is in_fp32 else 8
    args = random(2, 6, 4, 16, dtype=torch.bfloat16), random(6, 1, size, learns=False), random(6, 1, size, learns=False)
    assert_taken(function, args, "rope", tolerance=2e-2)


def test_queries_and_keys_are_two_sites() -> None:
    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return half_split(q, cos, sin), half_split(k, cos, sin)

    tables = random(1, 1, 6, 16, learns=False), random(1, 1, 6, 16, learns=False) * 0.5
    assert_taken(both, (random(2, 4, 6, 16), random(2, 2, 6, 16), *tables), "rope", sites=2)


def test_rope_that_joins_the_rest_before_is_refused() -> None:
    def function(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x1, x2 = x[..., 8:12], x[..., 12:]
        return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), -1) + torch.cat((x[..., :4], x[..., 4:8]), -1)

    args = random(2, 3, 6, 16, learns=False), random(6, 4, learns=False), random(6, 4, learns=False)
    given, rewriter = sites_of(function, args, "rope")
    torch.testing.assert_close(given, function(*args))
    assert not any(site.chosen for site in rewriter.sites)
    assert "not the parts of one tensor" in reasons(rewriter)


# softmax and attention -----------------------------------------------------------------------------------------------

DROPS = torch.rand(2, 1, 6, 7, generator=torch.Generator().manual_seed(3)) > 0.7
DROPS[..., 0] = False
ADDED = torch.zeros(DROPS.shape).masked_fill(DROPS, torch.finfo(torch.float32).min)


def scaled(s: Tensor, mask: Tensor) -> Tensor:
    return s * 0.25 + mask


def divided(s: Tensor, mask: Tensor) -> Tensor:
    return s / 4.0 + mask


def mask_only(s: Tensor, mask: Tensor) -> Tensor:
    return mask + s


def filled(s: Tensor, mask: Tensor) -> Tensor:
    return (s * 0.25).masked_fill(mask, float("-inf"))


def filled_low(s: Tensor, mask: Tensor) -> Tensor:
    return (s * 0.25).masked_fill(mask, -1e9)


def chosen(s: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, s * 0.25, torch.full((), -1e9))


ALL_DROPPED = DROPS.clone()
ALL_DROPPED[:, :, 3] = True
"""Of one query every key is dropped: the mean of v by the parts, where they fill with a number."""


def filled_less_low(s: Tensor, mask: Tensor) -> Tensor:
    return (s * 0.25).masked_fill(mask, -1e4)


MASKED = [
    pytest.param(filled_low, ALL_DROPPED, id="a row of nothing else, filled"),
    pytest.param(filled_less_low, ALL_DROPPED, id="a row of nothing else, filled with -1e4"),
    pytest.param(chosen, ~ALL_DROPPED, id="a row of nothing else, chosen"),
    pytest.param(scaled, ADDED, id="scaled, added"), pytest.param(divided, ADDED, id="divided, added"),
    pytest.param(mask_only, ADDED, id="added"), pytest.param(filled, DROPS, id="filled with -inf"),
    pytest.param(filled_low, DROPS, id="filled with a low number"), pytest.param(chosen, ~DROPS, id="chosen by where"),
]  # fmt: skip


@pytest.mark.parametrize(("masked", "mask"), MASKED)
def test_softmax_under_a_mask(masked: Function, mask: Tensor) -> None:
    def function(s: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(masked(s, mask), -1)

    assert_taken(function, (random(2, 3, 6, 7), mask), "softmax")


def test_softmax_in_fp32_of_scores_in_bf16() -> None:
    def function(s: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(scaled(s, mask), -1, dtype=torch.float32).to(s.dtype)

    assert_taken(function, (random(2, 3, 6, 7, dtype=torch.bfloat16), ADDED.bfloat16()), "softmax", tolerance=2e-2)


def test_softmax_under_two_masks_is_refused() -> None:
    def function(s: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
        return torch.softmax(s + mask + bias, -1)

    _, rewriter = sites_of(function, (random(2, 3, 6, 7), ADDED, random(1, 3, 6, 7)), "softmax")
    assert "more than one mask" in reasons(rewriter)


@pytest.mark.parametrize(("masked", "mask"), MASKED)
def test_attention_by_parts(masked: Function, mask: Tensor) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(masked(q @ k.transpose(-1, -2), mask), -1) @ v

    args = random(2, 3, 6, 8), random(2, 3, 7, 8), random(2, 3, 7, 8), mask
    assert_taken(function, args, "attention")


def test_attention_with_a_position_bias_and_a_mask_and_no_scale() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(3, 2)) + bias + mask
        return torch.matmul(F.softmax(scores.float(), -1).type_as(scores), v)

    args = random(2, 3, 6, 8), random(2, 3, 7, 8), random(2, 3, 7, 8), random(1, 3, 6, 7, learns=False), ADDED
    taken = assert_taken(function, args, "attention")
    assert taken[0].chosen is not None
    assert taken[0].chosen.kwargs["scale"] == 1.0


def test_attention_takes_the_heads_as_they_were_before_they_were_repeated() -> None:
    def repeated(x: Tensor) -> Tensor:
        batch, heads, length, size = x.shape
        return x[:, :, None].expand(batch, heads, 2, length, size).reshape(batch, 2 * heads, length, size)

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        k, v = repeated(k), repeated(v)
        return torch.softmax(q @ k.transpose(2, 3) * 0.3 + mask, -1) @ v

    args = random(2, 4, 6, 8), random(2, 2, 7, 8), random(2, 2, 7, 8), ADDED
    (site,) = assert_taken(function, args, "attention")
    assert site.chosen is not None
    assert site.chosen.args[1].meta["example_value"].shape[1] == 2


def test_attention_over_transposed_weights_is_refused() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * 0.3, -1)
        return torch.bmm(weights.transpose(1, 2), v)

    args = random(2, 6, 8, learns=False), random(2, 6, 8, learns=False), random(2, 6, 8, learns=False)
    given, rewriter = sites_of(function, args, "attention")
    torch.testing.assert_close(given, function(*args))
    assert "viewed in another shape between the products" in reasons(rewriter)


def test_attention_whose_masked_scores_are_ordinary_is_refused() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax((q @ k.transpose(-1, -2) * 0.3).masked_fill(mask, 0.0), -1) @ v

    args = random(2, 3, 6, 8), random(2, 3, 7, 8), random(2, 3, 7, 8), DROPS
    _, rewriter = sites_of(function, args, "attention")
    assert "a score like any other" in reasons(rewriter)


# linear layers -------------------------------------------------------------------------------------------------------

LAYER = random(5, 9, 16), random(12, 16), random(12)


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def relu_squared(x: Tensor) -> Tensor:
    return F.relu(x) ** 2


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.parametrize(
    "function", [F.relu, F.silu, F.gelu, torch.tanh, torch.sigmoid, gelu_tanh, quick_gelu, relu_squared]
)
def test_activation_behind_a_linear_layer(function: Function) -> None:
    name = function.__name__

    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        result: Tensor = function(F.linear(x, weight, bias))
        return result

    (site,) = assert_taken(layer, LAYER, "linear_epilogue")
    assert {p.args[3] for p in site.proposals if p.replacement == "linear_epilogue"} == {name}


def test_activation_behind_conv1d() -> None:
    def layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.gelu(torch.addmm(bias, x, weight))

    assert_taken(layer, (random(5, 16), random(16, 12), random(12)), "linear_epilogue", conv1d=True)


def test_bias_on_its_own_and_an_activation() -> None:
    assert_taken(lambda x, weight, bias: F.relu(x @ weight.t() + bias), LAYER, "linear_epilogue")


def test_residual_behind_a_linear_layer() -> None:
    args = (*LAYER, random(5, 9, 12))
    assert_taken(lambda x, weight, bias, residual: residual + F.linear(x, weight, bias), args, "linear_epilogue")


@pytest.mark.parametrize(
    ("function", "args", "reason"),
    [
        (lambda x, w: F.relu(F.conv1d(x, w)), (random(2, 4, 9), random(6, 4, 3)), "convolution has no fused epilogue"),
        (lambda x, y: F.relu(torch.matmul(x, y)), (random(2, 4, 9), random(2, 9, 3)), "a product of two activations"),
        (lambda x, w: F.hardswish(F.linear(x, w)), (random(5, 16), random(12, 16)), "no epilogue computes hardswish"),
    ],
)
def test_what_has_no_epilogue_is_refused(function: Function, args: tuple[Tensor, ...], reason: str) -> None:
    _, rewriter = sites_of(function, args, "linear_epilogue")
    assert reason in reasons(rewriter)


def test_siblings_whose_weights_belong_to_no_module_are_refused() -> None:
    def function(x: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, gate), F.linear(x, up)

    _, rewriter = sites_of(function, (random(5, 16), random(12, 16), random(12, 16)), "packed_linear")
    assert "is the weight of no module" in reasons(rewriter)


# norms ---------------------------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def rounded_late(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return layer_norm(x.float(), weight.float(), bias.float()).to(x.dtype)


def rounded_early(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    h = x.float()
    centred = h - h.mean(-1, keepdim=True)
    return (centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight + bias


def test_layer_norm_by_hand() -> None:
    assert_taken(layer_norm, (random(5, 16), random(16), random(16)), "layer_norm")


@pytest.mark.parametrize(("function", "cast"), [(rounded_late, "torch"), (rounded_early, "deberta")])
def test_layer_norm_in_both_casts(function: Function, cast: str) -> None:
    args = tuple(random(*shape, dtype=torch.bfloat16) for shape in ((5, 64), (64,), (64,)))
    (site,) = assert_taken(function, args, "layer_norm", tolerance=3e-2, cast=cast)
    assert {p.options["cast"] for p in site.proposals if p.provider == "triton"} == {"torch", "deberta"}
    assert site.chosen is not None
    assert site.chosen.faithful


def test_layer_norm_with_the_unbiased_variance_is_refused() -> None:
    def function(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5)

    _, rewriter = sites_of(function, (random(5, 16),), "layer_norm")
    assert "the unbiased one" in reasons(rewriter)


def test_three_summands_before_a_layer_norm() -> None:
    def function(words: Tensor, kinds: Tensor, places: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(words + kinds + places, (16,), weight, bias, 1e-6)

    args = random(5, 9, 16), random(5, 9, 16), random(1, 9, 16), random(16), random(16)
    assert_taken(function, args, "add_layer_norm")


def test_a_scaled_branch_before_a_layer_norm() -> None:
    def function(x: Tensor, branch: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + branch * scale
        return total, F.layer_norm(total, (16,), weight)

    assert_taken(function, (random(5, 16), random(5, 16), random(16), random(16)), "add_layer_norm")


def test_a_scaled_branch_before_an_rms_norm() -> None:
    def function(x: Tensor, branch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = x + branch * 0.22
        return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total

    assert_taken(function, (random(5, 16), random(5, 16), random(16)), "add_rms_norm")


def test_an_l2_norm_times_the_root_of_the_size() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * 4.0 * weight

    assert_taken(function, (random(5, 16), random(16)), "rms_norm")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_which_gelu_a_gate_has_is_read_from_its_call(approximate: str) -> None:
    args = random(5, 16), random(5, 16)
    (site,) = assert_taken(lambda gate, up: F.gelu(gate, approximate=approximate) * up, args, "act_mul")
    names = {p.options["activation"] for p in site.proposals if p.replacement == "act_mul"}
    assert names == {"gelu" if approximate == "none" else "gelu_tanh"}


@pytest.mark.parametrize("options", [{"reduction": "sum"}, {"ignore_index": 3}], ids=str)
def test_a_cross_entropy_takes_one_kernel(options: dict[str, Any]) -> None:
    # GIVEN the loss of rows of logits, some of them ignored
    target = torch.arange(32) % 17

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x * 2.0, target, **options)

    # THEN the replacement takes the log-softmax and the loss, and gives the same loss and gradient
    (site,) = assert_taken(loss, [random(32, 17)], "cross_entropy", **options)
    assert site.key.rule == "FUS205"


def test_a_cross_entropy_reads_the_logits_before_their_cast() -> None:
    # GIVEN logits in bf16 that are cast and flattened for the loss, as language models do
    target = torch.arange(32).view(2, 16) % 17

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x.float().view(-1, 17), target.view(-1))

    # THEN the replacement reads them in bf16, and the loss is in fp32
    (site,) = assert_taken(loss, [random(2, 16, 17, dtype=torch.bfloat16)], "cross_entropy", tolerance=1e-2)
    assert site.chosen is not None
    assert site.chosen.kwargs["dtype"] == torch.float32


def test_binary_and_segmentation_losses_have_no_kernel_of_their_own() -> None:
    # GIVEN losses of single labels by hand, and of pictures
    labels, classes = torch.rand(32, 17), torch.zeros(2, 4, 4, dtype=torch.int64)

    def binary(x: Tensor) -> Tensor:
        return (x.clamp(min=0) - x * labels + torch.log1p(torch.exp(-x.abs()))).mean()

    def pictures(x: Tensor) -> Tensor:
        return F.cross_entropy(x, classes)

    # THEN the adapter says why it offers nothing
    for function, x, reason in (
        (binary, random(32, 17), "only a loss of classes"),
        (pictures, random(2, 5, 4, 4), "not rows of classes"),
    ):
        _, rewriter = sites_of(function, [x], "cross_entropy")
        assert reason in reasons(rewriter)
