"""Every replacement on the compiled CPU path, held against its definition: numerics, layouts, compile, autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calls import CPU, NAMES, called, described, judge, labels, learned, mapped, sample_of, strided, tensors, variants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fused_replacements import cpu_path, find

shapes = settings(deadline=None, suppress_health_check=list(HealthCheck))
NARROWEST = {"bias_act": 17}
"""Where narrow rows are left to the interpreter and the reference. Compiled code takes ATen's vector erf, which is off
by 1.5e-7; eager code takes it from 16 elements on, and the exact one below."""
A_KERNEL_FOR_EACH_HEAD = ("qk_norm_rope", "rope")
"""Half a head is a constant of theirs. Each further shape is four kernels, 12 s of CPU, where others build none: they
are drawn half as many, and their own files look at heads of sizes that matter."""
few_keys = pytest.mark.filterwarnings("ignore:attention runs unfused.*gradients in 16 bits:RuntimeWarning")
dynamo = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""What PyTorch's compiler deprecates in itself, raised while it traces."""


def common_first() -> list[Any]:
    """Every variant; all but the first of a replacement are thorough, as each is some kernels to compile."""
    first = set(variants(first_only=True))
    return [pytest.param(*v, marks=[] if v in first else pytest.mark.thorough) for v in variants()]


def one_graph() -> list[Any]:
    """The first variant of each; those that take a minute and more to compile are thorough."""
    slow = {"qk_norm_rope", "rope", "flash_attention"}
    return [pytest.param(*v, marks=[pytest.mark.thorough] if v[0] in slow else []) for v in variants(first_only=True)]


def dtypes_of_variants() -> list[Any]:
    """fp32 of the first variant of each; 16-bit dtypes and the other variants are thorough."""
    first = variants(first_only=True)
    others = [v for v in variants() if v not in set(first)]
    chosen = [(v, torch.float32, []) for v in first] + [(v, torch.bfloat16, [pytest.mark.thorough]) for v in first]
    chosen += [(v, dtype, [pytest.mark.thorough]) for v in others for dtype in (torch.float32, torch.bfloat16)]
    chosen += [(v, torch.float16, [pytest.mark.thorough]) for v in variants()]
    return [pytest.param(*v, dtype, marks=marks, id=f"{v[0]}-{v[1]}-{dtype_id(dtype)}") for v, dtype, marks in chosen]


def dtype_id(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@few_keys
@pytest.mark.parametrize(("name", "label", "dtype"), dtypes_of_variants())
def test_errors_are_those_of_eager(name: str, label: str, dtype: torch.dtype) -> None:
    @settings(shapes, max_examples=3 if name in A_KERNEL_FOR_EACH_HEAD else 6)
    @given(rows=st.integers(2, 40), width=st.integers(2, 300), seed=st.integers(0, 2**31))
    def holds(rows: int, width: int, seed: int) -> None:
        # GIVEN a variant at any shape, with random weights
        sample = sample_of(name, label, rows, max(width, NARROWEST.get(name, 2)), dtype, seed)
        # THEN outputs and gradients are at most twice as far from fp64 as eager's
        assert not described(judge(find(name), sample))

    holds()


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["sliced", "transposed"])
def test_strides_are_honoured(name: str, how: str) -> None:
    # GIVEN every tensor of two dimensions or more at strides of its own, the gaps filled with NaN
    label = labels(name)[0]
    sample = mapped(sample_of(name, label, 6, 48, torch.float32), lambda tensor: strided(tensor, how))
    assert any(not tensor.is_contiguous() for tensor in tensors(sample)) or all(t.dim() < 2 for t in tensors(sample))
    # THEN the results are right all the same
    assert not described(judge(find(name), sample))


@pytest.mark.parametrize(("name", "label"), variants())
@pytest.mark.parametrize(("rows", "width"), [(0, 16), (1, 1)])
def test_no_rows_and_one_element(name: str, label: str, rows: int, width: int) -> None:
    with cpu_path("reference"):
        assert not described(judge(find(name), sample_of(name, label, rows, width, torch.float32), floor=1.0))


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "label"), variants(first_only=True))
def test_one_element_is_computed_by_a_kernel(name: str, label: str) -> None:
    assert not described(judge(find(name), sample_of(name, label, 1, 1, torch.float32), floor=1.0))


@pytest.mark.parametrize(("name", "label"), variants())
def test_fp64_gradients_are_those_of_finite_differences(name: str, label: str) -> None:
    # GIVEN the reference path, which fp64 takes
    replacement = find(name)
    sample = sample_of(name, label, 3, 8, torch.float64)
    result = called(replacement, replacement.function, sample)
    if not result.gradients:
        pytest.skip("nothing of this variant has a gradient")
    flags = iter(learned(replacement, sample))
    mine = mapped(sample, lambda tensor: tensor.detach().requires_grad_(next(flags)))
    leaves = [tensor for tensor in tensors(mine) if tensor.requires_grad]

    def function(*given_leaves: torch.Tensor) -> Any:
        rest = iter(given_leaves)
        called_with = mapped(mine, lambda tensor: next(rest) if tensor.requires_grad else tensor)
        outputs = replacement.function(*called_with.args, **called_with.kwargs)
        outputs = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
        return tuple(output for output in outputs if output.requires_grad)

    # THEN the derived or given backward is the derivative
    assert torch.autograd.gradcheck(function, leaves, atol=1e-6, rtol=1e-4, nondet_tol=0.0)


