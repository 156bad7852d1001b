"""Kernels that are compiled from a definition: shared where that is right, and only there."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from fused_replacements import _compiled, _paths
from fused_replacements._compiled import CompiledKernels
from fused_replacements._dispatched import Op
from fused_replacements._sizes import condition


def run(kernels: CompiledKernels, *arguments: Any) -> Tensor:
    kernel = kernels.find(arguments)
    assert kernel is not None
    return kernel([argument for argument in arguments if isinstance(argument, Tensor)])[0]


def test_one_kernel_for_every_length() -> None:
    kernels = CompiledKernels(lambda x, w: torch.relu(x) * w, 2)
    for rows in (5, 9, 70):
        x, w = torch.randn(rows, 33), torch.randn(33)
        assert torch.equal(run(kernels, x, w), torch.relu(x) * w)
    assert kernels.built == 1


def test_a_definition_that_asks_about_sizes_gets_a_kernel_for_each_answer() -> None:
    # GIVEN a definition that goes two ways
    def definition(x: Tensor, y: Tensor) -> Tensor:
        return x * y.sum() + 1 if x.size(0) == y.size(0) else x - y.sum()

    kernels = CompiledKernels(definition, 2)
    for lengths in ((4, 4), (4, 6), (5, 5), (7, 3)):
        x, y = (torch.randn(length) for length in lengths)
        # THEN each call goes its own way
        torch.testing.assert_close(run(kernels, x, y), definition(x, y))
    assert kernels.built == 2


@pytest.mark.parametrize(
    "layout",
    [
        lambda base: base[:12, :8].t(),  # rows at a stride that is a size at first
        lambda base: base[:12, 3:11].t(),
        lambda base: base.t()[:8, :12],
        lambda base: base[:16:2, :12],
    ],
)
def test_strides_that_look_like_sizes_are_not_taken_for_them(layout: Callable[[Tensor], Tensor]) -> None:
    kernels = CompiledKernels(lambda x: x * 2 + 1, 1)
    for width in (8, 12, 20, 31):
        x = layout(torch.randn(40, width if width > 12 else 12))
        assert torch.equal(run(kernels, x), x * 2 + 1)


def test_fp64_and_nothing_run_the_definition() -> None:
    kernels = CompiledKernels(torch.relu, 1)
    assert kernels.find((torch.randn(3, dtype=torch.float64),)) is None
    assert kernels.find((torch.randn(0, 3),)) is None


def test_what_is_not_admitted_runs_the_definition() -> None:
    # GIVEN a definition that goes another way for each length, and may have two kernels
    asked: list[tuple[int, int]] = []

    def admits(arguments: Any, known: int) -> bool:
        asked.append((len(arguments[0]), known))
        return known < 2

    kernels = CompiledKernels(lambda x: x * int(x.size(0)), 1, admits)
    found = [kernels.find((torch.ones(length),)) is not None for length in (3, 4, 5, 4, 5)]
    # THEN the third gets none, and no length is asked about twice
    assert found == [True, True, False, True, False]
    assert asked == [(3, 0), (4, 1), (5, 2)]


def test_each_choice_of_gradients_has_a_kernel_of_its_own() -> None:
    # GIVEN a definition that returns what a list of booleans asks for, as every backward does
    def definition(x: Tensor, y: Tensor, needs: list[bool]) -> list[Tensor]:
        return [tensor * 2 for tensor, need in zip((x, y), needs, strict=True) if need]

    kernels, x, y = CompiledKernels(definition, 3), torch.randn(5), torch.randn(5)
    for needs in ([True, False], [False, True], [True, True], [True, False]):
        kernel = kernels.find((x, y, needs))
        assert kernel is not None
        for found, expected in zip(kernel([x, y]), definition(x, y, needs), strict=True):
            assert torch.equal(found, expected)
    assert kernels.built == 3


def test_a_dtype_among_the_arguments_tells_kernels_apart() -> None:
    kernels, x = CompiledKernels(lambda x, dtype: (x * 3).to(dtype), 2), torch.randn(7)
    for dtype in (torch.bfloat16, torch.float32, torch.bfloat16):
        assert torch.equal(run(kernels, x, dtype), (x * 3).to(dtype))
    assert kernels.built == 2


# What a kernel takes for granted about sizes


@given(numbers=st.lists(st.integers(0, 40), min_size=4, max_size=4))
def test_conditions_say_what_sympy_says(numbers: list[int]) -> None:
    # GIVEN what definitions ask about sizes, written out as Python
    a, b, c = sympy.symbols("s0 s1 s2", integer=True, nonnegative=True)
    layout = [a, b, c, a * FloorDiv(b, 3) + 1]
    guards = [
        sympy.Or(sympy.Ne(a, b), sympy.Lt(c, 7)),
        sympy.Not(sympy.And(sympy.Eq(Mod(c, 4), 1), sympy.Ge(a, 5))),
        sympy.Ge(sympy.Max(a, b) * 2 - ModularIndexing(c, 2, 3), a**2 - 150),
        sympy.Eq(PythonMod(a * b, 2), 0),
    ]
    holds = condition(layout, guards)
    for fourth in (numbers[3], numbers[0] * (numbers[1] // 3) + 1):
        # THEN the answer is that of sympy, for any sizes
        values = dict(zip((a, b, c), map(sympy.Integer, numbers), strict=False))
        fits = layout[3].xreplace(values) == fourth
        expected = fits and all(guard.xreplace(values) is sympy.true for guard in guards)
        assert holds(*numbers[:3], fourth) is bool(expected)


def test_a_symbol_that_comes_again_must_be_the_same_number() -> None:
    a, b = sympy.symbols("s0 s1", integer=True, positive=True)
    holds = condition([a, b, a], [])
    assert holds(3, 5, 3)
    assert not holds(3, 5, 4)
    # AND what nothing names can't be known
    assert not condition([a], [sympy.Lt(b, 5)])(3)


def test_a_new_length_is_met_in_microseconds() -> None:
    kernels = CompiledKernels(lambda x, w: torch.relu(x) * w, 2)
    w = torch.randn(33)
    lengths = [torch.randn(rows, 33) for rows in range(4, 204)]
    run(kernels, lengths[0], w)
    took = []
    for x in lengths[1:]:
        start = time.perf_counter()
        kernels.find((x, w))
        took.append(time.perf_counter() - start)
    assert statistics.median(took) < 150e-6  # 20 µs; sympy took 350 and more


# Where nothing can be compiled


def in_a_process(source: str, **environment: str) -> list[str]:
    """The lines that ``source`` prints in a process with ``environment``."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


