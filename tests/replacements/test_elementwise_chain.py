"""Chains through the compiler: what is one kernel, what is refused and why, and that no shape gets another's kernel."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor import metrics

from fused_replacements import Unfused, cpu_path, elementwise_chain, find
from fused_replacements.elementwise import elementwise_chain as module_function
from fused_replacements.elementwise._chain import MOST_FORMS, Chain
from fused_replacements.elementwise.elementwise_chain import samples, supports

CPU = torch.device("cpu")
CHAINS = {sample.label: sample for sample in samples(16, 64, torch.float32, CPU)}
X = torch.randn(6, 32, generator=torch.Generator().manual_seed(0))
FOREIGN = torch.randn(32)


@pytest.fixture(autouse=True)
def _nothing_runs_unfused() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Unfused)
        yield


def swiglu(packed: Tensor) -> Tensor:
    gate, up = packed.chunk(2, -1)
    return F.silu(gate) * up


def by_size(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 4 else x * x * 3


@pytest.mark.parametrize("label", CHAINS)
def test_a_chain_is_one_kernel_each_way(label: str) -> None:
    # GIVEN a chain whose inputs learn
    fn, *arguments = CHAINS[label].args
    learned = [a.clone().requires_grad_() if isinstance(a, Tensor) and a.is_floating_point() else a for a in arguments]
    chain = Chain(fn)
    # WHEN it runs forward and backward, THEN the compiler has generated one kernel for each
    metrics.reset()
    outputs = chain(*learned)
    assert metrics.generated_kernel_count == 1
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    leaves = [a for a in learned if isinstance(a, Tensor) and a.requires_grad]
    metrics.reset()
    torch.autograd.grad(outputs, leaves, [torch.ones_like(o) for o in outputs])
    assert metrics.generated_kernel_count >= 1
    # but for inputs that were broadcast, whose gradients are sums
    assert metrics.generated_kernel_count <= (3 if label == "modulation" else 1)
    (op,) = chain.ops()
    assert (op.forward.calls, op.backward.calls) == (1, 1)


def test_the_profiler_shows_it_by_name() -> None:
    chain = Chain(swiglu)
    chain(X)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        chain(X)
    names = [event.key for event in profile.key_averages()]
    assert [name for name in names if name.startswith("fused_replacements::")] == [
        f"fused_replacements::{chain.ops()[0].name}"
    ]
    assert chain.ops()[0].name.startswith("elementwise_chain_swiglu_")
    assert not any(name in ("aten::silu", "aten::mul") for name in names)


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda x: x @ x.t(), "aten.mm is not elementwise"),
        (lambda x: (x * 2).sum(-1), "aten.sum.dim_IntList is not elementwise"),
        (lambda x: F.softmax(x, -1), "aten._softmax is not elementwise"),
        (lambda x: (x @ x.t()).cumsum(0), "aten.mm, aten.cumsum are not elementwise"),
        (lambda x: torch.cat([x, -x]), "aten.cat is not elementwise"),
        (lambda x: (x * 2).add_(1), "aten.add_.Tensor writes in place"),
        (lambda x: x.mul_(2) + 1, "aten.mul_.Tensor writes in place"),
        (lambda x: x * torch.rand_like(x), "aten.rand_like draws random numbers, and backward would draw others"),
        (lambda x: x * 2 if x.sum() > 0 else x * 3, "what it does depends on values"),
        (lambda x: x * x[0, 0].item(), "what it does depends on values"),
        (lambda x: x * FOREIGN, "it reads a tensor that is not one of its arguments"),
        (lambda x: x.t(), "it returns an input as it is"),
        (lambda x: (x * 2, x), "it returns an input as it is"),
        (lambda x: (x * 2, 3), "it returns a int beside tensors"),
        (lambda x: [x * 2] * 2, "it returns one tensor twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_elementwise_is_refused(fn: Callable[..., Any], reason: str) -> None:
    # GIVEN a function that one kernel can't hold
    assert supports(fn, X.clone()) == reason
    # WHEN it is called all the same, THEN it runs as it is, and says why
    chain = Chain(fn)
    torch.manual_seed(3)
    with pytest.warns(Unfused) as caught:
        found = chain(X.clone())
    assert str(caught[0].message).endswith(reason)
    torch.manual_seed(3)
    torch.testing.assert_close(found, fn(X.clone()))
    assert chain.supports(X.clone()) == reason
    assert chain.ops() == ()


def test_arguments_that_are_no_tensors_or_numbers_are_refused() -> None:
    assert supports(lambda x, many: x * many[0], X, [X]) == "argument 1 is a list, neither a tensor nor a number"
    assert supports(lambda x: x * 2, 3.0) == "it has no tensor among its arguments"
    assert supports(torch.nn.PReLU(), X) == "it reads a tensor that is not one of its arguments"


def test_supports_takes_fake_tensors() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.randn(6, 32)
        assert supports(swiglu, fake) is None
        assert supports(lambda x: x.sum(), fake) == "aten.sum is not elementwise"
    assert supports(swiglu, X.to("meta")) is None


def test_a_size_that_decides_otherwise_has_a_kernel_of_its_own() -> None:
    # GIVEN a function that branches on a size, called on both sides of it, forward and backward
    chain = Chain(by_size)
    for rows in (6, 3, 7, 2, 9):
        x = torch.randn(rows, 5, requires_grad=True)
        mine, its = chain(x), by_size(x)
        torch.testing.assert_close(mine, its)
        torch.testing.assert_close(torch.autograd.grad(mine.sum(), x), torch.autograd.grad(its.sum(), x))
    # THEN there are two kernels each way, however many lengths were met
    (op,) = chain.ops()
    assert (op.forward.compiled.built, op.backward.compiled.built) == (2, 2)


def test_too_many_ways_run_as_they_are() -> None:
    def by_every_size(x: Tensor) -> Tensor:
        return x * int(x.shape[0])

    chain = Chain(by_every_size)
    found = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Unfused)
        for rows in range(2, 12):
            found.append(torch.equal(chain(torch.ones(rows, 3)), torch.full((rows, 3), float(rows))))
    assert all(found)
    assert chain.ops()[0].forward.compiled.built == 8
    assert ["in more than 8 ways" in str(one.message) for one in caught] == [True]


@pytest.mark.parametrize("again", [False, True])
def test_shapes_that_do_not_fit_raise(again: bool) -> None:
    # GIVEN a chain that has compiled code for shapes that fit, or hasn't; the code itself looks at none
    def chain_of_two(x: Tensor, y: Tensor) -> Tensor:
        return x * y + 1

    chain = Chain(chain_of_two)
    if again:
        chain(torch.ones(4, 5), torch.ones(4, 5))
    # THEN shapes that don't fit raise what the function itself raises
    with pytest.raises(RuntimeError, match="must match the size"):
        chain(torch.ones(4, 5), torch.ones(4, 6))
    # AND say nothing about shapes that do
    assert torch.equal(chain(torch.ones(3, 7), torch.ones(3, 7)), torch.full((3, 7), 2.0))


def test_strides_and_broadcasts_are_read_in_place() -> None:
    base = torch.randn(8, 12, 10, requires_grad=True)
    row, column = torch.randn(10, requires_grad=True), torch.randn(4, 1, 10, requires_grad=True)

    def fn(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(x * a) + b.exp()

    x = base[::2, 1:7].transpose(0, 1)[..., :].transpose(0, 1)
    mine, its = Chain(fn)(x, row, column), fn(x, row, column)
    torch.testing.assert_close(mine, its)
    incoming = torch.randn_like(its)
    leaves = (base, row, column)
    torch.testing.assert_close(torch.autograd.grad(mine, leaves, incoming), torch.autograd.grad(its, leaves, incoming))


def test_outputs_keep_their_structure() -> None:
    def fn(x: Tensor) -> dict[str, Any]:
        return {"value": x * 2, "signs": [x > 0, (x + 1).long()]}

    found = Chain(fn)(X.clone().requires_grad_())
    torch.testing.assert_close(found["value"], X * 2)
    assert torch.equal(found["signs"][0], X > 0)
    assert torch.equal(found["signs"][1], (X + 1).long())
    assert [found["value"].requires_grad, *(one.requires_grad for one in found["signs"])] == [True, False, False]


def test_numbers_are_told_apart_by_type_and_sign() -> None:
    def fn(x: Tensor, number: Any) -> Tensor:
        return x * number

    chain, whole = Chain(fn), torch.arange(-3, 3)
    for number in (1, 1.0, True, 0.0, -0.0):
        mine, its = chain(whole, number), fn(whole, number)
        assert mine.dtype is its.dtype
        assert torch.equal(mine, its)
        assert torch.equal(torch.signbit(mine.double()), torch.signbit(its.double()))
    assert len(chain.ops()) == 5


def test_a_number_that_changes_at_each_call_compiles_no_more_than_it_may() -> None:
    chain = Chain(lambda x, number: x * number)
    with cpu_path("reference"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", Unfused)
        for number in range(MOST_FORMS + 5):
            assert torch.equal(chain(torch.ones(3), float(number)), torch.full((3,), float(number)))
    assert len(chain.ops()) == MOST_FORMS
    assert [f"over {MOST_FORMS} combinations" in str(one.message) for one in caught] == [True]


def test_a_lambda_in_a_loop_is_compiled_once() -> None:
    def call(factor: float) -> Any:
        return elementwise_chain(lambda x: torch.tanh(x) * factor, X)

    from fused_replacements.elementwise.elementwise_chain import _chains

    before = len(_chains)
    with cpu_path("reference"):
        for _ in range(3):
            torch.testing.assert_close(call(2.0), torch.tanh(X) * 2.0)
        assert len(_chains) == before + 1
        torch.testing.assert_close(call(3.0), torch.tanh(X) * 3.0)
        assert len(_chains) == before + 2


def test_a_chain_may_call_another() -> None:
    # GIVEN two functions, of which one is written with the other's chain
    inner = Chain(lambda x: x * torch.sigmoid(x))
    outer = Chain(lambda x: inner(x) + 1)
    # THEN the call returns, as one kernel or as none
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unfused)
        torch.testing.assert_close(outer(X), X * torch.sigmoid(X) + 1)


def test_fx_graphs_are_functions_too() -> None:
    graph = torch.fx.symbolic_trace(swiglu)
    torch.testing.assert_close(Chain(graph)(X), swiglu(X))
    torch.testing.assert_close(elementwise_chain(graph, X), swiglu(X))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_casts_as_the_eager_code_does(dtype: torch.dtype) -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.addcdiv(x, x, x.float().exp(), value=2.0)

    chain, x = Chain(fn), X.to(dtype)
    outside = chain(x)
    with torch.autocast("cpu", torch.bfloat16):
        inside, its = chain(x), fn(x)
    assert (outside.dtype, inside.dtype) == (fn(x).dtype, its.dtype)
    torch.testing.assert_close(inside, its, rtol=2e-2, atol=2e-2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_is_inlined_under_torch_compile() -> None:
    chain = Chain(swiglu)
    torch._dynamo.reset()
    for fn in (lambda x: chain(x) + 1, lambda x: elementwise_chain(swiglu, x) + 1):
        compiled = torch.compile(fn, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(X), swiglu(X) + 1)
    assert chain.ops() == ()


def test_the_dispatcher_finds_no_fault() -> None:
    chain = Chain(CHAINS["two outputs"].args[0])
    arguments = [a.clone().requires_grad_() for a in CHAINS["two outputs"].args[1:]]
    chain(*arguments)
    detached = tuple(a.detach() for a in arguments)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    with cpu_path("reference"):
        torch.library.opcheck(chain.ops()[0].forward.overload, detached, test_utils=checks)
        grads = (torch.ones_like(detached[0]), None)
        torch.library.opcheck(
            chain.ops()[0].backward.overload, (*grads, *detached, [True, False, True]), test_utils=checks
        )


def test_inputs_are_not_written() -> None:
    for sample in CHAINS.values():
        before = copy.deepcopy(sample.args[1:])
        elementwise_chain(*sample.args)
        assert all(torch.equal(a, b) for a, b in zip(before, sample.args[1:], strict=True) if isinstance(a, Tensor))


def test_the_registry_names_it() -> None:
    assert find("elementwise_chain").function is elementwise_chain
    assert module_function.REPLACEMENT is find("elementwise_chain")


def _rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _masked_softmax(x: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(x * 0.125 + mask, -1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (_rms_norm, [(6, 32), (32,)]),
        (_rotated, [(2, 6, 32), (6, 32), (6, 32)]),
        (_masked_softmax, [(2, 6, 6), (6, 6)]),
    ],
)
def test_rows_lets_a_chain_hold_what_walks_whole_rows(function: Any, shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(*shape, requires_grad=True) for shape in shapes]
    assert Chain(function).supports(*tensors)  # elementwise only, unless it is asked for
    chain = Chain(function, rows=True)
    assert chain.supports(*tensors) is None
    result, expected = chain(*tensors), function(*tensors)
    cotangent = torch.randn_like(expected)
    assert torch.allclose(result, expected, atol=1e-5)
    for mine, its in zip(
        torch.autograd.grad(result, tensors, cotangent), torch.autograd.grad(expected, tensors, cotangent), strict=True
    ):
        assert torch.allclose(mine, its, atol=1e-4)
    (op,) = chain.ops()
    assert (op.forward.calls, op.backward.calls) == (1, 1)
    assert (op.forward.compiled.built, op.backward.compiled.built) == (1, 1)


def test_rows_does_not_let_products_in() -> None:
    x = torch.randn(4, 4)
    assert "aten.mm is not elementwise or over rows" in str(Chain(lambda a, b: a @ b, rows=True).supports(x, x))


def test_a_rolled_chain_is_compiled_for_its_first_sizes_and_then_for_all() -> None:
    def echo(x: Tensor, weight: Tensor) -> Tensor:
        return (x + torch.roll(x, 2, 0) * weight).clamp(-1.0, 1.0) + torch.flip(x, (0,))

    chain = Chain(echo, rows=True)
    for rows in (6, 9, 12, 6):
        x = torch.randn(rows, 32, requires_grad=True)
        inputs = [x, torch.randn(32, requires_grad=True)]
        found, expected = chain(*inputs), echo(*inputs)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (found, expected)]
        torch.testing.assert_close(*gradients)
    (op,) = chain.ops()
    assert (op.forward.compiled.built, op.backward.compiled.built) == (1, 1)


def test_an_input_that_no_used_output_depends_on_has_no_gradient() -> None:
    """Whatever it is at other sizes: a chain may branch on them; and a mask has none in any case."""
    chain = Chain(lambda x, y, keep: (x * y * keep if x.shape[-1] > 4 else x * 2 * keep, y + 1))
    for width, reached in ((4, False), (8, True)):
        x, y = (torch.randn(3, width, requires_grad=True) for _ in range(2))
        keep = torch.rand(3, width) > 0.5
        first, _ = chain(x, y, keep)
        dx, dy = torch.autograd.grad(first.sum(), (x, y), allow_unused=True)
        assert dx is not None
        assert (dy is not None) == reached
