"""Rotary embedding as models write it: spellings, layouts, tables, what is kept for backward, and what is refused."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from guarded import guarded
from torch import Tensor

from fused_replacements import Unfused, cpu_path, rope
from fused_replacements.elementwise.rope import OP, OP_ONE, reference, supports


def rotate_half(x: Tensor) -> Tensor:
    """Half-split, as Llama's modelling code has it."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_pairs(x: Tensor) -> Tensor:
    """Interleaved, as GPT-J's has it."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)


def eager(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    turned = cos.size(-1)
    kept, passed = x[..., :turned], x[..., turned:]
    rotated = rotate_pairs(kept) if interleaved else rotate_half(kept)
    return torch.cat((kept * cos + rotated * sin, passed), dim=-1)


def tables(seq: int, dim: int, batch: int = 1, *, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    """cos and sin of (batch, seq, dim), each angle twice, as rotary modules give them."""
    angle = torch.randn(batch, seq, dim // 2)
    angle = angle.repeat_interleave(2, -1) if interleaved else torch.cat((angle, angle), -1)
    return angle.cos(), angle.sin()


def heads(batch: int, count: int, seq: int, dim: int) -> Tensor:
    """(batch, heads, seq, head_dim) as a view of what a projection wrote."""
    return torch.randn(batch, seq, count * dim).view(batch, seq, count, dim).transpose(1, 2)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [16, 8, 2])
@pytest.mark.parametrize("path", ["compiled", "reference", "triton"])
def test_it_is_what_models_write(interleaved: bool, turned: int, path: Any) -> None:
    # GIVEN grouped heads of 16, of which some elements are turned
    q, k = heads(2, 4, 5, 16), heads(2, 2, 5, 16)
    cos, sin = tables(5, turned, 2, interleaved=interleaved)
    # THEN q and k are what the model's own code gives
    with cpu_path(path):
        found = rope(q, k, cos, sin, interleaved=interleaved)
    for mine, x in zip(found, (q, k), strict=True):
        torch.testing.assert_close(mine, eager(x, cos.unsqueeze(1), sin.unsqueeze(1), interleaved))


@pytest.mark.parametrize("path", ["compiled", "triton"])
def test_the_halves_of_a_table_may_differ(path: Any) -> None:
    # GIVEN tables whose two halves are no copies, which only the definition with whole tables can be right about
    q, (cos, sin) = heads(1, 2, 3, 8).requires_grad_(), (torch.randn(1, 3, 8), torch.randn(1, 3, 8))
    with cpu_path(path):
        found = rope(q, None, cos, sin)
        (mine,) = torch.autograd.grad(found, q, torch.ones_like(found))
    expected = eager(q, cos.unsqueeze(1), sin.unsqueeze(1))
    (its,) = torch.autograd.grad(expected, q, torch.ones_like(expected))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("interleaved", [False, True])
def test_complex_tables_are_half_width(interleaved: bool) -> None:
    # GIVEN the complex form of Llama's first release: pairs times e^(i·angle)
    q, angle = torch.randn(1, 2, 3, 8), torch.randn(1, 3, 4)
    freqs = torch.polar(torch.ones_like(angle), angle)
    pairs = q.unflatten(-1, (4, 2)) if interleaved else q.unflatten(-1, (2, 4)).transpose(-1, -2)
    product = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * freqs.unsqueeze(1))
    expected = (product if interleaved else product.transpose(-1, -2)).flatten(-2)
    # THEN its real and imaginary parts serve as tables, at a stride of two, without a copy
    parts = torch.view_as_real(freqs).unbind(-1)
    assert parts[0].stride(-1) == 2
    for path in ("compiled", "triton"):
        with cpu_path(path):
            torch.testing.assert_close(rope(q, None, *parts, interleaved=interleaved, rotary_dim=8), expected)


@pytest.mark.parametrize("lead", ["(seq, dim)", "(1, seq, dim)", "(batch, seq, dim)", "(batch, 1, seq, dim)"])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("path", ["compiled", "triton"])
def test_shapes_of_tables(lead: str, inside: bool, path: Any) -> None:
    # GIVEN tables with and without a batch and a dimension for the heads; q as (batch, seq, heads, …) or transposed
    q, k = heads(2, 3, 5, 8), heads(2, 1, 5, 8)
    cos, sin = tables(5, 8, 2 if "batch" in lead else 1)
    expected = [eager(x, cos.unsqueeze(1), sin.unsqueeze(1)) for x in (q, k)]
    if lead == "(seq, dim)":
        cos, sin = cos[0], sin[0]
    elif lead == "(batch, 1, seq, dim)":
        cos, sin = (table.unsqueeze(2 if inside else 1) for table in (cos, sin))
    with cpu_path(path):
        if inside:
            found = rope(q.transpose(1, 2), k.transpose(1, 2), cos, sin, 2)
            found = [x.transpose(1, 2) for x in found]
        else:
            found = rope(q, k, cos, sin)
    torch.testing.assert_close(list(found), expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_results_lie_in_memory_as_their_inputs(transposed: bool) -> None:
    # GIVEN the transposed view of a projection, or a tensor in the order of its dimensions
    q = heads(2, 4, 5, 8) if transposed else torch.randn(2, 4, 5, 8)
    q.requires_grad_()
    turned = rope(q, None, *tables(5, 8))
    (gradient,) = torch.autograd.grad(turned, q, torch.randn_like(turned))
    # THEN neither the result nor the gradient needs a copy to be seen as (batch, seq, width) again
    assert turned.stride() == q.stride()
    assert gradient.stride() == q.stride()


def test_inputs_are_not_written_and_not_kept() -> None:
    # GIVEN a rotation whose inputs are changed in place before backward, which autograd forbids for what is kept
    base = torch.randn(1, 2, 3, 8, requires_grad=True)
    q, k = base * 1.0, base * 2.0
    before = q.detach().clone(), k.detach().clone()
    cos, sin = tables(3, 8)
    turned_q, turned_k = rope(q, k, cos, sin)
    torch.testing.assert_close((q.detach(), k.detach()), before, rtol=0, atol=0)
    with torch.no_grad():
        q.zero_()
        k.zero_()
    # THEN backward neither complains nor reads them
    (gradient,) = torch.autograd.grad((turned_q * 3.0 + turned_k).sum(), base)
    expected = torch.autograd.grad((eager(base, cos, sin) * 3.0 + eager(base * 2.0, cos, sin)).sum(), base)
    torch.testing.assert_close(gradient, expected[0])


@pytest.mark.parametrize("path", ["compiled", "triton"])
@pytest.mark.parametrize("used", ["q", "k"])
def test_only_one_of_the_results_is_used(path: Any, used: str) -> None:
    q, k = heads(1, 2, 3, 8).requires_grad_(), heads(1, 2, 3, 8).requires_grad_()
    cos, sin = tables(3, 8)
    with cpu_path(path):
        turned = rope(q, k, cos, sin)[used == "k"]
        found = torch.autograd.grad(turned.square().sum(), (q, k), allow_unused=True)
    its = torch.autograd.grad(eager(q if used == "q" else k, cos, sin).square().sum(), q if used == "q" else k)[0]
    torch.testing.assert_close(found[used == "k"], its)
    assert found[used == "q"] is None


def test_backward_is_the_rotation_back() -> None:
    # GIVEN angles, whose rotation keeps lengths
    q = heads(1, 2, 7, 16).requires_grad_()
    cos, sin = tables(7, 16)
    turned = rope(q, None, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), q.norm(dim=-1))
    # THEN the gradient for the result itself is the input
    (gradient,) = torch.autograd.grad(turned, q, turned.detach())
    torch.testing.assert_close(gradient, q.detach(), rtol=1e-5, atol=1e-5)


def test_second_derivatives() -> None:
    q, k = (torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    cos, sin = (table.double() for table in tables(3, 4))
    assert torch.autograd.gradgradcheck(lambda a, b: rope(a, b, cos, sin), (q, k))
    torch.testing.assert_close(torch.autograd.grad(_energy(q, cos, sin), q)[0], _by_hand(q, cos, sin))


def _energy(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = rope(q, None, cos, sin)
    (gradient,) = torch.autograd.grad(turned.pow(3).sum(), q, create_graph=True)
    return gradient.square().sum()


def _by_hand(q: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad(eager(q, cos, sin).pow(3).sum(), q, create_graph=True)
    return torch.autograd.grad(gradient.square().sum(), q)[0]


def test_dtypes_are_those_of_the_eager_code() -> None:
    q, (cos, sin) = heads(1, 2, 3, 8).bfloat16(), tables(3, 8)
    # GIVEN fp32 tables and a bf16 q: the product is fp32, unless the model casts it back
    assert rope(q, None, cos, sin).dtype is torch.float32
    back = rope(q, None, cos, sin, dtype=q.dtype)
    # THEN casting back inside the kernel rounds once, where the eager code has rounded nothing before
    assert torch.equal(back, eager(q.float(), cos, sin).bfloat16())
    assert rope(q, None, cos.bfloat16(), sin.bfloat16()).dtype is torch.bfloat16
    # AND gradients have the dtype of what they are of
    q.requires_grad_()
    turned = rope(q, None, cos, sin)
    assert torch.autograd.grad(turned.sum(), q)[0].dtype is torch.bfloat16


def test_tables_that_learn_get_their_gradient() -> None:
    q, (cos, sin) = heads(1, 2, 3, 8), tables(3, 8)
    cos.requires_grad_()
    assert supports(q, None, cos, sin) == "cos or sin requires a gradient"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unfused)
        (mine,) = torch.autograd.grad(rope(q, None, cos, sin).square().sum(), cos)
    (its,) = torch.autograd.grad(eager(q, cos.unsqueeze(1), sin.unsqueeze(1)).square().sum(), cos)
    torch.testing.assert_close(mine, its)


@pytest.mark.parametrize(
    ("q", "k", "table", "given", "message"),
    [
        ((1, 2, 3, 8), None, (1, 4, 8), {}, "cos of shape (1, 1, 4, 8) and q of (1, 2, 3, 8) don't fit q"),
        ((2, 2, 3, 8), (1, 2, 3, 8), (2, 3, 8), {}, "don't fit k of (1, 2, 3, 8)"),
        ((1, 2, 3, 8), (1, 2, 3, 6), (1, 3, 6), {}, "don't fit k of (1, 2, 3, 6)"),
        ((1, 2, 3, 8), None, (1, 3, 10), {}, "10 elements of a head of 8 can't be turned"),
        ((1, 2, 3, 9), None, (1, 3, 9), {}, "9 elements of a head of 9 can't be turned"),
        ((1, 2, 3, 8), None, (1, 3, 3), {"rotary_dim": 8}, "for rotary_dim 8"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    q: tuple[int, ...], k: tuple[int, ...] | None, table: tuple[int, ...], given: dict[str, int], message: str
) -> None:
    # GIVEN shapes that a compiled kernel would read past the end of
    arguments = torch.randn(q), None if k is None else torch.randn(k), torch.randn(table), torch.randn(table)
    # THEN the call raises, the reference too, and supports says the same
    for function in (rope, reference):
        with pytest.raises(ValueError, match=r"elements|fit|rotary_dim") as raised:
            function(*arguments, **given)
        assert message in str(raised.value)
    assert message in str(supports(*arguments, **given))


def test_tables_for_each_head_are_read_on_a_cpu_and_refused_by_the_kernel() -> None:
    q, cos, sin = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(rope(q, None, cos, sin), eager(q, cos, sin))
    with cpu_path("triton"), pytest.warns(Unfused, match="cos and sin differ from head to head"):
        torch.testing.assert_close(rope(q, None, cos, sin), eager(q, cos, sin))


def test_every_tensor_has_strides_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN q, k, cos and sin, each cut out of a wider tensor at a different stride, NaN between
    def cut(shape: tuple[int, ...], gap: int) -> Tensor:
        wide = torch.full((*shape[:-1], shape[-1] + gap), float("nan"))
        wide[..., : shape[-1]] = torch.randn(shape)
        return wide[..., : shape[-1]]

    q, k = cut((2, 5, 3, 8), 4).transpose(1, 2).requires_grad_(), cut((2, 5, 2, 8), 12).transpose(1, 2)
    k.requires_grad_()
    cos, sin = cut((2, 5, 8), 2), cut((2, 5, 8), 6)
    expected = [eager(x, cos.unsqueeze(1), sin.unsqueeze(1)) for x in (q, k)]
    incoming = [cut((2, 3, 5, 8), 10), cut((2, 2, 5, 8), 14)]
    its = torch.autograd.grad(expected, (q, k), incoming)
    # THEN kernels find each element, forward and backward, and write nowhere else
    for path in ("compiled", "triton"):
        with guarded(monkeypatch) as guards, cpu_path(path):
            found = rope(q, k, cos, sin)
            mine = torch.autograd.grad(found, (q, k), incoming)
        torch.testing.assert_close(list(found), expected)
        torch.testing.assert_close(mine, its)
        assert guards.broken() == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_keeps_the_op_and_backward() -> None:
    q, k = heads(1, 2, 4, 8).requires_grad_(), heads(1, 1, 4, 8).requires_grad_()
    cos, sin = tables(4, 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *a: rope(*a), fullgraph=True, backend="aot_eager")
    before = OP.forward.calls, OP.backward.calls
    found = compiled(q, k, cos, sin)
    mine = torch.autograd.grad(found, (q, k), [torch.ones_like(x) for x in found])
    assert (OP.forward.calls, OP.backward.calls) == (before[0] + 1, before[1] + 1)
    expected = [eager(x, cos, sin) for x in (q, k)]
    torch.testing.assert_close(list(found), expected)
    torch.testing.assert_close(mine, torch.autograd.grad(expected, (q, k), [torch.ones_like(x) for x in found]))


def test_q_and_k_are_one_call() -> None:
    q, k, (cos, sin) = heads(1, 2, 4, 8), heads(1, 2, 4, 8), tables(4, 8)
    before = OP.forward.calls, OP_ONE.forward.calls
    rope(q, k, cos, sin)
    rope(q, None, cos, sin)
    assert (OP.forward.calls, OP_ONE.forward.calls) == (before[0] + 1, before[1] + 1)