UNFUSED = """
    import time, torch, warnings, fused_replacements as fused
    warnings.simplefilter("ignore", DeprecationWarning)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", fused.Unfused)
        for op in (fused.relu_squared, fused.quick_gelu):
            for rows in (3, 3, 4, 5):
                x = torch.randn(rows, 8)
                start = time.perf_counter()
                y = op(x)
                took = time.perf_counter() - start
                assert torch.equal(y, fused.find(op.__name__).reference(x))
        x = torch.randn(2, 3, 8)  # another class of layouts
        op(x)
    for warning in caught:
        if issubclass(warning.category, fused.Unfused):
            print(warning.message)
    print(took < 0.01)
"""


@pytest.mark.parametrize("lacking", ["compiler", "directory"])
def test_what_the_compiler_lacks_is_looked_for_once_and_said_once_for_each_op(lacking: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / ("cache" if lacking == "compiler" else "file/cache"))}
    if lacking == "compiler":
        environment["CXX"] = str(tmp_path / "no-such-compiler")
    *said, quick = in_a_process(UNFUSED, **environment)
    reason = "No working C++ compiler" if lacking == "compiler" else "Not a directory"
    assert [line.split(" ", 1)[0] for line in said] == ["relu_squared", "quick_gelu"]
    assert all(reason in line for line in said)
    assert quick == "True"


def test_a_class_that_the_compiler_fails_on_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN an op whose definition the compiler can't take at one layout
    tried: list[int] = []

    def failing(_definition: Any, arguments: Any, _threads: int, *, exact: bool) -> Any:  # noqa: ARG001
        tried.append(arguments[0].dim())
        raise AssertionError("an assertion of the compiler's\nand many lines")

    monkeypatch.setattr(_compiled, "build", failing)
    monkeypatch.setattr(_paths, "_said", set())
    op = Op("never_compiled(Tensor x) -> Tensor", torch.relu, None)
    with pytest.warns(_paths.Unfused, match="an assertion of the compiler's"):
        op.overload(torch.ones(3))
    for shape in ((4,), (5,), (3, 2), (4, 3)):
        assert torch.equal(op.overload(torch.ones(shape)), torch.ones(shape))
    # THEN each class is tried once, and the toolchain isn't to blame
    assert tried == [1, 2]
    assert _compiled.Toolchain.failure is None


def test_arguments_that_a_definition_raises_on_are_not_held_against_their_class() -> None:
    op = Op("needs_rows(Tensor x, Tensor y) -> Tensor", torch.mul, None)
    with pytest.raises(RuntimeError, match="must match"):
        op.overload(torch.ones(3, 4), torch.ones(2, 5))
    op.overload(torch.ones(3, 4), torch.ones(3, 4))
    assert op.compiled.built == 1
