"""Kinds of faults that users of fused-kernel libraries met: each is made here, and must not happen.

Numerics, strides, odd sizes, autocast, whole graphs and lengths are tested for every replacement in ``test_all_*``;
64-bit offsets, fp64 arithmetic and spills by the gates. Here is what those leave out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from calls import (
    NAMES,
    Result,
    called,
    doubled,
    judge,
    labels,
    mapped,
    sample_of,
    strided,
    tensors,
    variants,
    worse_than_eager,
)
from torch import Tensor

import fused_replacements as fused
from fused_replacements import Sample, cpu_path, find

NORMS = ["rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm"]


# In place and aliasing


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("path", ["triton", pytest.param("compiled", marks=pytest.mark.thorough)])
def test_the_incoming_gradient_is_not_written_to(name: str, path: Any) -> None:
    # GIVEN a gradient that someone else (a residual) still needs
    replacement, sample = find(name), sample_of(name, labels(name)[0], 5, 48, torch.float32)
    incoming: list[tuple[Tensor, Tensor]] = []

    def spied(*args: Any, **kwargs: Any) -> Any:
        outputs = replacement.function(*args, **kwargs)
        for output in [outputs] if isinstance(outputs, Tensor) else outputs:
            if output.requires_grad:
                output.register_hook(lambda grad: incoming.append((grad, grad.clone())))
        return outputs

    with cpu_path(path):
        called(replacement, spied, sample)
    assert all(torch.equal(grad, copy) for grad, copy in incoming)


def test_the_judge_sees_an_op_that_writes_to_its_input() -> None:
    # GIVEN a replacement that is right, but works in place
    replacement = find("relu_squared")

    def in_place(x: Tensor) -> Tensor:
        result = replacement.reference(x)
        with torch.no_grad():
            x.detach().add_(1)
        return result

    spoiled = type(replacement)(**{**vars(replacement), "function": in_place})
    sample = Sample("", (torch.randn(4, 8),))
    # THEN the judge of all tests here says so
    assert "an input of shape (4, 8) was written to" in judge(spoiled, sample, backward=False)


@pytest.mark.parametrize("name", NAMES)
def test_outputs_share_no_memory_with_inputs(name: str) -> None:
    replacement, sample = find(name), sample_of(name, labels(name)[0], 5, 48, torch.float32)
    result = called(replacement, replacement.function, sample, backward=False)
    inputs = {tensor.untyped_storage().data_ptr() for tensor in tensors(sample)}
    assert inputs.isdisjoint(output.untyped_storage().data_ptr() for output in result.outputs if output.numel())


# Wrong gradients, numerics, NaN


@pytest.mark.parametrize(("name", "label"), variants())
def test_samples_hide_nothing(name: str, label: str) -> None:
    # Weights of 1 and biases of 0 hide a wrong cast or a lost term
    for tensor in tensors(sample_of(name, label, 6, 64, torch.float32)):
        if tensor.is_floating_point() and tensor.numel() > 8:
            assert tensor[tensor.isfinite()].std() > 0


def test_a_wrong_casting_mode_is_told_from_the_right_one() -> None:
    x, weight = torch.randn(16, 256).bfloat16(), torch.randn(256).bfloat16()
    with cpu_path("reference"):
        llama, gemma = fused.rms_norm(x, weight), fused.rms_norm(x, weight, cast="gemma")
    assert (llama != gemma).float().mean() > 0.1


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("path", ["compiled", "triton"])
def test_zero_weight_gives_no_nan(name: str, path: Any) -> None:
    replacement = find(name)
    sample = sample_of(name, labels(name)[0], 4, 32, torch.float32)
    sample = mapped(sample, lambda tensor: torch.zeros_like(tensor) if tensor.dim() == 1 else tensor)
    with cpu_path(path):
        result = called(replacement, replacement.function, sample)
    assert all(bool(tensor.isfinite().all()) for tensor in result.all() if tensor is not None)


@pytest.mark.parametrize("name", NORMS)
def test_the_weight_gradient_is_summed_in_fp32(name: str) -> None:
    # GIVEN so many rows that a sum in bf16 stops growing at 256 times a term
    replacement = find(name)
    sample = mapped(
        sample_of(name, labels(name)[0], 4096, 8, torch.bfloat16),
        lambda tensor: tensor.abs() if tensor.dim() > 1 else tensor,
    )

    def all_ones(function: Callable[..., Any], given: Sample) -> Tensor:
        mine = mapped(given, lambda tensor: tensor.detach().requires_grad_(tensor.is_floating_point()))
        outputs = function(*mine.args, **mine.kwargs)
        last = outputs if isinstance(outputs, Tensor) else outputs[0]  # the norm; the sum is second
        weight = next(tensor for tensor in tensors(mine) if tensor.dim() == 1)
        return torch.autograd.grad(last, weight, torch.ones_like(last))[0].double()

    exact = all_ones(replacement.reference, doubled(sample))
    with cpu_path("compiled"):
        mine = all_ones(replacement.function, sample)
    assert ((mine - exact).abs() / exact.abs().max()).max() < 2**-7  # one rounding to bf16, not 4,096


def test_the_gradient_of_a_sum_reaches_both_of_its_terms() -> None:
    # GIVEN a norm after a residual add, both outputs used, as in a pre-norm block
    x, residual, weight = (
        torch.randn(3, 16, requires_grad=True),
        torch.randn(3, 16, requires_grad=True),
        torch.rand(16),
    )
    outputs = fused.add_rms_norm(x, residual, weight)
    grads = [torch.randn(3, 16) for _ in outputs]
    mine = torch.autograd.grad(outputs, [x, residual], grads)
    # THEN each term's gradient is that of the sum plus that through the norm
    plain = find("add_rms_norm").reference(x, residual, weight)
    for first, second in zip(mine, torch.autograd.grad(plain, [x, residual], grads), strict=True):
        torch.testing.assert_close(first, second)
    torch.testing.assert_close(mine[0], mine[1])


def test_a_frozen_head_still_trains_what_is_before_it() -> None:
    # GIVEN a head whose own weight is frozen, or is made of a base and an adapter
    hidden, target = torch.randn(6, 16, requires_grad=True), torch.randint(0, 40, (6,))
    base, down, up = torch.randn(40, 16), torch.randn(2, 16, requires_grad=True), torch.randn(40, 2, requires_grad=True)
    for weight in (base, base + up @ down):
        mine = fused.linear_cross_entropy(hidden, weight, target)
        plain = torch.nn.functional.cross_entropy(hidden @ weight.T, target)
        leaves = [hidden] if weight is base else [hidden, down, up]
        for first, second in zip(
            torch.autograd.grad(mine, leaves, retain_graph=True), torch.autograd.grad(plain, leaves), strict=True
        ):
            torch.testing.assert_close(first, second)
            assert first.abs().max() > 0


# Strides, widths, devices


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "rms_norm" else pytest.mark.thorough) for n in NAMES]
)
@pytest.mark.parametrize("how", ["expanded", "transposed"])
def test_incoming_gradients_have_strides_of_their_own(name: str, how: str) -> None:
    replacement, sample = find(name), sample_of(name, labels(name)[0], 6, 32, torch.float32)

    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            outputs = function(*args, **kwargs)
            return [laid_out(o) for o in ([outputs] if isinstance(outputs, Tensor) else outputs)]

        return run

    def laid_out(output: Tensor) -> Tensor:
        if how == "expanded" or output.dim() < 2:
            return output.sum()  # its gradient has strides of 0
        return output.transpose(-1, -2).contiguous()  # its gradient comes back transposed

    mine, plain = (called(replacement, through(f), sample) for f in (replacement.function, replacement.reference))
    for first, second in zip(mine.all(), plain.all(), strict=True):
        if first is not None and second is not None:
            torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_offsets_past_two_to_the_31_reach_their_row() -> None:
    # GIVEN two rows that lie 2^31 + 64 elements apart (untouched memory costs nothing)
    stride = 2**31 + 64
    memory = torch.empty(stride + 64, dtype=torch.float16)
    x = torch.as_strided(memory, (2, 64), (stride, 1))
    x.copy_(torch.randn(2, 64))
    weight = torch.randn(64).half()
    with cpu_path("triton"):
        y = fused.rms_norm(x, weight)
    assert torch.equal(y, find("rms_norm").reference(x.contiguous(), weight))


def test_a_kernel_is_launched_where_its_tensors_are(monkeypatch: pytest.MonkeyPatch) -> None:
    from fused_replacements.kernels._launch import on

    # GIVEN a process whose current GPU is 0, and a tensor on GPU 1
    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda device: entered.append(device) or SimpleNamespace())
    for index in (0, 1):
        on(SimpleNamespace(is_cuda=True, device=torch.device("cuda", index)))  # type: ignore[arg-type]
    # THEN only for that one the device is changed
    assert entered == [torch.device("cuda", 1)]


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "layer_norm", "act_mul", "softmax", "rope"])
def test_strided_inputs_are_not_copied(name: str) -> None:
    replacement = find(name)
    sample = mapped(sample_of(name, labels(name)[0], 6, 48, torch.float32), lambda tensor: strided(tensor, "sliced"))
    called(replacement, replacement.function, sample, backward=False)  # the kernel is built
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        called(replacement, replacement.function, sample, backward=False)
    copies = {"aten::copy_", "aten::clone", "aten::contiguous", "aten::_to_copy"}
    assert not copies & {event.name for event in profile.events()}


# Slower than what it replaced; compile time


@pytest.mark.parametrize("name", NAMES)
def test_no_constant_of_a_kernel_depends_on_the_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the constants with which every kernel of an op is launched
    replacement = find(name)
    if not any(op.forward.kernels for op in replacement.ops):
        pytest.skip("no Triton kernel")
    launches: dict[int, list[tuple[str, dict[str, Any]]]] = {}
    rows_at_hand = 0

    def watch(kernel: Any) -> Any:
        def at(grid: Any) -> Any:
            def launch(*args: Any, **constants: Any) -> Any:
                launches.setdefault(rows_at_hand, []).append((kernel.fn.__name__, constants))
                return kernel[grid](*args, **constants)

            return launch

        return _Watched(at, kernel)

    called_once = sample_of(name, labels(name)[0], 4, 64, torch.float32)
    with cpu_path("triton"):
        called(replacement, replacement.function, called_once)  # imports the kernels
        for module in [m for key, m in sys.modules.items() if key.startswith("fused_replacements.kernels.")]:
            for key, value in list(vars(module).items()):
                if type(value).__name__ == "InterpretedFunction":
                    monkeypatch.setattr(module, key, watch(value))
        # WHEN the rows change and nothing else does
        for rows_at_hand in (34, 51):
            called(replacement, replacement.function, sample_of(name, labels(name)[0], rows_at_hand, 64, torch.float32))
    # THEN the constants don't: nothing is compiled for a new length
    assert launches[34]
    assert launches[34] == launches[51]


class _Watched:
    def __init__(self, at: Callable[[Any], Any], kernel: Any) -> None:
        self._at = at
        self._kernel = kernel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # inside of another kernel
        return self._kernel(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        return self._at(grid)


def test_a_missing_compiler_is_said_and_the_result_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from fused_replacements import _compiled

    def no_compiler(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no working C++ compiler was found")

    monkeypatch.setattr(_compiled, "build", no_compiler)
    x = torch.randn(3, 17, 5)  # a rank that no other test has built a kernel for
    with pytest.warns(fused.Unfused, match="relu_squared runs unfused.*no working C"):
        y = fused.relu_squared(x)
    assert torch.equal(y, find("relu_squared").reference(x))


def test_results_are_compared_with_something_else() -> None:
    # A judge that compares a buffer with itself finds nothing: this one finds a gradient that is 1 % off
    exact = Result([torch.ones(4, dtype=torch.float64)], [torch.ones(4, dtype=torch.float64)])
    eager = Result([torch.ones(4)], [torch.ones(4)])
    assert worse_than_eager(Result([torch.ones(4)], [torch.full((4,), 1.01)]), eager, exact)
    assert not worse_than_eager(eager, eager, exact)
    assert worse_than_eager(Result([torch.ones(4)], [None]), eager, exact) == ["gradient 0: it is missing"]
