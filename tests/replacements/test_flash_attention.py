"""Flash attention: the Triton kernels in the interpreter, blocks on a CPU, and what is special to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fused_replacements import cpu_path
from fused_replacements._paths import CpuPath
from fused_replacements.algorithmic import _blocked
from fused_replacements.algorithmic.flash_attention import OP, flash_attention, reference, supports
from fused_replacements.kernels import flash_attention as kernels

PATHS: list[CpuPath] = ["triton", "reference"]


def qkv(
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 2,
    q_len: int = 5,
    kv_len: int = 5,
    head_dim: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((heads, q_len), (kv_heads, kv_len), (kv_heads, kv_len))
    q, k, v = (torch.randn(batch, h, n, head_dim, generator=generator, dtype=torch.float64) for h, n in shapes)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def results(function: Any, arguments: list[Any], options: dict[str, Any], dtype: torch.dtype) -> list[Tensor]:
    """Output, and gradients of everything that learns, in fp64, for inputs rounded to ``dtype``."""

    def leaf(x: Any) -> Any:
        floating = isinstance(x, Tensor) and x.is_floating_point()
        return x.detach().to(dtype).requires_grad_() if floating else x

    arguments = [leaf(x) for x in arguments]
    options = {name: x if name == "alibi_slopes" else leaf(x) for name, x in options.items()}
    out = function(*arguments, **options)
    incoming = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    learned = [x for x in (*arguments, *options.values()) if isinstance(x, Tensor) and x.requires_grad]
    return [x.double() for x in (out, *torch.autograd.grad(out, learned, incoming))]


def as_exact_as_eager(arguments: list[Any], options: dict[str, Any], path: CpuPath, dtype: torch.dtype) -> None:
    """Errors against fp64 of at most twice those of the parts, and a rounding of the largest element.

    Two in fp32, where backward computes the weights again from a rounded logarithm.
    """
    roundings = 2 if dtype is torch.float32 else 1
    exact = results(reference, arguments, options, torch.float64)
    eager = results(reference, arguments, options, dtype)
    with cpu_path(path):
        fused = results(flash_attention, arguments, options, dtype)
    for place, (true, its, mine) in enumerate(zip(exact, eager, fused, strict=True)):
        allowed = 2 * (its - true).abs().max() + roundings * torch.finfo(dtype).eps * true.abs().max()
        assert (mine - true).abs().max() <= allowed, f"result {place}"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 3.0, "causal": "upper_left"},
        {"softcap": 3.0, "causal": "lower_right", "window": 9},
        {"window": 5},
        {"causal": "lower_right", "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
        {"alibi_slopes": torch.tensor([[0.5, 0.25, 0.125, 0.0625], [0.1, 0.2, 0.3, 0.4]]), "softcap": 2.0},
        {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]), "causal": "lower_right", "window": 20},
    ],
    ids=["soft-cap", "soft-cap window", "window", "ALiBi", "ALiBi by batch", "sinks"],
)
def test_every_term_with_grouped_heads_over_a_cache(options: dict[str, Any], dtype: torch.dtype, path: CpuPath) -> None:
    # GIVEN a batch of two, two heads a key, and lengths that divide no tile
    arguments = list(qkv(2, 4, 2, q_len=37, kv_len=53, dtype=dtype))
    as_exact_as_eager(arguments, options, path, dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("shape", [(2, 4, 19, 23), (1, 4, 19, 23), (2, 1, 19, 23), (1, 1, 19, 23), (19, 23)])
def test_the_gradient_of_a_bias_is_summed_over_what_it_is_broadcast_to(shape: tuple[int, ...], path: CpuPath) -> None:
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    as_exact_as_eager([*qkv(2, 4, 2, 19, 23), bias], {"scale": 1.0, "softcap": 5.0}, path, torch.float32)


@pytest.mark.parametrize("path", PATHS)
def test_a_bias_is_read_with_its_own_strides(path: CpuPath) -> None:
    # GIVEN T5's bias, which is looked up as (q_len, kv_len, heads) and permuted
    bias = torch.randn(19, 23, 2, generator=torch.Generator().manual_seed(2)).permute(2, 0, 1)[None]
    with cpu_path(path):
        out = flash_attention(*qkv(q_len=19, kv_len=23), bias)
    torch.testing.assert_close(out, reference(*qkv(q_len=19, kv_len=23), bias))


@pytest.mark.parametrize("path", PATHS)
def test_a_boolean_bias_hides_keys(path: CpuPath) -> None:
    keep = torch.arange(23).view(1, 1, 1, -1) < 17
    as_exact_as_eager([*qkv(q_len=19, kv_len=23), keep], {"softcap": 5.0}, path, torch.float32)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head_dim", [1, 24, 40, 80])
def test_heads_of_any_width(head_dim: int, path: CpuPath) -> None:
    dtype = torch.float32 if head_dim <= kernels.WIDEST_FP32_BACKWARD else torch.float16
    as_exact_as_eager(list(qkv(q_len=9, kv_len=9, head_dim=head_dim)), {"causal": "upper_left"}, path, dtype)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sinks", [None, torch.zeros(2)])
def test_a_query_with_no_key_gives_zero_and_no_gradient(path: CpuPath, sinks: Tensor | None) -> None:
    # GIVEN more queries than keys: the first two see none
    q, k, v = (x.requires_grad_() for x in qkv(q_len=7, kv_len=5))
    with cpu_path(path):
        out = flash_attention(q, k, v, causal="lower_right", softcap=4.0, sinks=sinks)
        gradients = torch.autograd.grad(out.square().sum(), (q, k, v))
    assert not out[:, :, :2].any()
    assert not gradients[0][:, :, :2].any()
    assert all(gradient.isfinite().all() for gradient in gradients)
    if sinks is None:
        assert reference(q, k, v, causal="lower_right", softcap=4.0)[:, :, :2].isnan().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (1, 1)])
def test_nothing_to_attend_and_nothing_that_attends(path: CpuPath, q_len: int, kv_len: int) -> None:
    q, k, v = (x.requires_grad_() for x in qkv(q_len=q_len, kv_len=kv_len))
    with cpu_path(path):
        out = flash_attention(q, k, v, causal="lower_right")
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert out.shape == q.shape
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    torch.testing.assert_close(out, v if kv_len == 1 else torch.zeros_like(q))


@pytest.mark.parametrize("path", PATHS)
def test_a_lone_key_takes_no_gradient_whatever_the_rounding_of_the_output(path: CpuPath) -> None:
    # GIVEN one key: its weight is 1 whatever the scores, so that scores have no gradient. Σ dout·out of the rounded
    # output misses Σ p·dp by a rounding, which would be all there is of the gradient
    q, k, v = (x.requires_grad_() for x in qkv(q_len=3, kv_len=1, dtype=torch.float16))
    v_exact = (v.detach() * 0.333).requires_grad_()
    with cpu_path(path):
        dq, dk = torch.autograd.grad(flash_attention(q, k, v_exact).float().square().sum(), (q, k))
    assert dq.abs().max() < 1e-6
    assert dk.abs().max() < 2e-3


@pytest.mark.parametrize("path", PATHS)
def test_layouts_are_honoured(path: CpuPath) -> None:
    # GIVEN q, k and v as views of one packed (batch, length, 3, heads, head_dim)
    packed = torch.randn(2, 21, 3, 2, 16, generator=torch.Generator().manual_seed(0))
    q, k, v = packed.permute(2, 0, 3, 1, 4).unbind(0)
    assert supports(q, k, v) is None
    as_exact_as_eager([q, k, v], {"causal": "upper_left"}, path, torch.float32)
    with cpu_path(path):
        torch.testing.assert_close(flash_attention(q, k, v), reference(q, k, v))


def test_inputs_are_not_written() -> None:
    q, k, v = (x.requires_grad_() for x in qkv())
    before = [x.detach().clone() for x in (q, k, v)]
    incoming = torch.ones(1, 2, 5, 16)
    with cpu_path("triton"):
        flash_attention(q, k, v, causal="upper_left").backward(incoming)
    assert all(torch.equal(x.detach(), copy) for x, copy in zip((q, k, v), before, strict=True))
    assert torch.equal(incoming, torch.ones_like(incoming))


def test_kernels_give_the_same_bits_twice() -> None:
    arguments, options = list(qkv(2, 4, 1, 33, 33)), {"causal": "upper_left", "softcap": 5.0}
    with cpu_path("triton"):
        first, second = (results(flash_attention, arguments, options, torch.float32) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_kernels_agree_with_the_definition_for_any_lengths(data: st.DataObject) -> None:
    draw = data.draw
    kv_heads, groups = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    q_len, kv_len = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    causal = draw(st.sampled_from([None, "upper_left", "lower_right"]))
    options = {
        "causal": causal,
        "window": draw(st.integers(0, 80)) or None,
        "softcap": draw(st.sampled_from([0.0, 3.0])),
    }
    arguments = qkv(draw(st.integers(1, 2)), kv_heads * groups, kv_heads, q_len, kv_len, dtype=torch.float64)
    exact = results(flash_attention, list(arguments), options, torch.float64)
    with cpu_path("triton"):
        fused = results(flash_attention, list(arguments), options, torch.float32)
    for mine, true in zip(fused, exact, strict=True):
        torch.testing.assert_close(mine, true, rtol=2e-4, atol=2e-4)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_blocks_cover_every_query_once_and_every_key_in_view(data: st.DataObject) -> None:
    # GIVEN any problem, and blocks that are far smaller than the real ones
    draw = data.draw
    batch, q_len, kv_len = draw(st.integers(1, 3)), draw(st.integers(0, 40)), draw(st.integers(0, 40))
    window, causal, lower_right = draw(st.integers(0, 20)), draw(st.booleans()), draw(st.booleans())
    q, k, v = qkv(batch, 2, 1, q_len, kv_len)
    problem = _blocked.Problem(q, k, v, None, None, None, 1.0, 0.0, window, causal, lower_right)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_blocked, "BLOCK_SCORES", 64)
        patch.setattr(_blocked, "LEAST_ROWS", 3)
        found = list(_blocked.blocks(problem))
    seen = torch.zeros(batch, q_len, kv_len, dtype=torch.int32)
    for block in found:
        seen[block] += 1
    # THEN no pair is met twice, and none that counts is left out
    distance = torch.arange(q_len)[:, None] + problem.shift - torch.arange(kv_len)
    wanted = torch.ones(q_len, kv_len, dtype=torch.bool)
    wanted &= distance >= 0 if causal else wanted
    wanted &= distance.abs() < window if window else wanted
    assert int(seen.max() if seen.numel() else 0) <= 1
    assert (seen.bool() | ~wanted).all()


@pytest.mark.parametrize("transposed", [False, True])
def test_blocks_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    # GIVEN blocks of three queries, in fp64, with every term at once
    monkeypatch.setattr(_blocked, "BLOCK_SCORES", 64)
    monkeypatch.setattr(_blocked, "LEAST_ROWS", 3)
    q, k, v = (x.double() for x in qkv(3, 4, 2, 11, 14))
    if transposed:
        q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v))
    bias = torch.randn(1, 4, 11, 14, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    sinks = torch.tensor([0.1, 0.2, -0.3, 1.0], dtype=torch.float64)
    options = {"causal": "lower_right", "window": 6, "softcap": 4.0, "sinks": sinks}
    fused = results(flash_attention, [q, k, v, bias], options, torch.float64)
    exact = results(reference, [q, k, v, bias], options, torch.float64)
    for mine, true in zip(fused, exact, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-10, atol=1e-10)


def test_memory_is_linear_in_the_length() -> None:
    # GIVEN a sequence whose scores would take 128 MB
    q, k, v = qkv(heads=2, q_len=4096, kv_len=4096)
    with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        _blocked.forward(q, k, v, None, None, None, 0.25, 5.0, 0, True, False)
    # THEN no block of them takes more than its budget of scores
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert 0 < largest <= 4 * _blocked.BLOCK_SCORES


@pytest.mark.parametrize("small", [0, 1 << 16])
def test_compiled_blocks_are_as_exact_as_eager(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_blocked, "SMALL_SCORES", small)
    arguments = list(qkv(2, 4, 2, q_len=37, kv_len=53, dtype=torch.bfloat16))
    as_exact_as_eager(arguments, {"softcap": 3.0, "causal": "lower_right"}, "compiled", torch.bfloat16)


def test_second_derivatives_go_through_the_definition() -> None:
    q, k, v = (x.double().requires_grad_() for x in qkv(heads=1, kv_heads=1, q_len=2, kv_len=3, head_dim=2))
    assert torch.autograd.gradgradcheck(lambda *x: flash_attention(*x, softcap=2.0), (q, k, v))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": torch.zeros(1, 2, 5, 512), "k": torch.zeros(1, 2, 5, 512), "v": torch.zeros(1, 2, 5, 512)}, None),
        ({"k": torch.zeros(1, 2, 5, 8)}, "do not fit together"),
        ({"q": torch.zeros(1, 3, 5, 16)}, "3 heads of q are no multiple of 2 of k"),
        ({"q": torch.zeros(2, 5, 16)}, "3, 4 and 4 dimensions"),
        ({"bias": torch.zeros(1, 3, 5, 5)}, "does not broadcast"),
        ({"bias": torch.zeros(5, 5, dtype=torch.int32)}, "neither floating nor boolean"),
        ({"alibi_slopes": torch.zeros(3)}, "alibi_slopes have shape (3,), and q 2 heads"),
        ({"sinks": torch.zeros(1)}, "sinks have shape (1,), and q 2 heads"),
        ({"window": -1}, "window is -1; it is a number of keys, 1 or more, or None"),
        ({"softcap": -1.0}, "softcap is -1.0; it is a positive bound, or None"),
        ({"causal": "top"}, "'upper_left' or 'lower_right'"),
        ({"q": torch.zeros(1, 2, 5, 16).double()}, "float64"),
    ],
)
def test_supports_gives_its_reason(change: dict[str, Any], words: str | None) -> None:
    given_: dict[str, Any] = dict(zip("qkv", qkv(), strict=True)) | change
    reason = supports(**given_)
    assert reason is None if words is None else words in str(reason)


def test_kernels_refuse_what_they_cannot_read() -> None:
    q, k, v = qkv()
    wide = qkv(head_dim=512)
    rest = (None, None, None, 1.0, 0.0, 0, False, False)
    assert kernels.refuses(*qkv(), *rest) is None
    assert kernels.refuses(*wide, *rest) == "a head has 512 channels, and the kernels hold 256"
    assert "the channels of k lie at stride 5" in str(kernels.refuses(q, k.mT.contiguous().mT, v, *rest))
    assert "broadcast over queries or keys" in str(
        kernels.refuses_backward(q, q, k, v, torch.zeros(1, 1, 1, 5), *rest[1:], q, q, [True] * 5)
    )


def test_new_lengths_compile_nothing() -> None:
    # GIVEN lengths on either side of what is compiled as a whole
    built = set()
    for length in (40, 41, 57, 200, 201, 230):
        flash_attention(*qkv(q_len=length, kv_len=length), softcap=3.5, causal="upper_left")
        built.add((_blocked._WHOLE.compiled.built, _blocked._WEIGHTS.compiled.built))
    assert len(built) == 2


def test_the_op_is_one_node_of_a_compiled_graph() -> None:
    q, k, v = qkv()
    calls = OP.forward.calls
    with cpu_path("reference"):
        compiled = torch.compile(flash_attention, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q, k, v, softcap=2.0), reference(q, k, v, softcap=2.0))
    assert OP.forward.calls == calls + 1
