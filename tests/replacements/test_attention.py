"""Attention through SDPA: every form of mask and anchor, what is refused and why, and where SDPA lands."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fused_replacements import Unfused
from fused_replacements.algorithmic import _sdpa
from fused_replacements.algorithmic.attention import attention, reference, sdpa_backend, supports


def qkv(
    batch: int = 2, heads: int = 4, kv_heads: int = 4, q_len: int = 5, kv_len: int = 5, head_dim: int = 8
) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    q, k, v = (torch.randn(batch, h, length, head_dim, dtype=torch.float64) for h, length in shapes)
    return q, k, v


def same(*arguments: Any, **options: Any) -> None:
    """``attention`` agrees with its definition in fp64, and so do the gradients of q, k and v."""
    fused, exact = (_with_gradients(function, *arguments, **options) for function in (attention, reference))
    for mine, its in zip(fused, exact, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-9, atol=1e-9)


def _with_gradients(function: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = function(*leaves, *rest, **options)
    return [out, *torch.autograd.grad((out * torch.arange(out.numel()).view(out.shape).cos()).sum(), leaves)]


PADDING = torch.tensor([True, True, True, False, False]).view(1, 1, 1, 5)
ADDED = torch.randn(1, 4, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(
    ("mask", "options"),
    [
        (None, {}),
        (None, {"scale": 1.0}),
        (None, {"causal": "upper_left"}),
        (PADDING, {}),
        (~PADDING, {"mask_keeps": False}),
        (PADDING, {"causal": "upper_left"}),
        (ADDED, {}),
        (ADDED, {"scale": 1.0}),
        (ADDED, {"scale_after_mask": True}),
        (ADDED, {"causal": "lower_right", "scale_after_mask": True, "scale": 0.3}),
        (ADDED[0], {}),
        (ADDED[0, 0], {"causal": "upper_left"}),
        (ADDED[0, 0, 0], {}),
        (ADDED.float(), {}),
    ],
)
def test_masks_scales_and_anchors(mask: Tensor | None, options: dict[str, Any]) -> None:
    q, k, v = qkv()
    assert supports(q, k, v, mask, **options) is None
    same(q, k, v, mask, **options)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 7), (3, 7), (7, 7), (7, 3)])
@pytest.mark.parametrize("causal", ["upper_left", "lower_right"])
def test_the_anchor_matters_where_lengths_differ(q_len: int, kv_len: int, causal: Any) -> None:
    # GIVEN fewer, as many, or more queries than keys
    q, k, v = qkv(q_len=q_len, kv_len=kv_len)
    out = attention(q, k, v, causal=causal)
    # THEN the definition agrees wherever a query sees a key, and elsewhere the result is 0
    exact = reference(q, k, v, causal=causal)
    assert isinstance(exact, Tensor)
    seen = ~exact.isnan().all(-1)
    assert int(seen[0, 0].sum()) == min(q_len, kv_len if causal == "lower_right" else q_len)
    torch.testing.assert_close(out, torch.nan_to_num(exact, 0.0))


def test_upper_left_is_not_lower_right() -> None:
    q, k, v = qkv(q_len=3, kv_len=7)
    assert not torch.allclose(attention(q, k, v, causal="upper_left"), attention(q, k, v, causal="lower_right"))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_heads_are_grouped_in_order(kv_heads: int) -> None:
    q, k, v = qkv(kv_heads=kv_heads)
    same(q, k, v, causal="upper_left")
    same(q, k, v, PADDING)


@pytest.mark.parametrize("dims", [2, 3])
def test_leading_dimensions_may_be_left_out(dims: int) -> None:
    q, k, v = (x[(0,) * (4 - dims)] for x in qkv())
    assert supports(q, k, v, causal="upper_left") is None
    assert attention(q, k, v).shape == q.shape
    same(q, k, v, causal="upper_left")


def test_transposed_views_are_read_in_place() -> None:
    # GIVEN q, k and v as views of (batch, length, heads, head_dim)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in qkv())
    assert supports(q, k, v) is None
    same(q, k, v)


def test_a_query_with_no_key_gives_zero_and_no_gradient() -> None:
    # GIVEN a mask that hides every key from the second query
    q, k, v = (x.requires_grad_() for x in qkv())
    keep = torch.ones(5, 5, dtype=torch.bool)
    keep[1] = False
    for mask in (keep, torch.zeros(5, 5, dtype=torch.float64).masked_fill(~keep, float("-inf"))):
        out = attention(q, k, v, mask)
        dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
        # THEN its output is 0 where the parts give NaN, and so is its gradient
        assert not out[:, :, 1].any()
        assert not dq[:, :, 1].any()
        assert dk.isfinite().all()
        assert dv.isfinite().all()
        assert reference(q, k, v, mask)[:, :, 1].isnan().all()


def test_the_least_finite_number_as_a_mask_gives_the_mean() -> None:
    # GIVEN models that mask with finfo.min, and a row of nothing else
    q, k, v = (x.float() for x in qkv())
    mask = torch.full((5, 5), torch.finfo(torch.float32).min)
    torch.testing.assert_close(attention(q, k, v, mask), v.mean(-2, keepdim=True).expand_as(v))
    torch.testing.assert_close(attention(q, k, v, mask), reference(q, k, v, mask))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fill", [-1e4, -1e9, torch.finfo(torch.float32).min])
def test_a_number_as_the_fill_gives_the_mean_to_a_query_with_no_key(fill: float, dtype: torch.dtype) -> None:
    # GIVEN scores that are filled with a number, every one of the second query
    q, k, v = (torch.randn(2, 4, 20, 16, dtype=torch.float64).to(dtype).requires_grad_() for _ in range(3))
    keep = torch.rand(20, 20, generator=torch.Generator().manual_seed(0)) > 0.3
    keep[0], keep[1] = True, False
    given: dict[str, Any] = {"mask_keeps": False, "fill": max(fill, torch.finfo(dtype).min)}
    assert supports(q, k, v, ~keep, **given) is None
    found, expected = attention(q, k, v, ~keep, **given), reference(q, k, v, ~keep, **given)
    # THEN it gets the mean of v as by parts, and gradients are those of the parts
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(dtype, 2e-2)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(found[:, :, 1], v.mean(-2).expand_as(found[:, :, 1]), rtol=tolerance, atol=tolerance)
    for mine, its in zip(*(torch.autograd.grad(o.sum(), (q, k, v)) for o in (found, expected)), strict=True):
        torch.testing.assert_close(mine, its, rtol=tolerance, atol=tolerance)


def test_a_fill_that_is_a_score_like_any_other_is_refused() -> None:
    q, k, v = qkv()
    keep = torch.ones(5, 5, dtype=torch.bool)
    assert "a score like any other" in str(supports(q, k, v, keep, fill=-5.0))
    with pytest.raises(ValueError, match="a score like any other"):
        attention(q, k, v, keep, fill=-5.0)


def test_an_fp32_mask_is_never_rounded_to_bf16() -> None:
    # GIVEN finfo(fp32).min, which is -inf in bf16
    q, k, v = (x.bfloat16() for x in qkv())
    mask = torch.full((5, 5), torch.finfo(torch.float32).min)
    out = attention(q, k, v, mask)
    torch.testing.assert_close(out, v.float().mean(-2, keepdim=True).bfloat16().expand_as(v), rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q.float(), k.float(), v.float(), mask).abs().sum() > 0


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("soft-cap", {"softcap": 50.0}),
    ("probabilities are returned", {"need_weights": True}),
    ("torch.int64", {"mask": torch.ones(5, 5, dtype=torch.int64)}),
    ("turns what is masked", {"mask": ADDED, "scale": -1.0, "scale_after_mask": True}),
    ("5 dimensions", {"mask": ADDED[None]}),
]


@pytest.mark.parametrize(("words", "options"), REFUSED)
def test_what_sdpa_cannot_do_is_refused(words: str, options: dict[str, Any]) -> None:
    reason = supports(*qkv(), **options)
    assert reason is not None
    assert words in reason


def test_rounding_a_mask_is_refused() -> None:
    q, k, v = (x.float() for x in qkv())
    reason = supports(q, k, v, ADDED)
    assert reason == "a mask in torch.float64 can't become torch.float32 without rounding"
    assert "q, k and v have different dtypes" in str(supports(q, k.double(), v))


def test_refused_calls_run_by_parts_and_say_so() -> None:
    q, k, v = qkv(q_len=4)
    with pytest.warns(Unfused, match="attention runs unfused, as its reference: SDPA has no soft-cap"):
        capped = attention(q, k, v, softcap=2.0)
    torch.testing.assert_close(capped, reference(q, k, v, softcap=2.0))
    with pytest.warns(Unfused, match="never stores them"):
        out, weights = attention(q, k, v, need_weights=True)
    torch.testing.assert_close(out, weights @ v)


def test_dropout_is_drawn_only_in_training_from_the_global_generator() -> None:
    q, k, v = (x.float() for x in qkv(batch=1, heads=1, kv_heads=1, q_len=64, kv_len=64))
    torch.testing.assert_close(attention(q, k, v, dropout=0.5, training=False), attention(q, k, v))
    torch.manual_seed(7)
    first = attention(q, k, v, dropout=0.5)
    torch.manual_seed(7)
    torch.testing.assert_close(attention(q, k, v, dropout=0.5), first, rtol=0, atol=0)
    assert not torch.equal(attention(q, k, v, dropout=0.5), first)


def test_dropout_has_the_mean_and_spread_of_the_parts() -> None:
    # GIVEN one attention, drawn 400 times by SDPA and by parts
    q, k, v = (x.float() for x in qkv(batch=1, heads=1, kv_heads=1, q_len=4, kv_len=6))
    torch.manual_seed(11)
    many = [x.expand(400, -1, -1, -1) for x in (q, k, v)]
    fused, parts = attention(*many, dropout=0.25), reference(*many, dropout=0.25)
    assert isinstance(fused, Tensor)
    assert isinstance(parts, Tensor)
    # THEN both have the mean of no dropout, within five standard errors, and the same variance
    error = 5 * fused.std(0) / 20
    assert ((fused.mean(0) - attention(q, k, v)[0]).abs() <= error).all()
    torch.testing.assert_close(fused.var(0), parts.var(0), rtol=0.6, atol=1e-3)


def test_supports_says_that_sdpa_would_compute_by_parts() -> None:
    q, k, v = qkv()
    assert supports(q, k, v, dropout=0.1) == (
        "SDPA would compute it by parts: SDPA on a CPU has no fused kernel with dropout"
    )
    assert supports(q, k, v, dropout=0.1, training=False) is None
    assert "takes a gradient" in str(supports(q, k, v, ADDED.clone().requires_grad_()))
    assert "head_dim" in str(supports(q, k, v[..., :4]))
    with sdpa_kernel(SDPBackend.MATH):
        assert "switched off" in str(supports(q, k, v))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_backend_is_the_one_that_pytorch_chooses(data: st.DataObject) -> None:
    # GIVEN any sizes, dtype, layout, mask and options
    draw = data.draw
    kv_heads, groups = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    q_len, kv_len, head_dim = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(1, 5))
    q, k, v = qkv(2, kv_heads * groups, kv_heads, q_len, kv_len, head_dim)
    v = v[..., : draw(st.integers(1, head_dim))]
    q = q.mT.contiguous().mT if draw(st.booleans()) else q
    sizes = [draw(st.sampled_from([1, size])) for size in (2, kv_heads * groups, q_len, kv_len)]
    kind = draw(st.sampled_from(["none", "boolean", "added", "learned"]))
    mask = None if kind == "none" else torch.zeros(sizes, dtype=torch.bool if kind == "boolean" else q.dtype)
    mask = mask.requires_grad_() if mask is not None and kind == "learned" else mask
    dropout = draw(st.sampled_from([0.0, 0.1]))
    # THEN the rules agree with ATen's own
    chosen = torch._fused_sdp_choice(q, k, v, mask, dropout, False, enable_gqa=groups > 1)
    name, reason = _sdpa.backend(q, k, v, mask, dropout, False)
    assert (name == "flash") == (chosen == SDPBackend.FLASH_ATTENTION.value), reason
    assert (reason is None) == (name == "flash")


def test_reasons_on_a_gpu_are_those_that_pytorch_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a build whose checks refuse, and say why in warnings, as they do on CUDA
    def no(_: Any, debug: bool) -> bool:
        if debug:
            warnings.warn("Flash attention requires fp16. (Triggered internally at x.cpp:1)", UserWarning, stacklevel=1)
        return False

    for name in ("flash", "cudnn", "efficient"):
        monkeypatch.setattr(torch.backends.cuda, f"can_use_{name}_attention", no)
    assert _sdpa._cuda_backend(*qkv(), None, 0.0, False) == (
        "math",
        "flash: Flash attention requires fp16.; cudnn: Flash attention requires fp16.; "
        "efficient: Flash attention requires fp16.",
    )
    monkeypatch.setattr(torch.backends.cuda, "can_use_efficient_attention", lambda *_: True)
    assert _sdpa._cuda_backend(*qkv(), None, 0.0, False) == ("efficient", None)


def test_grouped_heads_are_copied_only_where_a_gpu_would_compute_by_parts() -> None:
    # GIVEN tensors that say they are elsewhere than on a CPU
    q, k, v = (x.float().to("meta") for x in qkv(kv_heads=2))
    mask = torch.ones(5, 5, dtype=torch.bool, device="meta")
    assert attention(q, k, v, mask).shape == q.shape
    assert sdpa_backend(q, k, v, causal="upper_left").name == "flash"


def test_autocast_casts_what_eager_casts() -> None:
    q, k, v = (x.float() for x in qkv())
    with torch.autocast("cpu", torch.bfloat16):
        assert attention(q, k, v).dtype is torch.bfloat16
        assert reference(q, k, v).dtype is torch.bfloat16


def test_compiles_whole() -> None:
    q, k, v = qkv(kv_heads=2, q_len=3, kv_len=6)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v, causal="lower_right"), reference(q, k, v, causal="lower_right"))