@pytest.mark.parametrize(("name", "label"), variants())
def test_two_runs_give_the_same_bits(name: str, label: str) -> None:
    with cpu_path("compiled" if label == labels(name)[0] else "reference"):
        replacement, sample = find(name), sample_of(name, label, 7, 96, torch.float32)
        once, twice = (called(replacement, _seeded(replacement.function), sample) for _ in range(2))
    for first, second in zip(once.all(), twice.all(), strict=True):
        assert (first is None) == (second is None)
        assert first is None or second is None or torch.equal(first.nan_to_num(), second.nan_to_num())


def _seeded(function: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(3)
        return function(*args, **kwargs)

    return run


@dynamo
@pytest.mark.parametrize(("name", "label"), one_graph())
def test_compiles_into_one_graph(name: str, label: str) -> None:
    # GIVEN the op inside a function that torch.compile takes whole
    replacement, sample = find(name), sample_of(name, label, 6, 32, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(replacement.function, fullgraph=True, backend="aot_eager", dynamic=True)
    # WHEN it runs, THEN outputs and gradients are those of the op alone
    inside, alone = (called(replacement, _seeded(f), sample) for f in (compiled, replacement.function))
    for first, second in zip(inside.all(), alone.all(), strict=True):
        assert (first is None) == (second is None)
        assert first is None or second is None or torch.allclose(first, second, atol=1e-6, rtol=1e-5, equal_nan=True)


@dynamo
@pytest.mark.thorough
@pytest.mark.parametrize(("name", "label"), variants())
def test_compiles_with_inductor(name: str, label: str) -> None:
    replacement, sample = find(name), sample_of(name, label, 6, 32, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(replacement.function, fullgraph=True)
    inside, alone = (called(replacement, _seeded(f), sample) for f in (compiled, replacement.function))
    for first, second in zip(inside.all(), alone.all(), strict=True):
        assert first is None or second is None or torch.allclose(first, second, atol=1e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("name", "label"), variants())
def test_autocast_gives_the_dtypes_of_eager(name: str, label: str) -> None:
    # GIVEN a model under bf16 autocast, where some inputs are bf16 already and parameters are fp32
    replacement = find(name)
    for first in (torch.float32, torch.bfloat16):
        sample = sample_of(name, label, 4, 32, torch.float32)
        count = iter(range(1000))
        sample = mapped(
            sample, lambda t, first=first, count=count: t.to(first) if next(count) == 0 and t.is_floating_point() else t
        )
        if first is torch.bfloat16 and "fill" in sample.kwargs:
            continue  # the lowest number of fp32, with which softmax fills, is none of bf16
        if replacement.supports(*sample.args, **sample.kwargs) is not None:
            continue
        with cpu_path("reference"), torch.autocast("cpu", torch.bfloat16):
            fused = called(replacement, replacement.function, sample, backward=False)
            eager = called(replacement, replacement.reference, sample, backward=False)
        # THEN each output has the dtype that the eager code gives
        assert [output.dtype for output in fused.outputs] == [output.dtype for output in eager.outputs]


@pytest.mark.parametrize("name", NAMES)
def test_lengths_compile_nothing_new(name: str) -> None:
    # GIVEN an op that has run for one sequence and for a batch of two
    replacement = find(name)
    for rows in (5, 6, 9):
        called(replacement, replacement.function, sample_of(name, labels(name)[0], rows, 96, torch.float32))
    built = [op.forward.compiled.built + op.backward.compiled.built for op in replacement.ops]
    # WHEN it meets further lengths, THEN no kernel is built
    for rows in (10, 13, 17):
        called(replacement, replacement.function, sample_of(name, labels(name)[0], rows, 96, torch.float32))
    assert [op.forward.compiled.built + op.backward.compiled.built for op in replacement.ops] == built


@pytest.mark.parametrize(("name", "label"), common_first())
def test_the_dispatcher_finds_no_fault(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN the arguments with which the function calls its ops, forward and backward
    seen: list[tuple[Any, tuple[Any, ...]]] = []
    replacement = find(name)
    for op in replacement.ops:
        for half in (op.forward, op.backward):
            original = half.run_reference

            def record(arguments: Any, half: Any = half, original: Any = original) -> Any:
                detached = [a.detach() if isinstance(a, torch.Tensor) else a for a in arguments]
                seen.append((half.overload, tuple(detached)))
                return original(arguments)

            monkeypatch.setattr(half, "run_reference", record)
    sample = sample_of(name, label, 5, 24, torch.float32)
    with cpu_path("reference"):
        called(replacement, replacement.function, sample)
        calls = list(seen)
        # THEN the schema, the fake implementation and ahead-of-time dispatch agree with what runs
        for overload, arguments in calls:
            torch.library.opcheck(
                overload, arguments, test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
            )
    assert calls or not replacement.ops


def test_samples_cover_the_registry() -> None:
    assert all(list(find(name).samples(3, 16, torch.float32, CPU)) for name in NAMES)
